//! Copies of data directories, each with one random damage. The broker refuses to start and names a file, or all
//! acknowledged changes are there.
//!
//! `TENBIN_DAMAGED_COPIES` sets the number of copies, `TENBIN_DAMAGE_SEED` repeats the choices of a run.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::num::NonZeroU16;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tenbin_codec::{Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode, Will};

use crate::support::{
    BrokerProcess, DataDirectory, Dice, PATIENCE, RawClient, at_qos, lasting, retained, seed, share, topic,
};

#[test]
fn damaged_copies_are_refused_by_file_or_complete() {
    let copies = std::env::var("TENBIN_DAMAGED_COPIES").ok().and_then(|copies| copies.parse().ok()).unwrap_or(20);
    let seed = seed("TENBIN_DAMAGE_SEED");
    let _ = writeln!(std::io::stderr(), "TENBIN_DAMAGE_SEED={seed}");
    let sources: Vec<_> = [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .map(|(is_large, is_closed)| Source::new(is_large, is_closed))
        .collect();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for copy in 0..copies {
        let mut dice = Dice::new(seed, copy);
        let source = &sources[copy % sources.len()];
        let scratch = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let data = scratch.path().join("data");
        copy_directory(source.directory.path(), &data);
        let (kind, what) = damage(&data, &mut dice);
        let outcome = source.judge(&data);
        let name = match &outcome {
            Ok(Outcome::Refused(_)) => "refused",
            Ok(Outcome::Complete) => "complete",
            Err(_) => "wrong",
        };
        *counts.entry((kind, name)).or_default() += 1;
        let _ = match &outcome {
            Ok(Outcome::Refused(said)) => writeln!(std::io::stderr(), "{copy}: {what}: {said}"),
            Ok(Outcome::Complete) => writeln!(std::io::stderr(), "{copy}: {what}: complete"),
            Err(error) => writeln!(std::io::stderr(), "{copy}: {what}: WRONG: {error}"),
        };
        if let Err(error) = outcome {
            wrong.push(format!("copy {copy} ({}): {what}: {error}", source.name));
        }
    }
    let _ = writeln!(std::io::stderr(), "{counts:?}");
    assert!(wrong.is_empty(), "TENBIN_DAMAGE_SEED={seed}:\n{}", wrong.join("\n"));
}

enum Outcome {
    Refused(String),
    Complete,
}

/// A data directory and its expected content.
struct Source {
    name: String,
    directory: DataDirectory,
    expected: Vec<String>,
}

impl Source {
    /// With `is_large`: more than one segment, and more state than fits outside tables.
    fn new(is_large: bool, is_closed: bool) -> Self {
        let directory = DataDirectory::new();
        let mut broker = directory.start();
        fill(&broker, is_large);
        // Load during which the broker ends.
        let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "load"));
        receiver.subscribe("load", QoS::AtLeastOnce);
        receiver.cut();
        let mut publisher = broker.v5("load-publisher");
        let acknowledged = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut acknowledged = 0;
                while publishes(&mut publisher, acknowledged) {
                    acknowledged += 1;
                }
                acknowledged
            });
            std::thread::sleep(std::time::Duration::from_millis(300));
            if is_closed {
                broker.signal("TERM");
                broker.wait_for_exit(PATIENCE);
            }
            drop(broker);
            load.join().expect("it ends with the connection")
        });
        let size = if is_large { "large" } else { "small" };
        let name = format!("{size}, {}", if is_closed { "closed" } else { "killed" });
        let mut source = Self { name, directory, expected: Vec::new() };
        let scratch = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let data = scratch.path().join("data");
        copy_directory(source.directory.path(), &data);
        drop(BrokerProcess::start(&["--data", &data.display().to_string()]));
        source.expected = content(&data).expect("it is whole");
        // The lines are in the order of publication. The last message may be stored without an acknowledgement.
        let is_load = |line: &String| line.contains("\"topic\":\"load\"");
        let later: Vec<_> = source.expected.iter().filter(|line| is_load(line)).skip(acknowledged).cloned().collect();
        source.expected.retain(|line| !later.contains(line));
        let load = source.expected.iter().filter(|line| is_load(line)).count();
        assert_eq!(load, acknowledged, "{}: messages that were acknowledged", source.name);
        source
    }

    fn judge(&self, data: &Path) -> Result<Outcome, String> {
        let path = data.display().to_string();
        match BrokerProcess::try_start(&["--listen", "127.0.0.1:0", "--data", &path]) {
            Err((status, said)) => {
                let said = said.last().cloned().unwrap_or_default();
                let is_named = said.contains(&format!("{path}/"));
                match status.code().is_some() && is_named {
                    true => Ok(Outcome::Refused(said.replace(&path, "DATA"))),
                    false => Err(format!("{status}, no file named: {said}")),
                }
            }
            Ok(broker) => {
                drop(broker);
                let found: HashSet<String> = content(data)?.into_iter().collect();
                let missing: Vec<_> = self.expected.iter().filter(|line| !found.contains(*line)).take(3).collect();
                match missing.is_empty() {
                    true => Ok(Outcome::Complete),
                    false => Err(format!("missing, of {}: {missing:?}", self.expected.len())),
                }
            }
        }
    }
}

