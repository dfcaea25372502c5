//! `tenbin store` and `tenbin sessions`, on the directory of a stopped broker.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::{DataDirectory, PATIENCE, at_qos, filter, lasting, retained, text, topic, with_expiry};
use serde_json::{Value, json};
use tenbin_codec::{
    Connect, ConnectProperties, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, Subscription,
    SubscriptionOptions, Will,
};
use tenbin_store::LockedDirectory;
use tenbin_store::spool::{self, Place, QueueId, Sequence, Spool};
use tenbin_store::state::{Change, Options, State, Table};

#[test]
fn check_and_dump_cover_a_stopped_brokers_store() {
    let stage = left_by_a_broker();
    let before = content(stage.path());
    let checked = tenbin(&["check"], stage.path());
    assert_eq!((checked.code, &checked.said[..]), (0, ""), "{}", checked.printed);
    for wanted in [
        "state: format version 1, 2 sessions, 2 subscriptions, 1 retained messages, 1 Wills, 0 speeds, 1 share groups",
        "0000000001.log: format version 1, ",
        "messages: 5 wait in 3 queues, closed in order",
        "queues: 2 of sessions, 1 of share groups; 0 sessions have none",
        "fine: ",
    ] {
        assert!(checked.printed.contains(wanted), "{wanted} is missing in\n{}", checked.printed);
    }
    let dumped = dump(stage.path(), &[]);
    let of = |kind: &str| dumped.iter().filter(|line| line["record"] == kind).collect::<Vec<_>>();
    let session =
        of("session").into_iter().find(|session| session["client_id"] == "sleeper").expect("a session").clone();
    assert_eq!((&session["expiry_seconds"], &session["user"]), (&json!(u32::MAX), &Value::Null));
    let number = &session["number"];
    let subscription = of("subscription").into_iter().find(|line| line["filter"] == "news/#").expect("a subscription");
    assert_eq!((&subscription["session"], &subscription["qos"]), (number, &json!(2)));
    assert_eq!((&subscription["identifier"], &subscription["weight"]), (&json!(7), &json!(1)));
    let kept = of("retained")[0];
    assert_eq!((&kept["topic"], &kept["bytes"], kept.get("payload")), (&json!("kept"), &json!(4), None));
    assert_eq!((&of("will")[0]["topic"], &of("will")[0]["client_id"]), (&json!("gone"), &json!("publisher")));
    assert_eq!(of("group")[0]["name"], "workers/jobs");
    let queues: Vec<_> = of("queue");
    let queue = |number: &Value| *queues.iter().find(|queue| queue["queue"] == *number).expect("its queue");
    let sleepers = queue(number);
    assert_eq!((&sleepers["of"], &sleepers["waiting"]), (&json!("session"), &json!(3)));
    assert_eq!(sleepers["under_way"][0]["is_received"], json!(false));
    let publisher = of("session").into_iter().find(|session| session["client_id"] == "publisher").expect("a session");
    assert_eq!(queue(&publisher["number"])["held"], json!([40_000]));
    assert_eq!(queue(&of("group")[0]["queue"])["of"], "group");
    assert!(of("waiting").is_empty() && of("unreadable").is_empty());

    let dumped = dump(stage.path(), &["--messages"]);
    let waiting: Vec<_> = dumped.iter().filter(|line| line["record"] == "waiting").collect();
    let topics: Vec<_> = waiting.iter().map(|line| line["topic"].as_str().expect("text")).collect();
    assert_eq!(topics, ["news/1", "news/2", "news/3", "jobs", "jobs"]);
    assert!(waiting.iter().all(|line| line.get("payload").is_none()));
    assert_eq!(waiting[2]["subscription_identifiers"], json!([7]));
    assert!(waiting[2]["share_key"].is_null(), "{:?}", waiting[2]);
    assert_eq!(waiting[3]["share_key"].as_str().map(str::len), Some(16), "both are of one client");
    assert_eq!(waiting[3]["share_key"], waiting[4]["share_key"]);
    assert_eq!((&waiting[0]["qos"], &waiting[1]["qos"]), (&json!(1), &json!(2)));
    assert!(waiting[0]["expires"].is_null() && waiting[2]["expires"].as_u64().expect("a time") > 1_700_000_000_000);
    let dumped = dump(stage.path(), &["--messages", "--payloads"]);
    let payloads = dumped.iter().filter_map(|line| line["payload"].as_str()).collect::<Vec<_>>();
    assert_eq!(payloads, ["bXVjaA==", "bGFzdA==", "eA==", "eA==", "eA==", "eA==", "eA=="]);
    assert!(content(stage.path()) == before, "the directory was changed");
    stage.start().assert_serves();
}

