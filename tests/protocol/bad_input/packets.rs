//! Illegal packets of a connected client.

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, hex};

#[test]
fn mqtt_4_13_1_1_illegal_packets_are_answered_with_their_code() {
    assert_ends(ProtocolVersion::V5, V5);
}

#[test]
fn illegal_packets_of_3_1_1_close_without_a_packet() {
    assert_ends(ProtocolVersion::V311, V311);
}

#[test]
fn client_names_cannot_forge_log_lines() {
    let broker = BrokerProcess::start(&["--log", "debug"]);
    let mut client = broker.v5("client\nINFO forged\r\u{1B}[31m");
    client.publish("$SYS/topic\nINFO forged", "", QoS::AtLeastOnce);
    client.send_bytes(&hex("36 00"));
    client.expect_end(MALFORMED);
    broker.log().wait_for(&["MQTT-3.3.1-4"], PATIENCE);
    broker.v5("later").settle();
    broker.log().wait_for(&["later"], PATIENCE);
    let log = broker.log().all();
    let forged: Vec<_> = log.iter().filter(|line| line.starts_with("INFO forged") || line.contains('\r')).collect();
    assert_eq!(forged, Vec::<&String>::new());
}

/// Case name, packet in hexadecimal digits, Reason Code, and the broken rule as the log names it.
type Case = (&'static str, &'static str, ReasonCode, &'static str);

#[rustfmt::skip]
const V5: &[Case] = &[
    // Fixed header and direction: checked before the rest arrives.
    ("reserved packet type",         "00 00",                       PROTOCOL,   "§2.1.2"),
    ("CONNACK",                      "20 03",                       PROTOCOL,   "§2.1.2"),
    ("SUBACK",                       "90 04",                       PROTOCOL,   "§2.1.2"),
    ("UNSUBACK",                     "B0 04",                       PROTOCOL,   "§2.1.2"),
    ("PINGRESP",                     "D0 00",                       PROTOCOL,   "§2.1.2"),
    ("flags of CONNECT",             "11 0D",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PUBACK",              "41 02",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PUBREC",              "52 02",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PUBREL [MQTT-3.6.1-1]",        "60 02",              MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PUBCOMP",             "72 02",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of SUBSCRIBE [MQTT-3.8.1-1]",     "80 07",              MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of UNSUBSCRIBE [MQTT-3.10.1-1]",  "A0 06",              MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PINGREQ",             "C1 00",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of DISCONNECT [MQTT-3.14.1-1]",   "E1 00",              MALFORMED,  "MQTT-2.1.3-1"),
    ("AUTH without a method",        "F1 00",                       PROTOCOL,   "MQTT-4.12.0-7"),
    ("QoS 3",                        "36 05",                       MALFORMED,  "MQTT-3.3.1-4"),
    ("DUP at QoS 0",                 "38 05",                       MALFORMED,  "MQTT-3.3.1-2"),
    ("Remaining Length of 5 bytes",  "30 FF FF FF FF",              SILENCE,    "MQTT-1.5.5-1"),
    ("Remaining Length too long for its value", "30 84 00",         MALFORMED,  "MQTT-1.5.5-1"),
    ("256 MiB announced",            "30 FF FF FF 7F",              TOO_LARGE,  "MQTT-3.2.2-15"),

    ("second CONNECT", "10 0D 00 04 4D 51 54 54 05 02 00 3C 00 00 00", PROTOCOL, "MQTT-3.1.0-2"),
    ("AUTH without a method",        "F0 00",                       PROTOCOL,   "MQTT-4.12.0-7"),

    ("topic past the end",           "30 04 00 05 61 62",           MALFORMED,  "§2.1.4"),
    ("topic that is no UTF-8",       "30 05 00 02 C3 28 00",        MALFORMED,  "MQTT-1.5.4-1"),
    ("surrogate in a topic",         "30 06 00 03 ED A0 80 00",     MALFORMED,  "MQTT-1.5.4-1"),
    ("U+0000 in a topic [MQTT-4.7.3-2]", "30 04 00 01 00 00",       MALFORMED,  "MQTT-1.5.4-2"),
    ("# in a topic",                 "30 04 00 01 23 00",           MALFORMED,  "MQTT-3.3.2-2"),
    ("+ in a topic",                 "30 06 00 03 61 2F 2B 00",     MALFORMED,  "MQTT-3.3.2-2"),
    ("empty topic",                  "30 03 00 00 00",              PROTOCOL,   "MQTT-4.7.3-1"),
    ("alias that stands for nothing", "30 06 00 00 03 23 00 05",    PROTOCOL,   "§3.3.2.3.4"),
    ("alias above the maximum",      "30 07 00 01 61 03 23 FF FF",  NO_ALIAS,   "MQTT-3.2.2-17"),
    ("packet id 0",                  "32 06 00 01 61 00 00 00",     PROTOCOL,   "MQTT-2.2.1-3"),
    ("packet id missing",            "32 03 00 01 61",              MALFORMED,  "§2.1.4"),
    ("Subscription Identifier",      "30 06 00 01 61 02 0B 01",     PROTOCOL,   "MQTT-3.3.4-6"),
    ("Response Topic with wildcard [MQTT-3.3.2-14]", "30 08 00 01 61 04 08 00 01 23", PROTOCOL, "§2.2.2.2"),
    ("empty Response Topic",         "30 07 00 01 61 03 08 00 00",  PROTOCOL,   "§2.2.2.2"),
    ("Content Type that is no UTF-8 [MQTT-3.3.2-19]", "30 09 00 01 61 05 03 00 02 C3 28", MALFORMED, "MQTT-1.5.4-1"),
    ("property twice",               "30 08 00 01 61 04 01 00 01 00", PROTOCOL, "§2.2.2.2"),
    ("unknown property",             "30 06 00 01 61 02 7F 00",     MALFORMED,  "§2.2.2.2"),
    ("property of another packet",   "30 07 00 01 61 03 21 00 01",  PROTOCOL,   "§2.2.2.2"),
    ("Payload Format Indicator 2",   "30 06 00 01 61 02 01 02",     PROTOCOL,   "§2.2.2.2"),
    ("Property Length past the end", "30 05 00 01 61 05 01",        MALFORMED,  "§2.1.4"),
    ("property past the Property Length", "30 07 00 01 61 02 23 00 01", MALFORMED, "§2.1.4"),
    ("no Property Length [MQTT-2.2.2-1]", "30 03 00 01 61",         MALFORMED,  "§2.1.4"),
    ("Property Length too long for its value", "30 05 00 01 61 80 00", MALFORMED, "MQTT-1.5.5-1"),

    ("PUBACK of id 0",               "40 02 00 00",                 PROTOCOL,   "MQTT-2.2.1-3"),
    ("PUBACK of one byte",           "40 01 00",                    MALFORMED,  "§2.1.4"),
    ("PUBACK with another packet's code [MQTT-3.4.2-1]", "40 03 00 01 01", PROTOCOL,  "§2.4"),
    ("PUBREC with an unknown code [MQTT-3.5.2-1]", "50 03 00 01 FF", PROTOCOL,  "§2.4"),
    ("PUBREL with PUBREC's code [MQTT-3.6.2-1]", "62 03 00 01 10",  PROTOCOL,   "§2.4"),
    ("PUBCOMP with bytes left",      "70 05 00 01 00 00 00",        MALFORMED,  "§2.1.4"),

    ("SUBSCRIBE without filter",     "82 03 00 01 00",              PROTOCOL,   "MQTT-3.8.3-2"),
    ("SUBSCRIBE of id 0",            "82 07 00 00 00 00 01 61 00",  PROTOCOL,   "MQTT-2.2.1-3"),
    ("SUBSCRIBE without options",    "82 06 00 01 00 00 01 61",     MALFORMED,  "§2.1.4"),
    ("QoS 3 in options",             "82 07 00 01 00 00 01 61 03",  PROTOCOL,   "§3.8.3.1"),
    ("Retain Handling 3",            "82 07 00 01 00 00 01 61 30",  PROTOCOL,   "§3.8.3.1"),
    ("reserved option bits",         "82 07 00 01 00 00 01 61 40",  MALFORMED,  "MQTT-3.8.3-5"),
    ("Subscription Identifier 0",    "82 09 00 01 02 0B 00 00 01 61 00", PROTOCOL, "§2.2.2.2"),
    ("Subscription Identifier twice", "82 0B 00 01 04 0B 01 0B 02 00 01 61 00", PROTOCOL, "§2.2.2.2"),
    ("filter that is no UTF-8 [MQTT-3.8.3-1]", "82 08 00 01 00 00 02 C3 28 00", MALFORMED, "MQTT-1.5.4-1"),
    ("empty filter",                 "82 06 00 01 00 00 00 00",     MALFORMED,  ""),
    ("filter a#",                    "82 08 00 01 00 00 02 61 23 00", MALFORMED, "MQTT-4.7.1-1"),
    ("filter #/a",                   "82 09 00 01 00 00 03 23 2F 61 00", MALFORMED, "MQTT-4.7.1-1"),
    ("filter +a [MQTT-4.7.1-2]",     "82 08 00 01 00 00 02 2B 61 00", MALFORMED, "MQTT-4.7.1-1"),
    ("UNSUBSCRIBE without filter [MQTT-3.10.3-2]", "A2 03 00 01 00", PROTOCOL,  "MQTT-3.8.3-2"),
    ("UNSUBSCRIBE of id 0",          "A2 06 00 00 00 00 01 61",     PROTOCOL,   "MQTT-2.2.1-3"),
    ("UNSUBSCRIBE of no UTF-8 [MQTT-3.10.3-1]", "A2 07 00 01 00 00 02 C3 28", MALFORMED, "MQTT-1.5.4-1"),

    ("DISCONNECT with an unknown code [MQTT-3.14.2-1]", "E0 01 01",  SILENCE,    "MQTT-3.14.2-1"),
    ("DISCONNECT with Server Reference", "E0 06 00 04 1C 00 01 61", SILENCE,    "§3.14.2.2.5"),
    ("DISCONNECT with bytes left",   "E0 03 00 00 00",              MALFORMED,  "§2.1.4"),
];

#[rustfmt::skip]
const V311: &[Case] = &[
    ("reserved packet type",         "00 00",                       PROTOCOL,   "§2.1.2"),
    ("AUTH, which 3.1.1 lacks",      "F0 00",                       MALFORMED,  "§2.1.2"),
    ("CONNACK",                      "20 02",                       PROTOCOL,   "§2.1.2"),
    ("SUBACK",                       "90 03",                       PROTOCOL,   "§2.1.2"),
    ("UNSUBACK",                     "B0 02",                       PROTOCOL,   "§2.1.2"),
    ("PINGRESP",                     "D0 00",                       PROTOCOL,   "§2.1.2"),
    ("flags of SUBSCRIBE",           "80 06",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("flags of PINGREQ",             "C1 00",                       MALFORMED,  "MQTT-2.1.3-1"),
    ("QoS 3",                        "36 04",                       MALFORMED,  "MQTT-3.3.1-4"),
    ("DUP at QoS 0",                 "38 03",                       MALFORMED,  "MQTT-3.3.1-2"),
    ("256 MiB announced",            "30 FF FF FF 7F",              TOO_LARGE,  "MQTT-3.2.2-15"),
    ("second CONNECT", "10 0C 00 04 4D 51 54 54 04 02 00 3C 00 00", PROTOCOL,   "MQTT-3.1.0-2"),
    ("topic that is no UTF-8",       "30 04 00 02 C3 28",           MALFORMED,  "MQTT-1.5.4-1"),
    ("# in a topic",                 "30 03 00 01 23",              MALFORMED,  "MQTT-3.3.2-2"),
    ("empty topic",                  "30 02 00 00",                 PROTOCOL,   "MQTT-4.7.3-1"),
    ("packet id 0",                  "32 05 00 01 61 00 00",        PROTOCOL,   "MQTT-2.2.1-3"),
    ("PUBACK with a code",           "40 03 00 01 00",              MALFORMED,  "§2.1.4"),
    ("SUBSCRIBE without filter",     "82 02 00 01",                 PROTOCOL,   "MQTT-3.8.3-2"),
    ("SUBSCRIBE without QoS",        "82 05 00 01 00 01 61",        MALFORMED,  "§2.1.4"),
    ("QoS 3 requested",              "82 06 00 01 00 01 61 03",     PROTOCOL,   "§3.8.3.1"),
    ("options of 5.0",               "82 06 00 01 00 01 61 04",     MALFORMED,  "MQTT-3.8.3-5"),
    ("filter a#",                    "82 07 00 01 00 02 61 23 00",  MALFORMED,  "MQTT-4.7.1-1"),
    ("UNSUBSCRIBE without filter",   "A2 02 00 01",                 PROTOCOL,   "MQTT-3.8.3-2"),
    ("PINGREQ with a body",          "C0 01 00",                    MALFORMED,  "§3.12"),
    ("DISCONNECT with a code",       "E0 01 00",                    MALFORMED,  "§2.1.4"),
];

fn assert_ends(version: ProtocolVersion, cases: &[Case]) {
    let config = ConfigFile::logging_all();
    let broker = BrokerProcess::start(&["--config", config.path()]);
    let mut bystander = broker.v5("bystander");
    bystander.subscribe("traffic", QoS::AtLeastOnce);
    let mut wrong = Vec::new();
    for (number, (what, bytes, reason, rule)) in cases.iter().enumerate() {
        let client_id = format!("offender {number}.");
        let mut client = broker.client(version, &client_id);
        client.send_bytes(&hex(bytes));
        if let Err(said) = ends_with(&mut client, *reason) {
            wrong.push(format!("{what}: {said}"));
        } else if broker.log().find(&[&client_id, rule], PATIENCE).is_none() {
            let line = broker.log().find(&[&client_id], PATIENCE);
            wrong.push(format!("{what}: {rule} and the client id should stand in one line of the log: {line:?}"));
        }
        bystander.publish("traffic", what, QoS::AtLeastOnce);
        assert_eq!(bystander.drain_payloads(), [*what], "somebody else's message");
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    broker.assert_serves();
}

/// Checks for DISCONNECT with this code (5.0 only) and a close. The error names the packets received instead.
fn ends_with(client: &mut RawClient, reason: ReasonCode) -> Result<(), String> {
    use tenbin_codec::Packet;
    if client.version().is_v5() && reason != SILENCE {
        match client.receive_or_end() {
            Some(Packet::Disconnect(disconnect)) if disconnect.reason == reason => {}
            other => return Err(format!("{other:?} instead of {reason}")),
        }
    }
    match client.receive_or_end() {
        None => Ok(()),
        Some(packet) => Err(format!("{packet:?} instead of the end")),
    }
}

/// Closed without DISCONNECT.
const SILENCE: ReasonCode = ReasonCode::Success;
const MALFORMED: ReasonCode = ReasonCode::MalformedPacket;
const PROTOCOL: ReasonCode = ReasonCode::ProtocolError;
const NO_ALIAS: ReasonCode = ReasonCode::TopicAliasInvalid;
const TOO_LARGE: ReasonCode = ReasonCode::PacketTooLarge;