/// Publishes one message. Returns true if it was acknowledged.
fn publishes(publisher: &mut RawClient, number: usize) -> bool {
    let packet_id = publisher.next_id();
    let publish = at_qos("load", &format!("{number:06}"), QoS::AtLeastOnce);
    let packet = Packet::Publish(Publish { packet_id: Some(packet_id), ..publish });
    publisher.try_send_bytes(&crate::support::encode(&packet, ProtocolVersion::V5));
    matches!(publisher.receive_or_end(), Some(Packet::PubAck(ack)) if ack.reason == ReasonCode::Success)
}

fn fill(broker: &BrokerProcess, is_large: bool) {
    let (bytes, count) = if is_large { (120_000, 300) } else { (100, 60) };
    for number in 0..10 {
        let mut connect = lasting(ProtocolVersion::V5, &format!("session-{number}"));
        connect.properties.receive_maximum = NonZeroU16::new(5);
        let payload = format!("will {number}").into();
        let (qos, delay_interval) = (QoS::AtLeastOnce, Some(100_000));
        let will = Will { qos, retain: false, topic: topic("will"), payload, delay_interval, properties: None };
        let mut session = broker.connect(Connect { will: Some(will), ..connect });
        session.subscribe(&format!("kept/{number}/#"), QoS::ExactlyOnce);
        session.subscribe(&share("workers", "work/#"), QoS::AtLeastOnce);
        session.cut();
    }
    let mut publisher = broker.connect(lasting(ProtocolVersion::V5, "publisher"));
    let payload = |number: usize| format!("{number:06} {}", "x".repeat(bytes));
    for number in 0..count {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let kept = format!("kept/{}/message", number % 10);
        assert_eq!(publisher.publish(&kept, &payload(number), qos), ReasonCode::Success);
        assert_eq!(publisher.publish("work/item", &format!("{number:06}"), qos), ReasonCode::Success);
        let payload = &payload(number)[..bytes.min(40_000)];
        let publish = Publish { qos: QoS::AtLeastOnce, ..retained(&format!("retained/{number}"), payload) };
        publisher.publish_with(publish);
    }
    // In flight: sent and not acknowledged.
    let mut connect = lasting(ProtocolVersion::V5, "session-0");
    connect.properties.receive_maximum = NonZeroU16::new(5);
    let mut session = broker.connect(connect);
    for _ in 0..3 {
        session.receive_publish();
    }
    session.cut();
}