#[test]
fn check_accepts_a_killed_brokers_store() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    broker.connect(lasting(ProtocolVersion::V5, "sleeper")).subscribe("a", QoS::AtLeastOnce);
    broker.v5("publisher").publish("a", "x", QoS::AtLeastOnce);
    drop(broker);
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 0, "{}", checked.printed);
    assert!(checked.printed.contains("messages: 1 wait in 1 queues, not closed"), "{}", checked.printed);
}

#[test]
fn flipped_byte_of_a_message_is_reported_with_its_offset() {
    let stage = left_by_a_broker();
    let (path, mut bytes) = file_with(&stage.path().join("spool"), b"news/2");
    let at = position(&bytes, b"news/2");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("ours to write");
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 1, "{}", checked.printed);
    let problems: Vec<_> = checked.printed.lines().filter(|line| line.starts_with("problem: ")).collect();
    let [problem] = problems[..] else { panic!("{}", checked.printed) };
    let name = path.display().to_string();
    assert!(problem.contains(&name) && problem.ends_with("a record with a wrong checksum"), "{problem}");
    let offset = problem.split("offset ").nth(1).and_then(|rest| rest.split(':').next()).expect("an offset");
    let offset: usize = offset.parse().expect("a number");
    assert!(offset < at && at < offset + 200, "{problem}: {at}");
    let lines = tenbin(&["dump"], stage.path());
    assert_eq!(lines.code, 1);
    let last: Value = serde_json::from_str(lines.printed.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["record"], &last["what"]), (&json!("unreadable"), &json!("messages")));
    assert!(lines.printed.contains("\"client_id\":\"sleeper\""), "the state is shown: {}", lines.printed);
}

#[test]
fn check_distinguishes_a_torn_write_from_damage() {
    let stage = DataDirectory::new();
    drop(stage.start());
    let (spool, _) = Spool::open(&stage.path().join("spool"), spool::Options::default()).expect("the broker is gone");
    let room = spool.take_room(1_000, false).expect("the disk has room");
    let mut batch = spool.begin();
    for (body, number) in ["first", "second", "third"].iter().zip(1..) {
        let place = Place { queue: QueueId(1), sequence: Sequence(number) };
        batch.message(&room, &[(place, b"")], None, &[body.as_bytes()]).expect("small");
    }
    drop(batch);
    spool.give_room(room);
    drop(spool);
    let (path, mut bytes) = file_with(&stage.path().join("spool"), b"third");
    // As it was before the log was closed, and without a page in the middle.
    let end = (position(&bytes, b"third") + 5).next_multiple_of(8);
    bytes[end..].fill(0);
    let at = position(&bytes, b"second");
    bytes[at..at + 6].fill(0);
    fs::write(&path, bytes).expect("ours to write");
    assert_eq!(tenbin(&["check"], stage.path()).code, 1, "it was confirmed");
    fs::remove_file(stage.path().join("spool/confirmed")).expect("ours to remove");
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 0, "{}", checked.printed);
    let wanted = format!("note: {}: offset ", path.display());
    assert!(checked.printed.contains(&wanted), "{}", checked.printed);
    assert!(checked.printed.contains("and 1 records behind them, which a broker leaves out"), "{}", checked.printed);
    stage.start().assert_serves();
}

#[test]
fn a_flipped_byte_of_the_state_is_named() {
    let stage = left_by_a_broker();
    let (path, mut bytes) = file_with(&stage.path().join("state"), b"news/#");
    let at = position(&bytes, b"news/#");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("ours to write");
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 1, "{}", checked.printed);
    let problem = checked.printed.lines().find(|line| line.starts_with("problem: ")).expect("a problem");
    let wanted = format!("{}: offset ", path.display());
    assert!(problem.contains(&wanted) && problem.contains("confirmed changes are damaged"), "{problem}");
}

