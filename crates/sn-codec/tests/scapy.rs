//! Scapy as an independent codec, if it is installed: in `target/python`, as `.ci/run` does, or for `python3` on the path.
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod generators;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use generators::{FORMS, content};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tenbin_sn_codec::Forwarded;
use tenbin_sn_codec::v1_2::{Message, MessageId, MessageType, PROTOCOL_ID, QoS, Subscribed, Topic, WillTopic};

/// Messages of each form.
const ROUNDS: usize = 20;

/// A Python with Scapy; `None` if there is none.
fn python() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python3");
    let found = [installed, PathBuf::from("python3")].into_iter().find(|python| {
        let import = Command::new(python).args(["-c", "import scapy.contrib.mqttsn"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    });
    if found.is_none() {
        eprintln!("skipped: Scapy is not installed (pip install scapy)");
    }
    found
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("digits")
        })
        .collect()
}

/// Flags that a message uses. Scapy gives all of them in each message with Flags.
#[derive(Default)]
struct Flags {
    dup: bool,
    qos: u8,
    retain: bool,
    will: bool,
    clean_session: bool,
    topic_id_type: u8,
}

impl Flags {
    fn fields(&self) -> String {
        let Self { dup, qos, retain, will, clean_session, topic_id_type } = self;
        let [dup, retain, will, clean_session] = [dup, retain, will, clean_session].map(|&flag| u8::from(flag));
        format!("dup={dup} qos={qos} retain={retain} will={will} cleansess={clean_session} tid_type={topic_id_type}")
    }
}

fn will_topic(will: Option<&WillTopic<'_>>) -> String {
    will.map_or(String::new(), |will| {
        let flags = Flags { qos: will.qos as u8, retain: will.retain, ..Flags::default() };
        format!("{} will_topic=x{}", flags.fields(), hex(will.topic.as_bytes()))
    })
}

/// A field that is a message's whole body. Scapy reads no field from an empty body.
fn body(name: &str, bytes: &[u8]) -> String {
    if bytes.is_empty() { String::new() } else { format!("{name}=x{}", hex(bytes)) }
}

fn filter(dup: bool, qos: QoS, id: MessageId, topic: &Subscribed<'_>) -> String {
    let (topic_id_type, field) = match topic {
        Subscribed::Name(name) => (0, format!("topic_name=x{}", hex(name.as_bytes()))),
        Subscribed::Predefined(id) => (1, format!("tid={id}")),
        Subscribed::Short(name) => (2, format!("short_topic=x{}", hex(name.as_str().as_bytes()))),
    };
    let flags = Flags { dup, qos: qos as u8, topic_id_type, ..Flags::default() };
    format!("{} mid={id} {field}", flags.fields())
}

/// Fields of a message by Scapy's names, in the specification's order; `None` if Scapy does not know the message.
fn fields(message: &Message<'_>) -> Option<String> {
    let acknowledgement = |topic_id: u16, id: Option<MessageId>, code| {
        format!("tid={topic_id} mid={} return_code={code}", id.map_or(0, MessageId::get))
    };
    let fields = match message {
        Message::Advertise(advertise) => format!("gw_id={} duration={}", advertise.gateway_id, advertise.duration),
        Message::SearchGw(search) => format!("radius={}", search.radius),
        Message::GwInfo(info) => format!("gw_id={} gw_addr=x{}", info.gateway_id, hex(info.address)),
        // MQTT-SN 1.2 reserves its type.
        Message::Auth(_) => return None,
        Message::Connect(connect) => {
            let flags = Flags { will: connect.will, clean_session: connect.clean_session, ..Flags::default() }.fields();
            let id = hex(connect.client_id.as_bytes());
            format!("{flags} prot_id={PROTOCOL_ID} duration={} client_id=x{id}", connect.duration)
        }
        Message::ConnAck(code) | Message::WillTopicResp(code) | Message::WillMsgResp(code) => {
            format!("return_code={}", *code as u8)
        }
        Message::WillTopic(will) | Message::WillTopicUpd(will) => will_topic(will.as_ref()),
        Message::WillMsg(data) | Message::WillMsgUpd(data) => body("will_msg", data),
        Message::Register(register) => {
            let id = register.message_id.map_or(0, MessageId::get);
            format!("tid={} mid={id} topic_name=x{}", register.topic_id, hex(register.topic.as_bytes()))
        }
        Message::RegAck(ack) => acknowledgement(ack.topic_id, ack.message_id, ack.code as u8),
        Message::Publish(publish) => {
            let topic_id_type = match publish.topic {
                Topic::Normal(_) => 0,
                Topic::Predefined(_) => 1,
                Topic::Short(_) => 2,
                Topic::Reserved(_) => 3,
            };
            let qos = publish.qos.map_or(3, |qos| qos as u8);
            let flags = Flags { dup: publish.dup, qos, retain: publish.retain, topic_id_type, ..Flags::default() };
            let id = publish.message_id.map_or(0, MessageId::get);
            format!("{} tid={} mid={id} data=x{}", flags.fields(), publish.topic.field(), hex(publish.data))
        }
        Message::PubAck(ack) => acknowledgement(ack.topic_id, ack.message_id, ack.code as u8),
        Message::PubRec(id) | Message::PubRel(id) | Message::PubComp(id) | Message::UnsubAck(id) => format!("mid={id}"),
        Message::Subscribe(subscribe) => filter(subscribe.dup, subscribe.qos, subscribe.message_id, &subscribe.topic),
        Message::SubAck(ack) => {
            let flags = Flags { qos: ack.qos as u8, ..Flags::default() }.fields();
            format!("{flags} {}", acknowledgement(ack.topic_id, Some(ack.message_id), ack.code as u8))
        }
        Message::Unsubscribe(unsubscribe) => filter(false, QoS::AtMostOnce, unsubscribe.message_id, &unsubscribe.topic),
        Message::PingReq(ping) => body("client_id", ping.client_id.unwrap_or_default().as_bytes()),
        Message::Disconnect(disconnect) => {
            disconnect.duration.map_or(String::new(), |duration| format!("duration={duration}"))
        }
        Message::PingResp | Message::WillTopicReq | Message::WillMsgReq => String::new(),
    };
    Some(format!("{} {fields}", message.message_type() as u8).trim_end().to_owned())
}

