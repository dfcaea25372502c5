//! The extended PINGREQ on a real socket, and the effect of a load report on the choice of a member.

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, hex, share};
use serde_json::Value;
use tenbin_codec::{Packet, PacketType, ProtocolVersion, QoS};

#[test]
fn every_pingreq_vector_gets_its_answer() {
    let config = ConfigFile::logging_all();
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let vectors: Vec<Value> = serde_json::from_str(include_str!("../vectors/pingreq_extended.json")).expect("JSON");
    assert!(vectors.len() >= 10);
    for vector in &vectors {
        let name = vector["name"].as_str().expect("a name");
        let version = match vector["version"].as_str() {
            Some("5.0") => ProtocolVersion::V5,
            Some("3.1.1") => ProtocolVersion::V311,
            other => panic!("{name}: version {other:?}"),
        };
        let mut client = broker.client(version, name);
        client.send_bytes(&hex(vector["hex"].as_str().expect("bytes")));
        match vector.get("error") {
            None => {
                assert_eq!(client.receive(), Packet::PingResp, "{name} [MQTT-3.12.4-1]");
                client.settle();
            }
            Some(error) => {
                let code = error.as_u64().and_then(|code| u8::try_from(code).ok()).expect("a reason code");
                // Without a legal Remaining Length the end of a packet is unknown, so there is no answer.
                // [MQTT-1.5.5-1]
                match client.read_to_end().as_slice() {
                    [] => assert!(!version.is_v5() || name.contains("five bytes"), "{name}"),
                    [Packet::Disconnect(disconnect)] => assert_eq!(disconnect.reason.byte(), code, "{name}"),
                    said => panic!("{name}: {said:?}"),
                }
                broker.log().wait_for(&[name], PATIENCE);
            }
        }
    }
}

#[test]
fn pingresp_has_two_bytes() {
    use std::io::{Read, Write};
    let broker = BrokerProcess::start(&[]);
    let mut stream = std::net::TcpStream::connect(broker.address()).expect("the broker listens");
    stream.write_all(&hex("10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00")).expect("CONNECT");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let mut connack = [0; 2];
    stream.read_exact(&mut connack).expect("CONNACK");
    stream.read_exact(&mut vec![0; usize::from(connack[1])]).expect("the rest of CONNACK");
    for ping in [hex("C0 00"), report_bytes(FIGURE_39, 12, "25.4")] {
        stream.write_all(&ping).expect("PINGREQ");
        let mut pong = [0; 2];
        stream.read_exact(&mut pong).expect("PINGRESP");
        assert_eq!(pong, [0xD0, 0x00]);
    }
}

#[test]
fn both_spellings_turn_the_choice_to_the_idle_member_and_back() {
    for spelling in [FIGURE_39, LISTING, (FIGURE_39.0, LISTING.1)] {
        let mut group = Group::new();
        group.assert_alternates();
        for (busy, idle) in [(0, 1), (1, 0)] {
            group.report(busy, spelling, 1000, "1000");
            group.report(idle, spelling, 0, "1");
            group.assert_all_go_to(idle);
            // Five empty reports replace all earlier ones.
            for _ in 0..5 {
                group.report(busy, spelling, 0, "0");
                group.report(idle, spelling, 0, "0");
            }
            group.assert_alternates();
        }
    }
}

#[test]
fn properties_before_the_payload_do_not_hide_the_report() {
    let mut group = Group::new();
    let payload = report_json(FIGURE_39, 1000, "1000");
    let body = [&b"\x07\x26\x00\x01a\x00\x01b"[..], payload.as_bytes()].concat();
    group.ping(0, &[&[0xC0, body.len() as u8], &body[..]].concat());
    group.report(1, FIGURE_39, 0, "1");
    group.assert_all_go_to(1);
}

#[test]
fn a_report_that_does_not_parse_changes_nothing_and_is_logged() {
    let mut group = Group::new();
    group.make_busy(0);
    for payload in [
        "",
        "idle",
        "[0,0]",
        "{}",
        r#"{"msgsInQueue":0}"#,
        r#"{"msgsInQueue":-1,"processingTimePerMsg":0}"#,
        r#"{"msgsInQueue":0.5,"processingTimePerMsg":0}"#,
        r#"{"msgsInQueue":0,"processingTimePerMsg":-0.1}"#,
        r#"{"msgsInQueue":"0","processingTimePerMsg":0}"#,
        r#"{"msgsInQueue":0,"processingTimePerMsg":null}"#,
        r#"{"msgsInQueue":0,"numberOfMsgsInQueue":0,"processingTimePerMsg":0}"#,
        r#"{"msgsInQueue":0,"processingTimePerMsg":0"#,
        r#"{"msgsInQueue":0,"processingTimePerMsg":0} "more""#,
        "\u{FEFF}{\"msgsInQueue\":0,\"processingTimePerMsg\":0}",
    ] {
        for _ in 0..5 {
            group.ping(0, &ping_bytes(payload.as_bytes()));
        }
        group.assert_all_go_to(1);
    }
    // All but the empty payload, which is no report.
    group.assert_rejections(5 * 13);
    group.broker.log().wait_for(&["DEBUG", "load report", "worker 0"], PATIENCE);
}

