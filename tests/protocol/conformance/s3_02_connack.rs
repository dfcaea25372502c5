//! §3.2 CONNACK.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::conformance::byte_client::{ByteClient, body, connect_v5, disconnect_reason, packet, string};
use crate::support::{BrokerProcess, ConfigFile, lasting};

/// Session Expiry Interval 3600.
const LASTING: [u8; 5] = [0x11, 0, 0, 0x0E, 0x10];

#[test]
fn mqtt_3_2_0_1_connack_precedes_queued_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("topic", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish("topic", "open", QoS::AtLeastOnce);
    client.receive_publish();
    client.cut();
    publisher.publish("topic", "queued", QoS::ExactlyOnce);
    let (mut client, connack) = ByteClient::connect(&broker, &connect_v5(0, &LASTING, &[&string("client")]));
    assert_eq!((connack[0], &body(&connack)[..2]), (0x20, &[1, 0][..]));
    assert_eq!(client.receive()[0], 0x3A, "the open message, again");
    assert_eq!(client.receive()[0], 0x34, "the queued one");
}

#[test]
fn mqtt_3_2_0_2_at_most_one_connack_is_sent() {
    let broker = BrokerProcess::start(&[]);
    let connect = connect_v5(0x02, &[], &[&string("client")]);
    // Even if both arrive at once.
    let mut client = ByteClient::open(&broker);
    client.send(&[&connect[..], &connect].concat());
    let said: Vec<u8> = client.receive_to_end().iter().map(|packet| packet[0]).collect();
    assert_eq!(said, [0x20, 0xE0]);
}

#[test]
fn mqtt_3_2_2_1_and_6_connack_flags_hold_only_session_present() {
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    let forbidden_will = [&id[..], &[0], &string("$SYS/x"), &string("payload")].concat();
    for (what, connect, expected) in [
        ("new", connect_v5(0, &LASTING, &[&id]), Some(0)),
        ("stored", connect_v5(0, &LASTING, &[&id]), Some(1)),
        ("stored, refused", connect_v5(0x04, &LASTING, &[&forbidden_will]), None),
        ("still stored", connect_v5(0, &LASTING, &[&id]), Some(1)),
        ("clean", connect_v5(0x02, &LASTING, &[&id]), Some(0)),
    ] {
        let (mut client, connack) = ByteClient::connect(&broker, &connect);
        assert_eq!(connack[0], 0x20, "{what}");
        let (flags, code) = (body(&connack)[0], body(&connack)[1]);
        assert_eq!(flags, expected.unwrap_or(0), "{what}");
        assert_eq!(code >= 0x80, expected.is_none(), "{what}");
        if expected.is_some() {
            client.send(&[0xE0, 0]);
        }
        assert_eq!(client.receive_or_end(), None, "{what} [MQTT-3.2.2-7]");
    }
}

#[test]
fn mqtt_3_2_2_18_broker_without_topic_aliases_accepts_none() {
    let file = ConfigFile::new("[sessions]\ntopic_alias_maximum = 0");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = tenbin_codec::Connect::new(ProtocolVersion::V5, crate::support::text("client"));
    let (mut client, connack) = crate::support::RawClient::connect(broker.address(), connect);
    assert_eq!(connack.properties.topic_alias_maximum.unwrap_or(0), 0);
    client.send_bytes(b"\x30\x07\0\x01a\x03\x23\0\x01");
    client.expect_end(tenbin_codec::ReasonCode::TopicAliasInvalid);
}

