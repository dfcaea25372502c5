//! Programs that run inside machines, and programs that are killed: this executable, with a variable of the environment.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenbin_lab::journal::{Journal, Undo};
use tenbin_lab::{Command, Disk, Machine, Process};

use super::{builder_in, helper};

/// Variable that selects the role, with arguments separated by spaces.
const ROLE: &str = "TENBIN_LAB_PROBE";
/// Datagrams that are on their way at most.
const BURST: u32 = 50;

/// The command of a role.
pub(crate) fn role(role: &str) -> Command {
    let this = std::env::current_exe().expect("a path");
    Command::new(this).args(["--exact", "probe::entry", "--nocapture"]).env(ROLE, role)
}

pub(crate) fn role_as_child(role: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "probe::entry", "--nocapture"]).env(ROLE, role);
    command
}

/// Starts a server that answers datagrams, and returns when it does.
pub(crate) fn echo(machine: &Machine) -> Process {
    let process = machine.spawn(&role("echo")).expect("a server");
    run(machine, "exchange 127.0.0.1 1");
    process
}

/// Figures that a role printed.
pub(crate) fn run(machine: &Machine, line: &str) -> HashMap<String, u64> {
    let output = machine.exec(&role(line)).expect("a probe");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.exit.success(), "{line}: {text} {}", String::from_utf8_lossy(&output.stderr));
    let figures = text.lines().find_map(|line| line.split_once("figures:")).expect("figures").1;
    let pairs = figures.split_whitespace().map(|figure| figure.split_once('=').expect("a figure"));
    pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

#[test]
fn entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["echo"] => serve_echo(),
        ["exchange", host, count] => exchange(host, count.parse().expect("a number")),
        ["sink"] => sink(),
        ["source", host, bytes] => source(host, bytes.parse().expect("a number")),
        ["lab", directory, mark] => hold_lab(directory.as_ref(), mark),
        ["user", directory] => user(directory.as_ref()),
        ["journal", directory, file] => hold_journal(directory.as_ref(), file.as_ref()),
        ref other => panic!("no role {other:?}"),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros() as u64
}

fn serve_echo() {
    let socket = UdpSocket::bind("0.0.0.0:7001").expect("a socket");
    let mut buffer = [0; 64];
    loop {
        let Ok((_, peer)) = socket.recv_from(&mut buffer) else { continue };
        buffer[16..24].copy_from_slice(&now().to_be_bytes());
        // Without a way back the sender repeats.
        let _ = socket.send_to(&buffer, peer);
    }
}

/// Sends numbered datagrams in bursts. After each burst it repeats a datagram until an answer comes: links keep the
/// order, so that answers of the burst are there by then.
fn exchange(host: &str, count: u32) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect((host, 7001)).expect("an address");
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let send = |number: u64| {
        let mut datagram = [0; 64];
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        datagram[8..16].copy_from_slice(&now().to_be_bytes());
        let _ = socket.send(&datagram);
    };
    let (mut seen, mut there, mut back, mut repeats) = (HashMap::<u64, u64>::new(), Vec::new(), Vec::new(), 0);
    // A link that was just made may lose the first datagrams.
    let is_up = (0..1_000).any(|_| {
        send(1 << 33);
        repeats += 1;
        socket.recv(&mut [0; 64]).is_ok()
    });
    assert!(is_up, "no answer from {host}");
    for first in (0..count).step_by(BURST as usize) {
        (first..count.min(first + BURST)).for_each(|number| send(number.into()));
        let barrier = u64::from(first) + (1 << 32);
        for attempt in 0.. {
            assert!(attempt < 1_000, "no answer from {host}");
            send(barrier);
            repeats += 1;
            let (mut buffer, mut passed) = ([0; 64], false);
            while !passed && socket.recv(&mut buffer).is_ok() {
                let at = |from: usize| u64::from_be_bytes(buffer[from..from + 8].try_into().expect("eight bytes"));
                passed = at(0) == barrier;
                if at(0) < 1 << 32 {
                    *seen.entry(at(0)).or_default() += 1;
                    there.push(at(16).saturating_sub(at(8)));
                    back.push(now().saturating_sub(at(16)));
                }
            }
            if passed {
                break;
            }
        }
    }
    let median = |times: &mut Vec<u64>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    let copies = seen.values().map(|count| count - 1).sum::<u64>();
    let (there, back) = (median(&mut there), median(&mut back));
    println!("figures: received={} copies={copies} repeats={repeats} there={there} back={back}", seen.len());
}

/// Byte number `at` of a stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Verifies one stream and answers with its length.
fn sink() {
    let listener = TcpListener::bind("0.0.0.0:7002").expect("a port");
    let (mut stream, _) = listener.accept().expect("a connection");
    let (mut buffer, mut total) = (vec![0; 1 << 16], 0);
    loop {
        let bytes = stream.read(&mut buffer).expect("bytes");
        if bytes == 0 {
            break;
        }
        assert!((total..).zip(&buffer[..bytes]).all(|(at, found)| byte(at) == *found), "wrong bytes after {total}");
        total += bytes as u64;
    }
    stream.write_all(&total.to_be_bytes()).expect("an answer");
}

fn source(host: &str, bytes: u64) {
    let mut stream = loop {
        match TcpStream::connect((host, 7002)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.write_all(&(0..bytes).map(byte).collect::<Vec<_>>()).expect("room");
    stream.shutdown(std::net::Shutdown::Write).expect("an end");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("an answer");
    println!("figures: arrived={}", u64::from_be_bytes(answer));
}

/// A lab with everything in it, until this process is killed.
fn hold_lab(directory: &Path, mark: &str) {
    let lab = builder_in(directory).start().expect("a lab");
    let one = lab.machine("one", Some(Disk::Memory { bytes: 1 << 20 })).expect("a machine");
    let two = lab.machine("two", None).expect("a machine");
    for machine in [&one, &two] {
        let script = format!("setsid sleep {mark} & (setsid setsid sleep {mark} &) ; exec sleep {mark}");
        machine.spawn(&Command::new("sh").args(["-c", &script])).expect("a process");
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(3_600));
}

/// A lab with traffic, as an ordinary user.
fn user(directory: &Path) {
    match builder_in(directory).start() {
        Ok(lab) => {
            let disk = Some(Disk::Memory { bytes: 1 << 20 });
            let [one, two] = ["one", "two"].map(|name| lab.machine(name, disk).expect("a machine"));
            let _server = echo(&two);
            assert_eq!(run(&one, "exchange two 100")["received"], 100);
            // A failed machine leaves its name and its place to the next one.
            assert!(lab.machine("three", Some(Disk::Image { bytes: 32 << 20 })).is_err());
            let three = lab.machine("three", None).expect("a machine");
            assert_eq!(run(&three, "exchange two 100")["received"], 100);
        }
        Err(tenbin_lab::Error::Namespaces(reason)) => super::skipped(reason),
        Err(error) => panic!("{error}"),
    }
    println!("ready");
}

/// A program that has changed a file, until it is killed.
fn hold_journal(directory: &Path, file: &Path) {
    let journal = Journal::open(&helper(), directory).expect("a journal");
    let content = std::fs::read_to_string(file).expect("a file");
    journal.record(Undo::Write { path: file.to_owned(), content }).expect("a record");
    let added = file.with_extension("added");
    journal.record(Undo::Remove { path: added.clone() }).expect("a record");
    std::fs::write(file, "changed").expect("a change");
    std::fs::write(added, "added").expect("a file");
    println!("ready");
    std::thread::sleep(Duration::from_secs(3_600));
}