#[test]
fn backup_of_a_stopped_broker_is_restored() {
    let stage = left_by_a_broker();
    let before = content(stage.path());
    let other = tempfile::tempdir().expect("a directory");
    let path = |name: &str| other.path().join(name).to_str().expect("a readable name").to_owned();
    let data = stage.path().to_str().expect("a readable name");
    let done = command(&["store", "backup", data, &path("file")]);
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && printed.contains("segments of messages"), "{printed} {done:?}");
    assert!(content(stage.path()) == before, "something was changed");
    let done = command(&["cluster", "restore", &path("file"), "--data", &path("new")]);
    assert!(done.status.success(), "{done:?}");
    let said = |data: &Path| tenbin(&["dump", "--messages", "--payloads"], data).printed;
    assert_eq!(said(Path::new(&path("new"))), said(stage.path()));
    let broker = stage.start();
    let refused = command(&["store", "backup", data, &path("second")]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && words.contains("another process uses it"), "{words}");
    assert_eq!(fs::read_dir(other.path()).expect("ours").count(), 2, "no part of the second file is left");
    broker.assert_serves();
}

#[test]
fn backup_of_a_damaged_directory_is_refused_as_check_names_it() {
    let stage = left_by_a_broker();
    let (segment, mut bytes) = file_with(&stage.path().join("spool"), b"news/2");
    let at = position(&bytes, b"news/2");
    bytes[at] ^= 1;
    fs::write(&segment, bytes).expect("ours to write");
    let checked = tenbin(&["check"], stage.path()).printed;
    let problem = checked.lines().find_map(|line| line.strip_prefix("problem: ")).expect("a problem");
    let damage = &problem[problem.find("spool/").expect("a path in the directory")..];
    let other = tempfile::tempdir().expect("a directory");
    let path = |name: &str| other.path().join(name).to_str().expect("a readable name").to_owned();
    let data = stage.path().to_str().expect("a readable name");
    let refused = command(&["store", "backup", data, &path("file")]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && words.contains(damage) && words.contains(&path("file")), "{words}");
    assert_eq!(fs::read_dir(other.path()).expect("ours").count(), 0, "no file is left");
    let done = command(&["store", "backup", data, &path("file"), "--accept-damage"]);
    let words = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.code() == Some(1) && words.contains(&format!("; problem: {damage}")), "{words}");
    let refused = command(&["cluster", "restore", &path("file"), "--data", &path("new")]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && words.contains(damage) && words.contains(&path("file")), "{words}");
    assert!(!Path::new(&path("new")).exists());
    let done = command(&["cluster", "restore", &path("file"), "--data", &path("new"), "--accept-damage"]);
    assert!(done.status.success(), "{done:?}");
    let again = tenbin(&["check"], Path::new(&path("new"))).printed;
    assert!(again.contains(damage), "{again}");
}

#[test]
fn backup_without_confirmed_changes_of_the_state_is_refused() {
    let stage = left_by_a_broker();
    let (journal, mut bytes) = file_with(&stage.path().join("state"), b"news/#");
    let at = position(&bytes, b"news/#");
    bytes[at] ^= 1;
    fs::write(&journal, bytes).expect("ours to write");
    let checked = tenbin(&["check"], stage.path()).printed;
    let problem = checked.lines().find_map(|line| line.strip_prefix("problem: ")).expect("a problem");
    let file = tempfile::tempdir().expect("a directory");
    let file = file.path().join("file");
    let data = stage.path().to_str().expect("a readable name");
    let refused = command(&["store", "backup", data, file.to_str().expect("a readable name")]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && words.contains(problem), "{words}");
    assert!(!file.exists());
}

#[test]
fn names_of_clients_do_not_act_on_a_terminal() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    broker.connect(lasting(ProtocolVersion::V5, "a\u{1b}[2J\u{9b}2J\u{202e}")).subscribe("a", QoS::AtLeastOnce);
    drop(broker);
    let data = stage.path().to_str().expect("a readable name");
    for listed in [command(&["sessions", "list", data]), command(&["store", "dump", data])] {
        let text = String::from_utf8(listed.stdout).expect("text");
        assert!(text.contains("\"client_id\":\"a\\u001b[2J\\u009b2J\\u202e\""), "{text:?}");
        assert!(text.lines().all(|line| !line.contains(|c: char| c.is_control() || c == '\u{202e}')), "{text:?}");
    }
}