/// Covers the other answers of the broker, too. A client with a small Maximum Packet Size gets every acknowledgement,
/// without Reason String and User Properties if necessary.
#[test]
fn mqtt_3_4_2_2_and_alike_acks_fit_the_clients_packet_size() {
    let broker = BrokerProcess::start(&[]);
    // The smallest size that fits the longest answer below: SUBACK and UNSUBACK with one code.
    let limit = [0x27, 0, 0, 0, 32];
    let (mut client, connack) = ByteClient::connect(&broker, &connect_v5(0x02, &limit, &[&string("client")]));
    assert_eq!(body(&connack)[1], 0);
    assert!(connack.len() <= 32, "[MQTT-3.2.2-19], [MQTT-3.2.2-20]: {connack:02X?}");
    let sys = string("$SYS/x");
    for (what, request, first) in [
        ("PUBACK [MQTT-3.4.2-2], [MQTT-3.4.2-3]", packet(0x32, &[&sys, &[0, 1, 0]]), 0x40),
        ("PUBREC [MQTT-3.5.2-2], [MQTT-3.5.2-3]", packet(0x34, &[&sys, &[0, 2, 0]]), 0x50),
        ("PUBREL [MQTT-3.6.2-2], [MQTT-3.6.2-3]", packet(0x50, &[&[0, 9]]), 0x62),
        ("PUBCOMP [MQTT-3.7.2-2], [MQTT-3.7.2-3]", packet(0x62, &[&[0, 9]]), 0x70),
        ("SUBACK [MQTT-3.9.2-1], [MQTT-3.9.2-2]", packet(0x82, &[&[0, 4, 0], &string("a/".repeat(2000)), &[1]]), 0x90),
        ("UNSUBACK [MQTT-3.11.2-1], [MQTT-3.11.2-2]", packet(0xA2, &[&[0, 5, 0], &string("never there")]), 0xB0),
        ("DISCONNECT [MQTT-3.14.2-3], [MQTT-3.14.2-4]", vec![0x36, 0], 0xE0),
    ] {
        client.send(&request);
        let answer = client.receive();
        assert_eq!(answer[0], first, "{what}");
        assert!(answer.len() <= 32, "{what}: {answer:02X?}");
    }
    assert_eq!(client.receive_or_end(), None);
}

#[test]
fn mqtt_3_2_2_19_and_20_connack_fits_the_clients_packet_size() {
    let broker = BrokerProcess::start(&[]);
    let forbidden_will = [&string("client")[..], &[0], &string("$SYS/x"), &string("payload")].concat();
    for maximum in 1..=40 {
        let limit = [0x27, 0, 0, 0, maximum];
        for (what, connect) in [
            ("taken", connect_v5(0x02, &limit, &[&string("client")])),
            ("assigned id", connect_v5(0x02, &limit, &[&string("")])),
            ("refused", connect_v5(0x06, &limit, &[&forbidden_will])),
        ] {
            let mut client = ByteClient::open(&broker);
            client.send(&connect);
            // If CONNACK does not fit, the broker closes without it.
            let Some(connack) = client.receive_or_end() else { continue };
            assert!(connack.len() <= usize::from(maximum), "{what}, {maximum}: {connack:02X?}");
            assert_eq!(connack[0], 0x20);
        }
    }
}

#[test]
fn mqtt_3_2_2_8_connack_refusal_codes_are_legal() {
    const CODES: [u8; 21] = [
        0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
        0x9C, 0x9D, 0x9F,
    ];
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    for connect in [
        connect_v5(0x03, &[], &[&id]),                                       // reserved flag
        connect_v5(0x02, &[0x7F, 0], &[&id]),                                // unknown property
        connect_v5(0x02, &[0x21, 0, 0], &[&id]),                             // Receive Maximum 0
        connect_v5(0x02, &[0x15, 0, 1, b'x'], &[&id]),                       // Authentication Method
        connect_v5(0x02, &[0x16, 0, 1, b'x'], &[&id]),                       // Authentication Data alone
        connect_v5(0x06, &[], &[&id, &[0], &string("a/#"), &string("")]),    // will to a wildcard
        connect_v5(0x06, &[], &[&id, &[0], &string("$SYS/a"), &string("")]), // will to a reserved topic
        packet(0x10, &[b"\0\x04MQTT\x06\x02\0\0\0", &id]),                   // version
        packet(0x10, &[b"\0\x04MQTS\x05\x02\0\0\0", &id]),                   // name
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        let Some(connack) = client.receive_or_end() else { continue };
        assert_eq!(connack[0], 0x20);
        assert!(CODES.contains(&body(&connack)[1]), "{connack:02X?} to {connect:02X?}");
        assert_eq!(client.receive_or_end(), None, "[MQTT-3.2.2-7]");
    }
}

#[test]
fn mqtt_3_14_0_1_bad_first_packet_is_not_answered_by_disconnect() {
    let broker = BrokerProcess::start(&[]);
    for bytes in [
        &b"\x30\x04\0\x01a\0"[..],
        b"\xC0\0",
        b"\xE0\0",
        b"\x36\0",
        b"\x10\0",
        b"\x11\x0D",
        b"\0\0",
        &connect_v5(0x03, &[], &[&string("client")]),
        &connect_v5(0x02, &[0x15, 0, 1, b'x'], &[&string("client")]),
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(bytes);
        let said = client.receive_to_end();
        assert!(said.len() <= 1 && said.iter().all(|packet| packet[0] == 0x20), "{bytes:02X?}: {said:02X?}");
    }
    let mut client = ByteClient::v5(&broker, "client");
    client.send(b"\x36\0");
    assert_eq!(disconnect_reason(&client.receive()), 0x81, "after a success it may be said");
}
