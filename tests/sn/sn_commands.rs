//! `tenbin sn`, against a scripted gateway on a UDP socket.

use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// More datagrams than a test sends.
const DATAGRAMS: usize = 1000;

/// A gateway that accepts everything, and the datagrams that it received.
struct ScriptedGateway {
    address: String,
    received: Receiver<Vec<u8>>,
}

impl ScriptedGateway {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("an address").to_string();
        let (sender, received) = sync_channel(DATAGRAMS);
        thread::spawn(move || serve(&socket, &sender));
        Self { address, received }
    }

    fn next(&self) -> Vec<u8> {
        self.received.recv_timeout(LONG).expect("a datagram")
    }
}

fn serve(socket: &UdpSocket, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = [0; 2048];
    let mut messages = 0;
    while let Ok((size, client)) = socket.recv_from(&mut buffer) {
        let datagram = &buffer[..size];
        let id = |at: usize| [datagram[at], datagram[at + 1]];
        let mut answers: Vec<Vec<u8>> = Vec::new();
        let mut message = || {
            messages += 1;
            [&b"\x08\x0C\x02xy\0\0"[..], &[b'0' + messages]].concat()
        };
        match datagram[1] {
            0x01 => answers.push(b"\x03\x02\x09".to_vec()),
            0x04 => answers.push(b"\x03\x05\x00".to_vec()),
            0x0A => answers.push([&b"\x07\x0B\x00\x05"[..], &id(4), b"\x00"].concat()),
            0x0C if datagram[2] & 0x60 == 0x20 => {
                answers.push([&b"\x07\x0D"[..], &id(3), &id(5), b"\x00"].concat());
            }
            0x0C if datagram[2] & 0x60 == 0x40 => answers.push([&b"\x04\x0F"[..], &id(5)].concat()),
            0x10 => answers.push([&b"\x04\x0E"[..], &id(2)].concat()),
            0x12 if datagram.ends_with(b"refused") => {
                answers.push([&b"\x08\x13\x00\x00\x00"[..], &id(3), b"\x03"].concat());
            }
            0x12 => {
                answers.push([&b"\x08\x13\x00\x00\x00"[..], &id(3), b"\x00"].concat());
                answers.extend([message(), message()]);
            }
            0x16 => answers.extend([message(), b"\x02\x17".to_vec()]),
            0x18 => answers.push(b"\x02\x18".to_vec()),
            _ => {}
        }
        if sender.send(datagram.to_vec()).is_err() {
            return;
        }
        for answer in answers {
            socket.send_to(&answer, client).expect("a client");
        }
    }
}

fn sn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenbin")).arg("sn").args(arguments).output().expect("the program runs")
}

/// Standard output of a command that succeeds.
fn success(arguments: &[&str]) -> String {
    let output = sn(arguments);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    out.into_owned()
}

/// Standard error of a command that fails with this exit code.
fn failure(code: i32, arguments: &[&str]) -> String {
    let output = sn(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    error.into_owned()
}

#[test]
fn pub_sends_each_qos_and_form_of_topic() {
    let gateway = ScriptedGateway::start();
    let publish = |arguments: &[&str]| {
        let common = ["pub", "--gateway", &gateway.address, "-m", "hi"];
        success(&[&common, arguments].concat());
    };
    publish(&["-t", "a/b", "-q", "1", "-r", "--id", "c"]);
    assert_eq!(gateway.next(), b"\x07\x04\x04\x01\x00\x3Cc");
    assert_eq!(gateway.next(), b"\x09\x0A\x00\x00\x00\x01a/b");
    assert_eq!(gateway.next(), b"\x09\x0C\x30\x00\x05\x00\x02hi");
    assert_eq!(gateway.next(), b"\x02\x18");
    publish(&["-T", "7", "-q", "2", "--id", "c", "--will-topic", "gone", "--will-message", "bye"]);
    assert_eq!(gateway.next(), b"\x07\x04\x0C\x01\x00\x3Cc");
    assert_eq!(gateway.next(), b"\x09\x0C\x41\x00\x07\x00\x01hi");
    assert_eq!(gateway.next(), b"\x04\x10\x00\x01");
    assert_eq!(gateway.next(), b"\x02\x18");
    publish(&["-s", "xy", "-q", "-1"]);
    assert_eq!(gateway.next(), b"\x09\x0C\x62xy\x00\x00hi");
}

#[test]
fn sub_prints_messages_until_there_are_enough() {
    let gateway = ScriptedGateway::start();
    let printed = success(&["sub", "--gateway", &gateway.address, "-t", "a/#", "-C", "2", "-v", "--id", "c"]);
    assert_eq!(printed, "xy 1\nxy 2\n");
    assert_eq!(gateway.next(), b"\x07\x04\x04\x01\x00\x3Cc");
    assert_eq!(gateway.next(), b"\x08\x12\x00\x00\x01a/#");
    assert_eq!(gateway.next(), b"\x02\x18");
}

#[test]
fn sleeping_sub_fetches_messages_at_each_wake() {
    let gateway = ScriptedGateway::start();
    let arguments = ["sub", "--gateway", &gateway.address, "-s", "xy", "-C", "4", "--sleep", "200ms", "--id", "c"];
    assert_eq!(success(&arguments), "1\n2\n3\n4\n");
    let kinds: Vec<_> = gateway.received.try_iter().map(|datagram| datagram[1]).collect();
    assert_eq!(kinds, [0x04, 0x12, 0x18, 0x16, 0x16, 0x18]);
}

#[test]
fn stopped_sub_says_goodbye() {
    let gateway = ScriptedGateway::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenbin"));
    let mut running = command
        .args(["sn", "sub", "--gateway", &gateway.address, "-t", "a"])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    while gateway.next()[1] != 0x12 {}
    let killed = Command::new("kill").args(["-TERM", &running.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    assert_eq!(gateway.next(), b"\x02\x18");
    assert!(running.wait().expect("it ends").success());
}

#[test]
fn search_prints_the_gateways_address_and_id() {
    let gateway = ScriptedGateway::start();
    assert_eq!(success(&["search", "--gateway", &gateway.address]), format!("{} id 9\n", gateway.address));
    let absent = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("an address").to_string();
    let error = failure(1, &["search", "--gateway", &absent, "--wait", "100ms"]);
    assert!(error.contains(&absent), "{error}");
}

#[test]
fn errors_name_gateway_and_topic() {
    let gateway = ScriptedGateway::start();
    let address = &gateway.address;
    let unused = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("an address").to_string();
    for (code, named, arguments) in [
        (1, &unused[..], &["pub", "--gateway", &unused, "-t", "a", "-m", "", "--retry", "100ms"][..]),
        (1, "a/+", &["pub", "--gateway", address, "-t", "a/+", "-m", ""]),
        (1, "refused", &["sub", "--gateway", address, "-t", "refused"]),
        (1, "a/b", &["pub", "--gateway", address, "-t", "a/b", "-m", "", "-q", "-1"]),
        (1, "--id", &["pub", "--gateway", address, "-s", "xy", "-m", "", "-q", "-1", "--id", "c"]),
        (2, "xyz", &["sub", "-s", "xyz"]),
        (2, "-q", &["sub", "-t", "a", "-q", "3"]),
        (2, "--topic", &["sub"]),
    ] {
        let error = failure(code, arguments);
        assert!(error.contains(named), "{named}: {error}");
    }
}
