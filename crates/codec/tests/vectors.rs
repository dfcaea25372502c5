//! Byte-exact examples of `tests/vectors`, which the broker's tests share.
//!
//! ```text
//!   name, version ("5.0", "3.1.1"), hex      the packet in bytes
//!   sender ("client", "server")              sender of the packet, default "client"
//!   canonical                                whether encoding yields the same bytes, default true
//!   error, rule                              Reason Code of the refusal, and an explanation for people
//!   anything else                            expected field of the packet; absent fields are absent or false
//! ```

mod receiver;

use std::path::PathBuf;

use bytes::BytesMut;
use serde_json::{Map, Value, json};
use tenbin_codec::{
    Connect, DecodeError, Decoded, MessageProperties, Packet, PingReq, ProtocolVersion, Publish, ReasonCode,
    UserProperty, Will,
};

use receiver::{Sender, encode, receiver_of};

#[test]
fn extended_pingreq() {
    check("pingreq_extended.json", |packet| match packet {
        Packet::PingReq(ping) => describe_ping(ping),
        other => panic!("{other:?}"),
    });
}

#[test]
fn pingreq_with_a_body_is_malformed_in_strict_mode() {
    let mut decoder = receiver_of(Sender::Client, ProtocolVersion::V5);
    decoder.set_extended_pingreq(false);
    assert!(matches!(decoder.decode(&mut BytesMut::from(&b"\xC0\x00"[..])), Ok(Decoded::Packet(Packet::PingReq(_)))));
    for bytes in [&b"\xC0\x01\x00"[..], b"\xC0\x03\x00{}", b"\xC0\x7F"] {
        let error = decoder.clone().decode(&mut BytesMut::from(bytes)).unwrap_err();
        assert_eq!((error, error.reason()), (DecodeError::PingBody, ReasonCode::MalformedPacket), "{bytes:02X?}");
    }
}

#[test]
fn publish() {
    check("publish.json", |packet| match packet {
        Packet::Publish(publish) => describe_publish(publish),
        other => panic!("{other:?}"),
    });
}

#[test]
fn connect() {
    check("connect.json", |packet| match packet {
        Packet::Connect(connect) => describe_connect(connect),
        other => panic!("{other:?}"),
    });
}