/// Gives Scapy fields and bytes of messages. Returns the bytes and fields that it makes of them.
fn ask(python: &Path, questions: &[(String, Vec<u8>)]) -> Vec<(Vec<u8>, String)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scapy_codec.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut scapy = command.spawn().expect("an executable file");
    let lines: String = questions.iter().map(|(fields, bytes)| format!("{fields}\t{}\n", hex(bytes))).collect();
    // The script reads all lines before it answers, so that no pipe is full on both sides.
    scapy.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("Scapy reads");
    let output = scapy.wait_with_output().expect("its output");
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let answers: Vec<_> = text
        .lines()
        .map(|line| {
            let (bytes, fields) = line.split_once('\t').expect("two columns");
            (from_hex(bytes), fields.to_owned())
        })
        .collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

#[test]
fn scapy_builds_and_reads_every_message_alike() {
    let Some(python) = python() else { return };
    let mut runner = TestRunner::deterministic();
    let contents: Vec<_> = (0..FORMS * ROUNDS)
        .map(|number| {
            let mut content = content().new_tree(&mut runner).expect("a strategy").current();
            content.kind = number % FORMS;
            content
        })
        .collect();
    let (messages, questions): (Vec<_>, Vec<_>) = contents
        .iter()
        .filter_map(|content| {
            let message = content.message();
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            Some((message, (fields(&message)?, bytes)))
        })
        .unzip();
    let types: HashSet<MessageType> = messages.iter().map(Message::message_type).collect();
    assert_eq!(types.len(), MessageType::ALL.len() - 1, "all types but AUTH");
    for ((message, (asked, _)), (bytes, read)) in messages.iter().zip(&questions).zip(ask(&python, &questions)) {
        assert_eq!(Message::decode(&bytes), Ok(*message), "Scapy's bytes of {asked}");
        assert_eq!(&read, asked, "Scapy's reading of {message:?}");
    }
}

#[test]
fn scapy_builds_and_reads_envelopes_alike() {
    let Some(python) = python() else { return };
    let node_ids = [&b""[..], b"n", &[0xFF; 16], &[7; 252]];
    let envelopes: Vec<_> = (0..4).flat_map(|radius| node_ids.map(|node_id| (radius, node_id))).collect();
    let questions: Vec<_> = envelopes
        .iter()
        .map(|&(radius, node_id)| {
            // Scapy has no length for an envelope's message: the test adds and compares it itself.
            let mut bytes = Vec::new();
            Forwarded { radius, node_id, message: b"" }.encode(&mut bytes);
            (format!("254 resvd=0 radius={radius} w_node_id=x{}", hex(node_id)), bytes)
        })
        .collect();
    for ((&(radius, node_id), (asked, _)), (mut bytes, read)) in
        envelopes.iter().zip(&questions).zip(ask(&python, &questions))
    {
        let message = b"\x02\x17";
        bytes.extend_from_slice(message);
        assert_eq!(Forwarded::decode(&bytes), Ok(Forwarded { radius, node_id, message }), "Scapy's bytes of {asked}");
        assert_eq!(&read, asked, "Scapy's reading");
    }
}