/// Dumps a directory, without times and other fields that each start changes.
fn content(data: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    // Checksums cover the payloads.
    command.args(["store", "dump", "--messages"]).arg(data);
    let output = command.output().expect("the built command can be started");
    if !output.status.success() {
        return Err(format!("dump: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON object"));
    let kept =
        lines.filter(|line| !["number", "speed", "queue"].contains(&line["record"].as_str().unwrap_or_default()));
    let mut content: Vec<_> = kept
        .map(|mut line| {
            let fields = line.as_object_mut().expect("a JSON object");
            fields.retain(|field, _| !["ended", "realm", "listener", "due", "share_key"].contains(&field.as_str()));
            // Sorts the entries of a queue by offset.
            let sequence = fields.get("sequence").and_then(Value::as_u64).unwrap_or_default();
            format!("{sequence:020} {line}")
        })
        .collect();
    content.sort();
    Ok(content)
}

/// Damages one or two files. Returns the kind of damage and a description.
fn damage(data: &Path, dice: &mut Dice) -> (&'static str, String) {
    let mut files = Vec::new();
    list(data, &mut files);
    files.retain(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0));
    files.sort();
    // Half of all damage hits the files with most content: segments, journals and tables.
    let is_content = |file: &PathBuf| {
        let ends = file.extension().is_some_and(|end| end == "log" || end == "jnl");
        (ends && used_length(file) > 0) || file.parent().is_some_and(|folder| folder.ends_with("tables"))
    };
    if dice.percent(50) {
        files.retain(is_content);
    }
    loop {
        let file = files[dice.within(0..files.len() as u64) as usize].clone();
        let other = files[dice.within(0..files.len() as u64) as usize].clone();
        let name = |file: &Path| file.strip_prefix(data).expect("it is below").display().to_string();
        let used = used_length(&file);
        match dice.within(0..6) {
            0 if used > 0 => {
                let at: Vec<u64> = (0..1 + dice.within(0..4)).map(|_| dice.within(0..used)).collect();
                at.iter().for_each(|&at| change(&file, at, 1, |byte| *byte ^= 1 << dice.within(0..8)));
                return ("bits", format!("bits of {} at {at:?}", name(&file)));
            }
            1 if used > 0 => {
                let at = dice.within(0..used.div_ceil(512)) * 512;
                let length = 512 << dice.within(0..5);
                change(&file, at, length, |byte| *byte = 0);
                return ("zeros", format!("{length} zeros in {} at {at}", name(&file)));
            }
            2 if used > 0 => {
                let length = dice.within(0..used);
                File::options().write(true).open(&file).and_then(|file| file.set_len(length)).expect("ours to write");
                return ("truncated", format!("{} cut at {length}", name(&file)));
            }
            3 => {
                fs::remove_file(&file).expect("ours to remove");
                return ("removed", format!("{} removed", name(&file)));
            }
            4 if file != other => {
                let between = data.join("between");
                fs::rename(&file, &between).and_then(|()| fs::rename(&other, &file)).expect("ours to move");
                fs::rename(&between, &other).expect("ours to move");
                return ("swapped", format!("{} and {} swapped", name(&file), name(&other)));
            }
            5 if file != other => {
                fs::remove_file(&file).expect("ours to remove");
                copy_file(&other, &file);
                return ("duplicated", format!("{} is a copy of {}", name(&file), name(&other)));
            }
            _ => {}
        }
    }
}

fn change(file: &Path, at: u64, length: usize, mut change: impl FnMut(&mut u8)) {
    let end = fs::metadata(file).expect("ours to read").len().min(at + length as u64);
    let opened = File::options().read(true).write(true).open(file).expect("ours to write");
    let mut bytes = vec![0; (end - at) as usize];
    opened.read_exact_at(&mut bytes, at).expect("ours to read");
    bytes.iter_mut().for_each(&mut change);
    opened.write_all_at(&bytes, at).expect("ours to write");
}

/// Length up to the last byte that is not zero.
fn used_length(file: &Path) -> u64 {
    let bytes = fs::read(file).expect("ours to read");
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

fn list(path: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).expect("ours to read") {
        let path = entry.expect("ours to read").path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).expect("ours to make");
    for entry in fs::read_dir(from).expect("ours to read") {
        let entry = entry.expect("ours to read");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy_directory(&entry.path(), &to) } else { copy_file(&entry.path(), &to) }
    }
}

/// Copies a file. The zeros at its end become a hole, which takes no space.
fn copy_file(from: &Path, to: &Path) {
    let bytes = fs::read(from).expect("ours to read");
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let mut file = File::create(to).expect("ours to write");
    file.write_all(&bytes[..used]).and_then(|()| file.set_len(bytes.len() as u64)).expect("ours to write");
}