fn check(file: &str, describe: impl Fn(&Packet) -> Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(file);
    let cases = serde_json::from_str::<Vec<Value>>(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(cases.len() >= 12);
    for case in cases {
        let name = format!("{file}: {}", case["name"].as_str().unwrap());
        let version = match case["version"].as_str().unwrap() {
            "5.0" => ProtocolVersion::V5,
            "3.1.1" => ProtocolVersion::V311,
            other => panic!("{name}: version {other}"),
        };
        let sender = match case.get("sender").map(|sender| sender.as_str().unwrap()) {
            None | Some("client") => Sender::Client,
            Some("server") => Sender::Server,
            Some(other) => panic!("{name}: sender {other}"),
        };
        let bytes = from_hex(case["hex"].as_str().unwrap());
        let mut input = BytesMut::from(&bytes[..]);
        let result = receiver_of(sender, version).decode(&mut input);

        if let Some(code) = case.get("error") {
            let error = result.expect_err(&name);
            assert_eq!(u64::from(error.reason().byte()), code.as_u64().unwrap(), "{name}: {error}");
            continue;
        }
        let Ok(Decoded::Packet(packet)) = result else { panic!("{name}: {result:?}") };
        assert!(input.is_empty(), "{name}");
        assert_eq!(describe(&packet), expectation(case.clone()), "{name}");
        if case.get("canonical").is_none_or(|canonical| canonical.as_bool().unwrap()) {
            assert_eq!(&encode(&packet, version)[..], &bytes[..], "{name}");
        }
    }
}

/// Expected value of a case, in the form of the `describe_…` functions: bytes as hex in one spelling, absent and false
/// fields omitted.
fn expectation(case: Value) -> Value {
    let Value::Object(fields) = case else { panic!("{case}") };
    let about_the_case = ["name", "version", "hex", "sender", "canonical", "rule"];
    let fields = fields.into_iter().filter(|(key, _)| !about_the_case.contains(&key.as_str()));
    let spelled = fields.map(|(key, value)| match (key.strip_suffix("_utf8"), key.strip_suffix("_hex"), value) {
        (Some(bare), _, Value::String(text)) => (format!("{bare}_hex"), json!(to_hex(text.as_bytes()))),
        (_, Some(_), Value::String(hex)) => (key, json!(to_hex(&from_hex(&hex)))),
        (_, _, value @ Value::Object(_)) => (key, expectation(value)),
        (_, _, value) => (key, value),
    });
    present(spelled.collect())
}

fn describe_ping(ping: &PingReq) -> Value {
    present(match &ping.body {
        None => Map::new(),
        // Both are present even if empty: without them the form is plain.
        Some(body) => Map::from_iter([
            ("user_properties".to_owned(), describe_users(&body.user_properties)),
            ("payload_hex".to_owned(), json!(to_hex(&body.payload))),
        ]),
    })
}

fn describe_publish(publish: &Publish) -> Value {
    let mut fields = json!({
        "dup": publish.dup,
        "qos": publish.qos.bits(),
        "retain": publish.retain,
        "topic": publish.topic.text().as_str(),
        "packet_id": publish.packet_id.map(|id| id.get()),
        "topic_alias": publish.topic_alias,
        "payload_hex": to_hex(&publish.payload),
    });
    if !publish.subscription_identifiers.is_empty() {
        fields["subscription_identifiers"] = json!(publish.subscription_identifiers);
    }
    if let Some(properties) = &publish.properties {
        fields["properties"] = present(describe_message(properties));
    }
    present(fields.as_object().unwrap().clone())
}

fn describe_message(properties: &MessageProperties) -> Map<String, Value> {
    let mut fields = json!({
        "payload_format_indicator": properties.payload_format_indicator,
        "message_expiry_interval": properties.message_expiry_interval,
        "content_type": properties.content_type.as_ref().map(|text| text.as_str()),
        "response_topic": properties.response_topic.as_ref().map(|text| text.as_str()),
        "correlation_data_hex": properties.correlation_data.as_ref().map(|data| to_hex(data)),
    });
    if !properties.user_properties.is_empty() {
        fields["user_properties"] = describe_users(&properties.user_properties);
    }
    fields.as_object().unwrap().clone()
}

fn describe_connect(connect: &Connect) -> Value {
    let properties = &connect.properties;
    let mut told = json!({
        "session_expiry_interval": properties.session_expiry_interval,
        "receive_maximum": properties.receive_maximum,
        "maximum_packet_size": properties.maximum_packet_size,
        "topic_alias_maximum": properties.topic_alias_maximum,
        "request_response_information": properties.request_response_information,
        "request_problem_information": properties.request_problem_information,
        "authentication_method": properties.authentication_method.as_ref().map(|text| text.as_str()),
        "authentication_data_hex": properties.authentication_data.as_ref().map(|data| to_hex(data.expose())),
    });
    if !properties.user_properties.is_empty() {
        told["user_properties"] = describe_users(&properties.user_properties);
    }
    let told = present(told.as_object().unwrap().clone());
    let fields = json!({
        "clean_start": connect.clean_start,
        "keep_alive": connect.keep_alive,
        "client_id": connect.client_id.as_str(),
        "user_name": connect.user_name.as_ref().map(|text| text.as_str()),
        "password_hex": connect.password.as_ref().map(|password| to_hex(password.expose())),
        "will": connect.will.as_ref().map(describe_will),
        "properties": (told != json!({})).then_some(told),
    });
    present(fields.as_object().unwrap().clone())
}

fn describe_will(will: &Will) -> Value {
    let mut fields = Map::from_iter([
        ("qos".to_owned(), json!(will.qos.bits())),
        ("retain".to_owned(), json!(will.retain)),
        ("topic".to_owned(), json!(will.topic.text().as_str())),
        ("payload_hex".to_owned(), json!(to_hex(&will.payload))),
        ("delay_interval".to_owned(), json!(will.delay_interval)),
    ]);
    fields.extend(will.properties.iter().flat_map(|properties| describe_message(properties)));
    present(fields)
}

fn describe_users(properties: &[UserProperty]) -> Value {
    properties.iter().map(|property| json!([property.name.as_str(), property.value.as_str()])).collect()
}

/// Omits fields that equal their absence: null, and flags that are not set.
fn present(fields: Map<String, Value>) -> Value {
    let flags = ["dup", "qos", "retain", "clean_start"];
    let is_unset = |key: &str, value: &Value| flags.contains(&key) && (value == &json!(false) || value == &json!(0));
    fields.into_iter().filter(|(key, value)| !value.is_null() && !is_unset(key, value)).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = hex.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert!(digits.len().is_multiple_of(2), "{hex}");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
