//! HTTP ingest of `tenbin broker`: the commands of `docs/HTTP.md` by curl, and its listeners.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE};
use tenbin_codec::QoS;

/// Lines of the page's block of commands.
fn lines() -> &'static str {
    let page = include_str!("../../docs/HTTP.md");
    let block = page.split_once("```sh\n").expect("a block").1;
    block.split_once("```").expect("its end").0
}

fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--help").output().is_ok();
    assert!(is_there || std::env::var_os("CI").is_none(), "{program} is not installed");
    is_there
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port().to_string()
}

/// Runs the commands with other ports; the broker ends with the shell. Each command prints its comment in the page.
#[test]
fn commands_of_the_page_print_their_answers() {
    if !is_installed("curl") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("tenbin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tenbin"), program).expect("a link");
    let lines = lines().replace("1883", &free_port()).replace("8080", &free_port());
    let script = format!("set -e\ntrap 'kill %1' EXIT\nexport PATH=\"$PWD:$PATH\"\n{lines}");
    let done = Command::new("bash").args(["-c", &script]).current_dir(directory.path()).output().expect("a shell");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    let promised: Vec<_> = lines.lines().filter_map(|line| line.split_once("# {")).map(|(_, rest)| rest).collect();
    assert_eq!(promised.len(), 3);
    for answer in promised {
        assert!(out.contains(&format!("{{{answer}")), "{answer} is not in:\n{out}\n{err}");
    }
}

const GUARDED: &str = r##"
listen = ["127.0.0.1:0"]
[[listeners]]
transport = "http"
address = "127.0.0.1:0"
name = "web"
user = "sensors"
[[acl]]
user = "sensors"
allow = "publish"
topic = "sensors/#"
[[acl]]
listener = "127.0.0.1:0"
allow = "all"
topic = "#"
"##;

/// Address of the broker's HTTP listener.
fn http_address(broker: &BrokerProcess) -> String {
    let line = broker.wait_for_start_line("HTTP ingest");
    let address = line.split_once("http://").and_then(|(_, rest)| rest.split('/').next());
    address.unwrap_or_else(|| panic!("an address: {line}")).to_owned()
}

/// Publishes a message, and returns the whole answer.
fn post(address: &str, topic: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let request =
        format!("POST /topics/{topic} HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn listener_gives_its_clients_a_user_with_rights() {
    let file = ConfigFile::new(GUARDED);
    let broker = BrokerProcess::start_exactly(&["--config", file.path()]);
    let mut backend = broker.v5("backend");
    backend.subscribe("#", QoS::AtMostOnce);
    let address = http_address(&broker);
    let refused = post(&address, "other");
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("other"), "{refused}");
    let published = post(&address, "sensors/1");
    assert!(published.starts_with("HTTP/1.1 204 "), "{published}");
    let message = backend.receive_message();
    assert_eq!((message.topic.text().as_str(), &message.payload[..]), ("sensors/1", &b"hi"[..]));
}

#[test]
fn broker_with_http_clients_stops_in_order() {
    let mut broker = BrokerProcess::start(&["--http", "127.0.0.1:0"]);
    let address = http_address(&broker);
    assert!(post(&address, "a").starts_with("HTTP/1.1 204 "));
    let mut idle = TcpStream::connect(&address).expect("it listens");
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    assert_eq!(idle.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn keys_that_http_does_not_have_are_named() {
    for (key, word) in [
        ("address = \"8080\"", "address"),
        ("address = \"127.0.0.1:0\"\nproxy_from = [\"10.0.0.0/8\"]", "proxy_from"),
        ("address = \"127.0.0.1:0\"\n[listeners.sn]\nretry_seconds = 5", "sn"),
        ("address = \"127.0.0.1:0\"\npath = \"/topics\"", "path"),
        ("address = \"192.0.2.1:1\"", "192.0.2.1:1"),
    ] {
        let listener = format!("[[listeners]]\ntransport = \"http\"\nname = \"web\"\nanonymous = true\n{key}\n");
        let file = ConfigFile::new(&listener);
        let (status, lines) = BrokerProcess::fail_to_start(&["--config", file.path()]);
        let all = lines.join("\n");
        assert!(!status.success() && all.contains("web") && all.contains(word), "{key}: {all}");
    }
}

/// Runs a load over HTTP, whose subscriber is at the broker's MQTT port; the verdict is the command's.
fn load(arguments: &[&str]) -> (bool, String) {
    let broker = BrokerProcess::start(&["--http", "127.0.0.1:0"]);
    let (http, mqtt) = (http_address(&broker), broker.address().to_string());
    let arguments = arguments.iter().map(|&argument| if argument == "MQTT" { &mqtt[..] } else { argument });
    let done = Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(["loadgen", "run", "--protocol", "http", "--broker", &http, "--publishers", "4", "--messages", "100"])
        .args(["--topic", "plant/{publisher}", "--assert", "lost=0,duplicated=0,out_of_order=0,expected=400"])
        .args(arguments)
        .output()
        .expect("the program runs");
    (
        done.status.success(),
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)),
    )
}

#[test]
fn load_passes_from_http_to_mqtt() {
    for more in [&["--qos", "0"][..], &["--qos", "1"], &["--qos", "2", "--connection-per-request"]] {
        let (is_success, said) = load(&[more, &["--mqtt-broker", "MQTT"]].concat());
        assert!(is_success, "{more:?}: {said}");
    }
}

#[test]
fn load_over_http_needs_a_broker_for_its_subscribers() {
    let (is_success, said) = load(&["--qos", "1"]);
    assert!(!is_success && said.contains("--mqtt-broker"), "{said}");
}