#[test]
fn a_report_of_more_than_4096_bytes_is_answered_and_rejected() {
    let mut group = Group::new();
    group.make_busy(0);
    let padded = |bytes: usize| {
        let report = report_json(FIGURE_39, 0, "0");
        format!("{}{report}", " ".repeat(bytes - report.len()))
    };
    for _ in 0..5 {
        group.ping(0, &ping_bytes(padded(4097).as_bytes()));
        group.ping(0, &ping_bytes(padded(1_000_000).as_bytes()));
    }
    group.assert_rejections(10);
    group.assert_all_go_to(1);
    for _ in 0..5 {
        group.ping(0, &ping_bytes(padded(4096).as_bytes()));
        group.report(1, FIGURE_39, 0, "0");
    }
    group.assert_alternates();
}

#[test]
fn plain_pings_are_no_reports() {
    let mut group = Group::new();
    group.make_busy(0);
    for ping in [&b"\xC0\x00"[..], b"\xC0\x01\x00", b"\xC0\x08\x07\x26\x00\x01a\x00\x01b"] {
        for _ in 0..5 {
            group.ping(0, ping);
        }
        group.assert_all_go_to(1);
    }
    group.assert_rejections(0);
}

#[test]
fn a_report_ends_with_its_connection() {
    let mut group = Group::new();
    group.make_busy(0);
    group.assert_all_go_to(1);
    let member = |number| member(&group.broker, number);
    group.members = [0, 1].map(member);
    group.assert_alternates();
}

#[test]
fn reports_do_not_change_the_choice_of_round_robin() {
    let mut group = Group::with_policy("round_robin");
    group.make_busy(0);
    group.assert_alternates();
}

/// Two members of one group, and a publisher.
struct Group {
    broker: BrokerProcess,
    members: [RawClient; 2],
    publisher: RawClient,
}

impl Group {
    fn new() -> Self {
        Self::with_policy("thesis_score")
    }

    fn with_policy(policy: &str) -> Self {
        let config = ConfigFile::logging_all();
        let broker = BrokerProcess::start(&["--policy", policy, "--log", "debug", "--config", config.path()]);
        let members = [0, 1].map(|number| member(&broker, number));
        let publisher = broker.v5("publisher");
        Self { broker, members, publisher }
    }

    /// Sends a ping of any form and waits for the answer.
    fn ping(&mut self, member: usize, bytes: &[u8]) {
        self.members[member].send_bytes(bytes);
        self.members[member].wait_for(PacketType::PingResp);
    }

    fn report(&mut self, member: usize, spelling: Spelling, queued: u32, milliseconds: &str) {
        self.ping(member, &report_bytes(spelling, queued, milliseconds));
    }

    fn make_busy(&mut self, busy: usize) {
        self.report(busy, FIGURE_39, 1000, "1000");
        self.report(1 - busy, FIGURE_39, 0, "1");
    }

    /// Publishes eight messages one by one. Returns the member that got each.
    fn choices(&mut self) -> Vec<usize> {
        for number in 0..8 {
            self.publisher.publish("work", &number.to_string(), QoS::AtLeastOnce);
        }
        let mut choices = vec![usize::MAX; 8];
        for (member, client) in self.members.iter_mut().enumerate() {
            for message in client.drain() {
                choices[crate::support::number_of(&message)] = member;
            }
        }
        choices
    }

    fn assert_rejections(&self, expected: usize) {
        let count = self.broker.log().count("load report rejected", expected, PATIENCE);
        assert_eq!(count, expected, "{:?}", self.broker.log().all());
    }

    fn assert_all_go_to(&mut self, member: usize) {
        assert_eq!(self.choices(), [member; 8]);
    }

    fn assert_alternates(&mut self) {
        let choices = self.choices();
        assert!(choices.windows(2).all(|pair| pair[0] + pair[1] == 1), "{choices:?}");
    }
}

fn member(broker: &BrokerProcess, number: usize) -> RawClient {
    let mut member = broker.v5(&format!("worker {number}"));
    member.subscribe(&share("workers", "work"), QoS::AtLeastOnce);
    member
}

fn report_json((queued_key, time_key): Spelling, queued: u32, milliseconds: &str) -> String {
    format!(r#"{{"{queued_key}":{queued},"{time_key}":{milliseconds}}}"#)
}

fn report_bytes(spelling: Spelling, queued: u32, milliseconds: &str) -> Vec<u8> {
    ping_bytes(report_json(spelling, queued, milliseconds).as_bytes())
}

/// An extended PINGREQ without properties, written by hand.
fn ping_bytes(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xC0];
    let mut remaining = payload.len() + 1;
    loop {
        let more = remaining > 127;
        bytes.push((remaining & 127) as u8 | if more { 128 } else { 0 });
        remaining >>= 7;
        if !more {
            break;
        }
    }
    bytes.push(0);
    bytes.extend(payload);
    bytes
}

/// Keys for the messages waiting and for the milliseconds per message.
type Spelling = (&'static str, &'static str);

/// The keys of the thesis' Fig. 39.
const FIGURE_39: Spelling = ("msgsInQueue", "processingTimePerMsg");
/// The keys of its source listing.
const LISTING: Spelling = ("numberOfMsgsInQueue", "processingTimerPerMsg");