#[test]
fn undecodable_records_are_reported_with_table_and_key() {
    let stage = left_by_a_broker();
    for table in [Table::Sessions, Table::Subscriptions, Table::Retained, Table::Wills, Table::Speeds] {
        change(stage.path(), table, b"some\nkey", &[200; 7]);
    }
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 1, "{}", checked.printed);
    let dumped = tenbin(&["dump"], stage.path());
    assert_eq!(dumped.code, 1);
    for table in ["sessions", "subscriptions", "retained", "wills", "speeds"] {
        let wanted = format!("problem: state: table {table}, key \"some\\nkey\": ");
        assert!(checked.printed.contains(&wanted), "{wanted}\n{}", checked.printed);
        let wanted = format!("{{\"record\":\"unreadable\",\"what\":\"table {table}, key \\\"some\\\\nkey\\\"\"");
        assert!(dumped.printed.contains(&wanted), "{wanted}\n{}", dumped.printed);
    }
    assert!(checked.printed.contains("version 200 is unknown"), "{}", checked.printed);
}

#[test]
fn orphaned_queues_and_illegal_numbers_are_reported() {
    let stage = left_by_a_broker();
    let before = tenbin(&["dump"], stage.path()).printed;
    let sleeper = before.lines().find(|line| line.contains("\"client_id\":\"sleeper\"")).expect("a session");
    remove(stage.path(), Table::Sessions, b"sleeper");
    let checked = tenbin(&["check"], stage.path());
    assert_eq!(checked.code, 0, "{}", checked.printed);
    for wanted in ["note: 1 queues without an owner", "note: 2 subscriptions of ended sessions"] {
        assert!(checked.printed.contains(wanted), "{wanted} is missing in\n{}", checked.printed);
    }
    let session: Value = serde_json::from_str(sleeper).expect("JSON");
    remove(stage.path(), Table::Meta, b"session numbers");
    let checked = tenbin(&["check"], stage.path());
    let wanted = "problem: state: table sessions, key \"publisher\": its number is illegal";
    assert!(session["number"].as_u64() > Some(0) && checked.printed.contains(wanted), "{}", checked.printed);
}

#[test]
fn unknown_format_versions_are_reported() {
    let stage = left_by_a_broker();
    change(stage.path(), Table::Meta, b"format version", &9_u32.to_le_bytes());
    for command in ["check", "dump"] {
        let found = tenbin(&[command], stage.path());
        assert_eq!(found.code, 2, "{}", found.printed);
        assert!(found.printed.contains("format version 9 is unknown"), "{}", found.printed);
        assert!(command == "check" || found.printed.contains("\"record\":\"queue\""), "{}", found.printed);
    }
    let stage = left_by_a_broker();
    let (path, mut bytes) = file_with(&stage.path().join("spool"), b"news/2");
    bytes[8] = 9;
    fs::write(&path, bytes).expect("ours to write");
    for command in ["check", "dump"] {
        let found = tenbin(&[command], stage.path());
        assert_eq!(found.code, 2, "{}", found.printed);
        let name = path.display().to_string();
        assert!(
            found.printed.contains("format version 9 is not known") && found.printed.contains(&name),
            "{}",
            found.printed
        );
    }
}

#[test]
fn directory_in_use_or_without_store_is_refused_in_one_line() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let missing = stage.path().join("missing");
    let other = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("ours to write");
    for command in ["check", "dump"] {
        for (path, words) in [
            (stage.path(), "another process uses it"),
            (&missing, "No such file or directory"),
            (other.path(), "this is no data directory"),
        ] {
            let refused = tenbin(&[command], path);
            assert_eq!((refused.code, &refused.printed[..]), (2, ""), "{}", refused.said);
            let name = path.display().to_string();
            assert!(
                refused.said.contains(&name) && refused.said.trim_end().ends_with(words)
                    || refused.said.contains(words)
            );
            assert_eq!(refused.said.lines().count(), 1, "{}", refused.said);
        }
    }
    assert!(!missing.exists() && fs::read_dir(other.path()).expect("ours").next().is_none(), "nothing is made");
    broker.assert_serves();
}

#[test]
fn help_lists_commands_and_wrong_arguments_exit_with_2() {
    for (arguments, words) in [
        (&["store", "--help"][..], &["check", "backup", "dump", "prune"][..]),
        (&["store", "check", "--help"], &["<DIRECTORY>"]),
        (&["store", "dump", "--help"], &["<DIRECTORY>", "--messages", "--payloads"]),
        (
            &["store", "prune", "--help"],
            &[
                "--dry-run",
                "--orphaned",
                "--user",
                "--anonymous",
                "--realm",
                "--listener",
                "--without-rule",
                "--remove",
            ],
        ),
        (&["sessions", "--help"], &["list", "remove"]),
        (&["--help"], &["store", "sessions"]),
    ] {
        let output = command(arguments);
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && words.iter().all(|word| help.contains(word)), "{arguments:?}:\n{help}");
    }
    assert_eq!(command(&["store", "check"]).status.code(), Some(2));
}

