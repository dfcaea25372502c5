//! §3.14 DISCONNECT, §4.13 Handling errors.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::conformance::byte_client::{ByteClient, body, connect_v5, disconnect_reason, packet, string};
use crate::support::BrokerProcess;

/// Codes that a client may send in DISCONNECT.
const CLIENT_CODES: [u8; 14] = [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99];

#[test]
fn mqtt_3_14_1_1_flags_of_disconnect() {
    let broker = BrokerProcess::start(&[]);
    for first in 0xE1..=0xEF {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&[first, 0]);
        assert_eq!(disconnect_reason(&client.receive()), 0x81, "{first:#X}");
        assert_eq!(client.receive_or_end(), None);
    }
}

#[test]
fn mqtt_3_14_2_1_and_4_3_only_client_codes_are_legal() {
    let broker = BrokerProcess::start(&[]);
    let mut heir = broker.v5("heir");
    heir.subscribe("will", QoS::AtLeastOnce);
    for code in 0..=u8::MAX {
        let payload = [&string("client")[..], &[0], &string("will"), &string([b'0' + code % 10])].concat();
        let (mut client, _) = ByteClient::connect(&broker, &connect_v5(0x0E, &[], &[&payload]));
        client.send(&[0xE0, 1, code]);
        let said = client.receive_to_end();
        if CLIENT_CODES.contains(&code) {
            assert_eq!(said, Vec::<Vec<u8>>::new(), "{code:#X}");
        } else if let Some(answer) = said.first() {
            // The broker need not answer after a DISCONNECT.
            assert!([0x81, 0x82].contains(&disconnect_reason(answer)), "{code:#X}");
        }
        // Only a normal disconnection drops the Will.
        assert_eq!(heir.drain().len(), usize::from(code != 0), "{code:#X}");
    }
}

#[test]
fn mqtt_3_14_2_2_broker_disconnect_has_no_session_expiry() {
    let broker = BrokerProcess::start(&[]);
    let lasting = connect_v5(0, &[0x11, 0, 0, 0, 100], &[&string("client")]);
    let mut overtaken = ByteClient::connect(&broker, &lasting).0;
    let mut erring = ByteClient::connect(&broker, &lasting).0;
    erring.send(&[0x36, 0]);
    let silent = packet(0x10, &[b"\0\x04MQTT\x05\x02\0\x01\x05\x11\0\0\0\x64", &string("silent")]);
    let mut silent = ByteClient::connect(&broker, &silent).0;
    for (client, expected) in [(&mut overtaken, 0x8E), (&mut erring, 0x81), (&mut silent, 0x8D)] {
        let disconnect = client.receive();
        assert_eq!(disconnect_reason(&disconnect), expected);
        let properties = body(&disconnect).get(2..).unwrap_or_default();
        // Identifier of the first property: the broker may send a Reason String.
        assert!(matches!(properties.first(), None | Some(0x1F)), "{disconnect:02X?}");
        assert_eq!(client.receive_or_end(), None, "[MQTT-3.14.4-1], [MQTT-3.14.4-2]");
    }
}

#[test]
fn mqtt_3_14_4_1_packets_after_disconnect_are_ignored() {
    let broker = BrokerProcess::start(&[]);
    let mut witness = broker.v5("witness");
    witness.subscribe("#", QoS::AtLeastOnce);
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let (mut client, properties): (_, &[u8]) = match version {
            ProtocolVersion::V5 => (ByteClient::v5(&broker, "client"), &[0]),
            _ => (ByteClient::v311(&broker, "client"), &[]),
        };
        let publish = packet(0x32, &[&string("after"), &[0, 1], properties, b"x"]);
        client.send(&[&[0xE0, 0], &publish[..], &[0xC0, 0]].concat());
        assert_eq!(client.receive_to_end(), Vec::<Vec<u8>>::new(), "{version}");
    }
    witness.expect_nothing_waiting();
}

#[test]
fn mqtt_3_14_4_1_broker_sends_nothing_after_its_disconnect() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 0);
    // Answers are due for the packet before the illegal one, and a message for the packet behind it.
    let before = packet(0x32, &[&string("b"), &[0, 1, 0]]);
    let behind = packet(0x30, &[&string("a"), &[0]]);
    client.send(&[&before[..], &[0xC0, 0], &[0x36, 0], &behind, &[0xC0, 0]].concat());
    let said = client.receive_to_end();
    let (last, others) = said.split_last().expect("DISCONNECT at least");
    assert_eq!(disconnect_reason(last), 0x81);
    assert!(others.iter().all(|packet| packet[0] == 0x40 || packet[0] == 0xD0), "{said:02X?}");
}

#[test]
fn mqtt_4_13_2_1_every_error_ends_in_a_closed_connection() {
    let broker = BrokerProcess::start(&[]);
    for (what, bytes, code) in [
        ("malformed", &b"\x36\0"[..], 0x81),
        ("protocol error", b"\x82\x03\0\x01\0", 0x82),
        ("packet of a server", b"\xD0\0", 0x82),
        ("alias too high", b"\x30\x07\0\x01a\x03\x23\xFF\xFF", 0x94),
        ("too large", b"\x30\xFF\xFF\xFF\x7F", 0x95),
    ] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(bytes);
        assert_eq!(disconnect_reason(&client.receive()), code, "{what}");
        assert_eq!(client.receive_or_end(), None, "{what}");
    }
    // A client that does not read its DISCONNECT is closed as well.
    let mut client = ByteClient::v5(&broker, "client");
    client.send(b"\x36\0");
    let again = ByteClient::v5(&broker, "client");
    drop((client, again));
    broker.assert_serves();
}

#[test]
fn mqtt_4_12_0_6_and_7_auth_without_a_method_is_refused() {
    let broker = BrokerProcess::start(&[]);
    for auth in [&b"\xF0\0"[..], b"\xF0\x02\x18\0", b"\xF0\x02\x19\0", b"\xF0\x06\x19\x04\x15\0\x01x"] {
        let mut client = ByteClient::v5(&broker, "client");
        assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
        client.send(auth);
        assert_eq!(disconnect_reason(&client.receive()), 0x82, "{auth:02X?}");
        assert_eq!(client.receive_or_end(), None, "{auth:02X?}");
    }
}

#[test]
fn mqtt_3_15_1_1_flags_of_auth() {
    let broker = BrokerProcess::start(&[]);
    for first in 0xF1..=0xFF {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&[first, 0]);
        assert!([0x81, 0x82].contains(&disconnect_reason(&client.receive())), "{first:#X}");
        assert_eq!(client.receive_or_end(), None);
    }
}
