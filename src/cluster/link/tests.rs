use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::json;
use tenbin_broker::RelayedStream;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::listen::{Accepted, ClusterPort};
use super::unclassified::UNCLASSIFIED_MAX;
use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn record() -> StoredRecord {
    let (leader, follower) = ("a".to_owned(), Some("b".to_owned()));
    StoredRecord { epoch: 7, leader, follower, nonce: 1 << 60, ..StoredRecord::default() }
}

fn hello(cluster: &str, kind: HelloKind) -> Hello {
    let (cluster, node, version) = (cluster.to_owned(), "b".to_owned(), "0.2.0".to_owned());
    Hello {
        protocol: PROTOCOL,
        cluster,
        node,
        kind,
        epoch: 7,
        may_take_over: true,
        may_join: true,
        is_first: false,
        directory: 0,
        process: 0,
        version,
        to: None,
        reads: Readable::OWN,
        ports: Default::default(),
    }
}

/// A link whose other end sends these bytes, and closes.
async fn receives(bytes: &[u8]) -> LinkReader<DuplexStream, FromLeader> {
    let (mut far, near) = duplex(1 << 20);
    far.write_all(bytes).await.expect("there is room");
    LinkReader::new(near)
}

#[tokio::test]
async fn messages_arrive_whole_and_in_order() {
    let (far, near) = duplex(16);
    let beacon = |number| FromLeader::Beacon { number, record: record(), clock_ms: 5, takes_clients: true };
    let sender = tokio::spawn(async move {
        let mut writer = LinkWriter::new(far);
        for number in 0..50 {
            writer.send(&beacon(number)).await.expect("the reader reads");
        }
        writer.send(&FromLeader::Farewell).await.expect("the reader reads");
    });
    let mut reader = LinkReader::<_, FromLeader>::new(near);
    for number in 0..50 {
        // Cancelled reads lose nothing.
        let message = loop {
            tokio::select! {
                biased;
                message = reader.next() => break message,
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(message.expect("a message"), beacon(number));
    }
    assert_eq!(reader.next().await.expect("a message"), FromLeader::Farewell);
    assert!(matches!(reader.next().await, Err(LineError::Closed)));
    sender.await.expect("no panic");
}

#[tokio::test]
async fn messages_and_keys_of_newer_versions_are_ignored() {
    let lines = "{\"type\":\"dance\",\"steps\":[1,2]}\n{\"type\":\"beacon\",\"number\":3,\"new\":1,\"record\":{\"epoch\":7,\"leader\":\"a\",\
                 \"follower\":\"b\",\"nonce\":1152921504606846976,\"colour\":\"red\"}}\n";
    let mut reader = receives(lines.as_bytes()).await;
    assert_eq!(reader.next().await.expect("a message"), FromLeader::Unknown);
    let beacon = FromLeader::Beacon { number: 3, record: record(), clock_ms: 0, takes_clients: true };
    assert_eq!(reader.next().await.expect("a message"), beacon);
    let newer: Hello = serde_json::from_value(json!({
        "protocol": 1, "cluster": "c", "node": "b", "kind": "teleport", "epoch": 1, "version": "9", "colour": "red",
    }))
    .expect("a hello");
    assert_eq!(newer.kind, HelloKind::Unknown);
}

#[tokio::test]
async fn hostile_lines_are_errors() {
    let long = [b'x'; lines::LINE_BYTES_MAX + 1];
    let mut reader = receives(&long).await;
    assert!(matches!(reader.next().await, Err(LineError::TooLong(lines::LINE_BYTES_MAX))));
    let mut reader = receives(&[&long[..], b"\n"].concat()).await;
    assert!(matches!(reader.next().await, Err(LineError::TooLong(_))));
    let mut reader = receives(b"\xFF\xFE\n").await;
    assert!(matches!(reader.next().await, Err(LineError::NotText)));
    let huge = format!("{{\"type\":\"beacon\",\"number\":1,\"record\":{{\"epoch\":{}0}}}}\n", u64::MAX);
    for line in [
        "\n",
        "7\n",
        "[]\n",
        "{}\n",
        "{\"type\":\"beacon\"}\n",
        "{\"type\":7}\n",
        &huge,
        &format!("{}\n", "[".repeat(60_000)),
    ] {
        let mut reader = receives(line.as_bytes()).await;
        assert!(matches!(reader.next().await, Err(LineError::Malformed(_))), "{line:.50}");
    }
    let mut reader = receives(b"{\"type\"").await;
    assert!(matches!(reader.next().await, Err(LineError::Cut)));
}

#[tokio::test]
async fn silence_is_an_error_and_loses_nothing() {
    let (mut far, near) = duplex(1024);
    let mut reader = LinkReader::<_, FromStandby>::new(near);
    far.write_all(b"{\"type\":\"ans").await.expect("there is room");
    assert!(timeout(Duration::from_millis(20), reader.next()).await.is_err());
    far.write_all(b"wer\",\"number\":3}\n").await.expect("there is room");
    let answer = timeout(PATIENCE, reader.next()).await.expect("in time").expect("a message");
    assert_eq!(answer, FromStandby::Answer { number: 3, is_marked: false, clock_ms: 0 });
}

/// Opens a cluster port, which passes accepted connections on.
async fn port(plain_from: &str) -> (SocketAddr, mpsc::Receiver<Accepted>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let plain_from = vec![plain_from.parse().expect("a network")];
    let port = ClusterPort { cluster: "c".to_owned(), plain_from, refusals: Arc::default(), tls: None };
    let (sender, accepted) = mpsc::channel(100);
    tokio::spawn(port.serve(listener, move |connection| sender.try_send(connection).expect("there is room")));
    (address, accepted)
}

async fn accepted(connections: &mut mpsc::Receiver<Accepted>) -> Accepted {
    timeout(PATIENCE, connections.recv()).await.expect("in time").expect("the port is open")
}

/// Waits until the other side has closed, and returns its bytes.
async fn last_bytes(mut stream: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection ends");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn port_tells_nodes_from_relayed_clients() {
    let (address, mut connections) = port("127.0.0.0/8").await;
    let header = tenbin_broker::write_relay_header(address, address, "tcp", false);
    let mut relayed = TcpStream::connect(address).await.expect("the port is open");
    relayed.write_all(&header[..1]).await.expect("it reads");
    let Accepted::Relayed(RelayedStream::Plain(mut stream)) = accepted(&mut connections).await else {
        panic!("no relayed client")
    };
    relayed.write_all(&header[1..]).await.expect("it reads");
    let mut read = vec![0; header.len()];
    stream.read_exact(&mut read).await.expect("the header is unread");
    assert_eq!(read, header);

    let dialled =
        tokio::spawn(async move { dial(&address.to_string(), None, &hello("c", HelloKind::Log), PATIENCE).await });
    let Accepted::Node(said, mut stream) = accepted(&mut connections).await else { panic!("no node") };
    assert_eq!(said, hello("c", HelloKind::Log));
    let (node, version) = ("a".to_owned(), "0.2.0".to_owned());
    let welcome = Welcome { node, version, record: Some(record()), formats: Formats::OWN, admin: None };
    lines::write(&mut stream, &HelloAnswer::Welcome(welcome.clone())).await.expect("it reads");
    stream.write_all(b"first bytes of the mirror").await.expect("it reads");
    drop(stream);
    let (stream, answer) = dialled.await.expect("no panic").expect("welcome");
    assert_eq!(answer, welcome);
    assert_eq!(last_bytes(stream).await, "first bytes of the mirror");

    let asked = tokio::spawn(async move { ask_status(&address.to_string(), None, PATIENCE).await });
    let Accepted::Node(Hello { kind: HelloKind::Status, .. }, mut stream) = accepted(&mut connections).await else {
        panic!("no question for the status")
    };
    let status = json!({ "role": "leader", "text": "x".repeat(10_000) });
    lines::write(&mut stream, &HelloAnswer::Status { status: status.clone() }).await.expect("it reads");
    assert_eq!(asked.await.expect("no panic").expect("a status"), status);
}

#[tokio::test]
async fn port_refuses_strangers_with_a_reason() {
    let (address, mut connections) = port("127.0.0.0/8").await;
    let address = address.to_string();
    let newer = Hello { protocol: 2, ..hello("c", HelloKind::Link) };
    for (hello, part) in [
        (hello("d", HelloKind::Link), "belongs to the cluster \"c\""),
        (hello("", HelloKind::Link), "belongs to the cluster"),
        (newer, "protocol 2"),
    ] {
        match dial(&address, None, &hello, PATIENCE).await {
            Err(DialError::Refused { reason, .. }) => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x10\x0Cxxxxxxx", b"{\"protocol\":\n", &[b'{'; HELLO_BYTES_MAX + 2]]
    {
        let mut stream = TcpStream::connect(&address).await.expect("the port is open");
        stream.write_all(garbage).await.expect("it reads");
        assert_eq!(last_bytes(stream).await, "");
    }
    assert!(connections.try_recv().is_err(), "nothing was passed on");
    let (closed, _) = port("192.0.2.0/24").await;
    let stream = TcpStream::connect(closed).await.expect("the port is open");
    assert_eq!(last_bytes(stream).await, "");
}

#[tokio::test]
async fn silent_connections_make_room_for_nodes() {
    let (address, mut connections) = port("127.0.0.0/8").await;
    let mut silent = Vec::new();
    tenbin_broker::raise_descriptor_limit().expect("1,000 descriptors");
    // A node whose network is slow.
    let mut slow = from("127.0.0.2", address).await;
    for _ in 0..UNCLASSIFIED_MAX + 20 {
        silent.push(TcpStream::connect(address).await.expect("the port is open"));
    }
    let began = Instant::now();
    let mut relayed = TcpStream::connect(address).await.expect("the port is open");
    relayed.write_all(b"\r").await.expect("it reads");
    assert!(matches!(accepted(&mut connections).await, Accepted::Relayed(_)));
    assert!(began.elapsed() < Duration::from_secs(2), "it waits for the silent ones");
    assert_eq!(last_bytes(silent.swap_remove(0)).await, "", "the oldest one has made room");
    slow.write_all(b"\r").await.expect("another address has made room");
    assert!(matches!(accepted(&mut connections).await, Accepted::Relayed(_)));
    // The others end by the deadline.
    assert_eq!(last_bytes(silent.pop().expect("one")).await, "");
}

/// A connection from another address of this machine.
async fn from(own: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((own.parse::<IpAddr>().expect("an address"), 0).into()).expect("all of 127.0.0.0/8 is this machine");
    socket.connect(address).await.expect("the port is open")
}

#[tokio::test]
async fn dial_tells_why_it_fails() {
    let [port] = crate::cluster::etcd_server::free_ports().expect("a port");
    let refused = dial(&format!("127.0.0.1:{port}"), None, &hello("c", HelloKind::Link), PATIENCE).await;
    assert!(matches!(refused, Err(DialError::Connect(_, error)) if error.kind() == io::ErrorKind::ConnectionRefused));
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address").to_string();
    let unanswered = dial(&address, None, &hello("c", HelloKind::Link), Duration::from_millis(100)).await;
    assert!(matches!(unanswered, Err(DialError::Line(_, LineError::Silent(_)))), "{unanswered:?}");
}

#[tokio::test]
async fn only_refusals_that_stay_are_lasting() {
    let refuse = async |answer: &str| {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = port.local_addr().expect("an address").to_string();
        let answer = answer.to_owned();
        tokio::spawn(async move {
            let (mut stream, _) = port.accept().await.expect("a node");
            lines::read_exact_line::<_, Hello>(&mut stream, HELLO_BYTES_MAX).await.expect("a hello");
            stream.write_all(answer.as_bytes()).await.expect("it reads");
        });
        dial(&address, None, &hello("c", HelloKind::Link), PATIENCE).await.expect_err("it refuses")
    };
    let early = r#"{"type":"refused","reason":"this node does not lead","not_leading":true}"#;
    assert!(!refuse(&format!("{early}\n")).await.is_lasting(), "a node that knows no record yet");
    assert!(refuse("{\"type\":\"refused\",\"reason\":\"no\"}\n").await.is_lasting());
    // As a node closes connections without a certificate of the cluster, or from addresses beside `plain_from`.
    assert!(refuse("").await.is_lasting());
    let [port] = crate::cluster::etcd_server::free_ports().expect("a port");
    let down = dial(&format!("127.0.0.1:{port}"), None, &hello("c", HelloKind::Link), PATIENCE).await;
    assert!(!down.expect_err("nothing listens").is_lasting());
}
