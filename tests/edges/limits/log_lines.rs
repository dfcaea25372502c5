//! Log lines that clients cause.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tenbin_codec::{QoS, ReasonCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, hex};

fn logging_broker(config: &str) -> BrokerProcess {
    let file = ConfigFile::new(config);
    BrokerProcess::start(&["--config", file.path(), "--log", "debug"])
}

/// Sends an illegal first packet, `times` times, and waits until the broker has closed each connection.
fn send_junk(broker: &BrokerProcess, from: Ipv4Addr, times: usize) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        for _ in 0..times {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((from, 0).into()).expect("a loopback address");
            let mut stream = socket.connect(broker.address()).await.expect("the broker listens");
            stream.write_all(&hex("10 FF FF FF FF 00")).await.expect("the broker reads");
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
}

fn lines(broker: &BrokerProcess, words: &[&str]) -> Vec<String> {
    let mut lines = broker.log().all();
    lines.retain(|line| words.iter().all(|word| line.contains(word)));
    lines
}

/// The number in the field `lines`.
fn counted(line: &str) -> usize {
    line.split_once("lines=")
        .and_then(|(_, rest)| rest.split(' ').next())
        .and_then(|number| number.parse().ok())
        .expect(line)
}

#[test]
fn long_texts_of_clients_are_cut_in_log_lines() {
    let broker = logging_broker("[sessions]\nclient_id_bytes_maximum = 65535\n[[acl]]\ndeny = \"all\"\ntopic = \"#\"");
    let (id, long) = ("i".repeat(60_000), "t".repeat(60_000));
    let mut client = broker.v5(&id);
    assert_eq!(client.publish(&long, "", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    client.send_bytes(&hex("36 00"));
    client.expect_end(ReasonCode::MalformedPacket);
    broker.v5(&"\u{1F}".repeat(60_000)).settle();
    let cut = |name: &str, letter: &str| format!("{name}=\"{}…\" (60000 bytes)", letter.repeat(128));
    broker.log().wait_for(&["connected", &cut("client", "i")], PATIENCE);
    broker.log().wait_for(&["publish denied", &cut("client", "i"), &cut("topic", "t")], PATIENCE);
    broker.log().wait_for(&["MQTT-3.3.1-4", &cut("client", "i")], PATIENCE);
    broker.log().wait_for(&["connected", "client=\"\\u{1f}"], PATIENCE);
    let longest = broker.log().all().iter().map(String::len).max().unwrap_or_default();
    assert!(longest < 1000, "{longest} bytes in one line");
}

#[test]
fn length_of_texts_in_the_log_is_configurable() {
    let broker = logging_broker("[log]\ntext_characters_maximum = 16");
    broker.v5(&"c".repeat(17)).settle();
    broker.v5(&"d".repeat(16)).settle();
    broker.log().wait_for(&["connected", &format!("client=\"{}…\" (17 bytes)", "c".repeat(16))], PATIENCE);
    broker.log().wait_for(&["connected", &format!("client=\"{}\" ", "d".repeat(16))], PATIENCE);
}

#[test]
fn junk_of_one_address_is_counted_instead_of_logged() {
    let broker = logging_broker("[sys]\ninterval_seconds = 1");
    let (junk, other) = (Ipv4Addr::new(127, 0, 5, 1), Ipv4Addr::new(127, 0, 5, 2));
    let began = Instant::now();
    send_junk(&broker, junk, 400);
    let most = 10 * (began.elapsed().as_secs() as usize + 2);
    send_junk(&broker, other, 1);
    broker.log().wait_for(&["no legal CONNECT", "peer=127.0.5.2:"], PATIENCE);
    // Suppressed lines are reported when the address is quiet.
    let words = ["WARN", "log lines suppressed", "address=127.0.5.1"];
    broker.log().wait_for(&words, PATIENCE);
    let until = Instant::now() + PATIENCE;
    loop {
        let written = lines(&broker, &["no legal CONNECT", "peer=127.0.5.1:"]).len();
        let suppressed = lines(&broker, &words).iter().map(|line| counted(line)).sum::<usize>();
        assert!((10..=most.min(399)).contains(&written), "{written} lines");
        if written + suppressed == 400 {
            assert!(wait_for_suppressed(&broker, suppressed), "$SYS counts {suppressed}");
            return;
        }
        assert!(Instant::now() < until, "{written} written, {suppressed} suppressed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn suppressed_lines_are_summed_up_when_the_broker_stops() {
    let mut broker = logging_broker("[log]\nlines_per_second_per_address = 1");
    let junk = Ipv4Addr::new(127, 0, 5, 3);
    send_junk(&broker, junk, 200);
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
    let log = broker.log().to_end(PATIENCE);
    let written = log.iter().filter(|line| line.contains("no legal CONNECT")).count();
    let suppressed = log.iter().filter(|line| line.contains("log lines suppressed")).map(|line| counted(line));
    let suppressed = suppressed.sum::<usize>();
    assert!(suppressed > 0 && written + suppressed == 200, "{suppressed} suppressed:\n{}", log.join("\n"));
}

/// Waits until `$SYS/broker/log/suppressed` has this value. Returns whether it did.
fn wait_for_suppressed(broker: &BrokerProcess, expected: usize) -> bool {
    let mut reader = broker.v5("reader");
    reader.subscribe("$SYS/broker/log/suppressed", QoS::AtMostOnce);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if reader.receive_publish().payload == expected.to_string() {
            return true;
        }
    }
    false
}

/// Lines without the field `peer` in code that serves peers: of the start, of files and of the system. Each kind has a bound.
const WITHOUT_PEER: [&str; 11] = [
    "accept failed",
    "cannot accept a connection",
    "its other addresses are open",
    "cannot restore the rights of a unix socket",
    "the kernel does not report unread bytes",
    "cannot be read: they stay on disk",
    "two messages under way have one identifier",
    "cannot use the fetched keys",
    "cannot fetch the keys",
    "token file removed",
    "keeping the old tokens",
];

#[test]
fn lines_of_connections_name_their_peer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let mut files = Vec::new();
    for directory in ["broker/src/net", "broker/src/auth", "http-ingest/src", "admin/src"] {
        collect(&root.join(directory), &mut files);
    }
    let mut nameless = Vec::new();
    let mut lines = 0;
    // They work at the start and at reloads.
    files.retain(|path| !path.ends_with("auth/realms.rs") && !path.ends_with("net/tls/loaded.rs"));
    for path in &files {
        let text = std::fs::read_to_string(path).expect("text in UTF-8");
        for level in ["warn!(", "info!(", "error!("] {
            for (at, _) in text.match_indices(level) {
                lines += 1;
                let call = call(&text[at..]);
                let is_allowed = call.contains("peer") || WITHOUT_PEER.iter().any(|words| call.contains(words));
                if !is_allowed {
                    nameless.push(format!("{}: {call}", path.display()));
                }
            }
        }
    }
    assert!(lines > 30, "the tree is read: {lines}");
    assert!(nameless.is_empty(), "log lines without the field `peer`:\n{}", nameless.join("\n"));
}

/// The macro call that a text begins with.
fn call(text: &str) -> &str {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 1 => return &text[..=at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    text
}

/// All Rust files below a directory.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
