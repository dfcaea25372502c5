//! `/api/v1/trace`: packets as they come and go.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::Value;
use tenbin_codec::QoS;

use crate::admin::stage::{Stage, json, wait_until};
use crate::support::PATIENCE;

/// A trace that runs; dropping it closes its connection.
struct Trace {
    stream: BufReader<TcpStream>,
    /// Everything received.
    text: String,
}

impl Trace {
    /// Begins a trace, and waits until it runs.
    fn begin(stage: &Stage, query: &str) -> Self {
        let mut stream = TcpStream::connect(stage.admin).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a legal timeout");
        let (admin, token) = (stage.admin, &stage.token);
        let request =
            format!("GET /api/v1/trace?{query} HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut trace = Self { stream: BufReader::new(stream), text: String::new() };
        assert!(trace.next()["packet"].is_null(), "first it tells that it runs: {}", trace.text);
        trace
    }

    /// Data of the next event.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).expect("a line") > 0, "it ended: {}", self.text);
            self.text += &line;
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }

    /// The next `count` packets: direction and type.
    fn packets(&mut self, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Direction and type of packets.
fn kinds(packets: &[Value]) -> Vec<String> {
    let text = |packet: &Value, key: &str| packet[key].as_str().unwrap_or_default().to_owned();
    packets.iter().map(|packet| format!("{} {}", text(packet, "direction"), text(packet, "packet"))).collect()
}

#[test]
fn packets_of_a_client_come_in_order_without_payloads() {
    let stage = Stage::start(&[]);
    let mut other = stage.broker.v5("other");
    // It begins before the client comes.
    let mut trace = Trace::begin(&stage, "client=watched");
    let mut watched = stage.broker.v5("watched");
    watched.subscribe("a/+", QoS::ExactlyOnce);
    assert_eq!(kinds(&trace.packets(4)), ["in CONNECT", "out CONNACK", "in SUBSCRIBE", "out SUBACK"]);
    // A second trace begins later and sees the same packets from there on.
    let mut late = Trace::begin(&stage, "client=watched");
    other.publish("a/1", "SECRET", QoS::AtMostOnce);
    watched.receive_message();
    other.publish("a/2", "SECRET", QoS::AtLeastOnce);
    watched.receive_message();
    watched.publish("b", "SECRET", QoS::ExactlyOnce);
    watched.disconnect();
    let seen = trace.packets(8);
    let expected = [
        "out PUBLISH",
        "out PUBLISH",
        "in PUBACK",
        "in PUBLISH",
        "out PUBREC",
        "in PUBREL",
        "out PUBCOMP",
        "in DISCONNECT",
    ];
    assert_eq!(kinds(&seen), expected);
    let first = &seen[0];
    assert_eq!((&first["client"], &first["topic"], &first["qos"]), (&"watched".into(), &"a/1".into(), &0.into()));
    // Fixed header, topic with its length, property length, payload.
    assert_eq!((&first["bytes"], &first["packet_id"]), (&Value::from(2 + 5 + 1 + 6), &Value::Null), "{first}");
    assert_eq!((&seen[1]["qos"], &seen[1]["packet_id"]), (&1.into(), &seen[2]["packet_id"]));
    assert_eq!((&seen[2]["reason"], &seen[3]["topic"]), (&0.into(), &"b".into()));
    assert_eq!(&seen[3]["bytes"], &Value::from(2 + 3 + 2 + 1 + 6), "{}", seen[3]);
    assert_eq!(kinds(&late.packets(8)), expected);
    assert!(!trace.text.contains("SECRET") && !trace.text.contains("other"), "{}", trace.text);
}

#[test]
fn messages_of_a_topic_come_of_all_clients() {
    let stage = Stage::start(&[]);
    let [mut publisher, mut receiver] = ["publisher", "receiver"].map(|name| stage.broker.v5(name));
    receiver.subscribe("#", QoS::AtLeastOnce);
    let mut trace = Trace::begin(&stage, "topic=jobs/%2B");
    let answered = |id: &str| stage.get_json(&format!("/api/v1/clients/{id}"))["client"].is_string();
    // The answer of a connection comes after it has found the trace.
    assert!(answered("publisher") && answered("receiver"));
    for topic in ["other", "jobs/1", "jobs/1/2", "jobs/2"] {
        publisher.publish(topic, "SECRET", QoS::AtLeastOnce);
        receiver.receive_message();
    }
    let seen: Vec<_> = trace
        .packets(4)
        .iter()
        .map(|packet| {
            let [direction, client, topic] =
                ["direction", "client", "topic"].map(|key| packet[key].as_str().unwrap_or(""));
            format!("{direction} {client} {topic}")
        })
        .collect();
    let expected = ["in publisher jobs/1", "out receiver jobs/1", "in publisher jobs/2", "out receiver jobs/2"];
    assert_eq!(seen, expected);
    assert!(!trace.text.contains("SECRET"));
}

#[test]
fn ninth_trace_is_refused_until_a_reader_goes() {
    let stage = Stage::start(&[]);
    let mut traces: Vec<_> = (0..8).map(|_| Trace::begin(&stage, "client=a")).collect();
    let ninth = stage.get("/api/v1/trace?client=b");
    assert_eq!((ninth.status, ninth.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(json(&ninth)["status"], 429);
    traces.pop();
    wait_until(|| {
        // Its answer never ends, so that only its begin is read.
        let mut stream = TcpStream::connect(stage.admin).expect("it listens");
        let (admin, token) = (stage.admin, &stage.token);
        let request =
            format!("GET /api/v1/trace?client=b HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line.starts_with("HTTP/1.1 200 ")
    });
}

#[test]
fn trace_needs_the_token_of_an_operator() {
    let stage = Stage::start(&[]);
    assert_eq!(stage.send_bare("GET", "/api/v1/trace?client=a", &[], "").status, 401);
    assert_eq!(stage.get("/api/v1/trace?client=a&topic=b").status, 400);
    assert_eq!(stage.get("/api/v1/trace?topic=%24share/g/a").status, 400);
}

#[test]
fn command_shows_a_line_for_each_packet() {
    let stage = Stage::start(&[]);
    let mut command = stage.command(&["admin", "trace", "--client", "worker"]);
    let mut running = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(running.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("trace begins"));
    stage.broker.v5("worker").publish("jobs", "SECRET", QoS::AtLeastOnce);
    let seen: Vec<_> = lines.by_ref().take(4).collect();
    assert!(
        seen[2].contains("Z → \"worker\" PUBLISH topic=\"jobs\" qos=1 id=") && !seen[2].contains("SECRET"),
        "{seen:?}"
    );
    assert!(seen[3].contains("Z ← \"worker\" PUBACK") && seen[3].contains(" reason=16"), "{seen:?}");
    running.kill().and_then(|()| running.wait()).expect("it ends");
}