/// A directory of a killed broker with two sessions.
///
/// It holds three messages for one session (one of them in flight), an identifier in use by the other, two messages of
/// a share group, a retained message, and the Will of a client that was connected at the kill.
fn left_by_a_broker() -> DataDirectory {
    let stage = DataDirectory::new();
    let mut broker = stage.start();
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    let options = SubscriptionOptions { qos: QoS::ExactlyOnce, ..SubscriptionOptions::default() };
    sleeper.subscribe_to(Some(7), vec![Subscription { filter: filter("news/#"), options }]);
    sleeper.subscribe("$share/workers/jobs", QoS::AtLeastOnce);
    let mut publisher = broker.v5("another");
    publisher.publish("news/1", "x", QoS::AtLeastOnce);
    sleeper.receive_publish();
    sleeper.cut();
    publisher.publish("news/2", "x", QoS::ExactlyOnce);
    publisher.publish_with(with_expiry(at_qos("news/3", "x", QoS::AtLeastOnce), 600));
    publisher.publish("jobs", "x", QoS::AtLeastOnce);
    publisher.publish("jobs", "x", QoS::AtLeastOnce);
    publisher.publish_with(Publish { qos: QoS::AtLeastOnce, ..retained("kept", "much") });
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topic("gone"),
        payload: "last".into(),
        delay_interval: Some(300),
        properties: None,
    };
    let properties = ConnectProperties { session_expiry_interval: Some(600), ..ConnectProperties::default() };
    let connect = Connect::new(ProtocolVersion::V5, text("publisher"));
    let mut holds = broker.connect(Connect { properties, will: Some(will), ..connect });
    let id = PacketId::new(40_000);
    holds.send(&Packet::Publish(Publish { packet_id: id, ..at_qos("nobody", "x", QoS::ExactlyOnce) }));
    holds.wait_for_ack(PacketType::PubRec, id.expect("not 0"));
    holds.cut();
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    stage
}

struct Ran {
    code: i32,
    printed: String,
    said: String,
}

fn tenbin(arguments: &[&str], directory: &Path) -> Ran {
    let directory = directory.to_str().expect("a readable name");
    let output = command(&[&["store"], arguments, &[directory]].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran { code: output.status.code().expect("it ends"), printed: text(output.stdout), said: text(output.stderr) }
}

fn command(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenbin")).args(arguments).output().expect("the built command can be started")
}

fn dump(directory: &Path, arguments: &[&str]) -> Vec<Value> {
    let dumped = tenbin(&[&["dump"], arguments].concat(), directory);
    assert_eq!((dumped.code, &dumped.said[..]), (0, ""), "{}", dumped.printed);
    dumped.printed.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

/// All files with their content.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("ours to read") {
        let path = entry.expect("ours to read").path();
        if path.is_dir() {
            all.extend(content(&path));
        } else {
            all.insert(path.clone(), fs::read(path).expect("ours to read"));
        }
    }
    all
}

fn file_with(directory: &Path, sought: &[u8]) -> (PathBuf, Vec<u8>) {
    let holds = |(_, bytes): &(PathBuf, Vec<u8>)| bytes.windows(sought.len()).any(|bytes| bytes == sought);
    content(directory).into_iter().find(holds).expect("somewhere it is")
}

fn position(bytes: &[u8], sought: &[u8]) -> usize {
    bytes.windows(sought.len()).position(|bytes| bytes == sought).expect("it is there")
}

fn change(directory: &Path, table: Table, key: &[u8], value: &[u8]) {
    make(directory, Change { table, key, value: Some(value) });
}

fn remove(directory: &Path, table: Table, key: &[u8]) {
    make(directory, Change { table, key, value: None });
}

fn make(directory: &Path, change: Change<'_>) {
    let locked = LockedDirectory::open(directory).expect("the broker is gone");
    let state = State::open(&locked, Options::default(), |_| {}).expect("a state that a broker has left");
    assert!(state.wait(state.change([change]), Duration::from_secs(60)));
}
