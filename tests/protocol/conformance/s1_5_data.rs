//! §1.5 Data representation.

use crate::conformance::byte_client::{ByteClient, body, connect_v5, disconnect_reason, packet, string};
use crate::support::BrokerProcess;

#[test]
fn mqtt_1_5_4_1_ill_formed_utf_8_is_malformed_in_every_string() {
    let ill_formed: [&[u8]; 8] = [
        b"\xC3\x28",         // no continuation byte
        b"a\xC3",            // ends too early
        b"\x80",             // continuation byte without a start
        b"\xC0\xAF",         // overlong
        b"\xED\xA0\x80",     // U+D800
        b"\xED\xBF\xBF",     // U+DFFF
        b"\xF4\x90\x80\x80", // above U+10FFFF
        b"\xFF",
    ];
    for text in ill_formed {
        assert_malformed_everywhere(text);
    }
}

#[test]
fn mqtt_1_5_4_2_u_0000_is_malformed_in_every_string() {
    for text in [&b"\0"[..], b"a\0b"] {
        assert_malformed_everywhere(text);
    }
}

#[test]
fn mqtt_1_5_4_3_byte_order_mark_is_an_ordinary_character() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "\u{FEFF}client");
    client.subscribe("\u{FEFF}a", 0);
    let properties = [&b"\x26"[..], &string("\u{FEFF}"), &string("\u{FEFF}v\u{FEFF}")].concat();
    let property_length = [properties.len() as u8];
    let publish = |topic: &str| packet(0x30, &[&string(topic), &property_length, &properties, "\u{FEFF}x".as_bytes()]);
    client.send(&publish("a"));
    client.send(&publish("\u{FEFF}a"));
    client.expect(&publish("\u{FEFF}a"));
    // It is also part of a Client Identifier: this is a different one.
    ByteClient::v5(&broker, "client");
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_1_5_5_1_overlong_variable_byte_integers_are_malformed() {
    let broker = BrokerProcess::start(&[]);
    for (what, bytes) in [
        ("Remaining Length", &b"\xC0\x80\x00"[..]),
        ("Property Length", b"\x30\x06\0\x01a\x80\x00x"),
        ("Subscription Identifier", b"\x82\x0A\0\x01\x03\x0B\x81\x00\0\x01a\0"),
        ("five bytes", b"\x82\x0D\0\x01\x06\x0B\xFF\xFF\xFF\xFF\x7F\0\x01a\0"),
    ] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(bytes);
        assert_eq!(disconnect_reason(&client.receive()), 0x81, "{what}");
        assert_eq!(client.receive_or_end(), None, "{what}");
    }
}

/// Puts `text` into each string that a client can send.
fn assert_malformed_everywhere(text: &[u8]) {
    let broker = BrokerProcess::start(&[]);
    let bad = string(text);
    let name = [&[0x26], &bad[..], &string("value")].concat(); // User Property [MQTT-1.5.7-1]
    let value = [&[0x26], &string("name")[..], &bad].concat();
    let property = |id: u8| [&[id], &bad[..]].concat();
    let content_type = property(0x03); // [MQTT-3.3.2-19]
    let response_topic = property(0x08); // [MQTT-3.3.2-13]
    let reason_string = property(0x1F);
    let length = |properties: &[u8]| [properties.len() as u8];

    let will = |properties: &[u8], topic: &[u8]| {
        connect_v5(0x06, &[], &[&string("id"), &length(properties), properties, topic, &string("payload")])
    };
    for (what, connect) in [
        ("client identifier [MQTT-3.1.3-4]", connect_v5(0x02, &[], &[&bad])),
        ("user name [MQTT-3.1.3-12]", connect_v5(0x82, &[], &[&string("id"), &bad])),
        ("name of a user property", connect_v5(0x02, &name, &[&string("id")])),
        ("value of a user property", connect_v5(0x02, &value, &[&string("id")])),
        ("authentication method", connect_v5(0x02, &property(0x15), &[&string("id")])),
        ("will topic [MQTT-3.1.3-11]", will(&[], &bad)),
        ("will content type", will(&content_type, &string("will"))),
        ("will response topic", will(&response_topic, &string("will"))),
        ("name of a will's user property", will(&name, &string("will"))),
        ("value of a will's user property", will(&value, &string("will"))),
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        if let Some(connack) = client.receive_or_end() {
            assert_eq!((connack[0], connack[2]), (0x20, 0), "{what}, {text:02X?}: {connack:02X?}");
            assert!(body(&connack)[1] >= 0x80, "{what}, {text:02X?}: {connack:02X?}");
            assert_eq!(client.receive_or_end(), None, "{what}, {text:02X?}");
        }
    }

    let publish = |properties: &[u8], topic: &[u8]| packet(0x30, &[topic, &length(properties), properties, b"payload"]);
    let subscribe =
        |properties: &[u8], filter: &[u8]| packet(0x82, &[&[0, 1], &length(properties), properties, filter, &[0]]);
    let unsubscribe =
        |properties: &[u8], filter: &[u8]| packet(0xA2, &[&[0, 1], &length(properties), properties, filter]);
    let puback = |properties: &[u8]| packet(0x40, &[&[0, 1, 0], &length(properties), properties]);
    let disconnect = |properties: &[u8]| packet(0xE0, &[&[0x04], &length(properties), properties]);
    let (topic, nothing) = (string("topic"), []);
    for (what, bytes) in [
        ("topic [MQTT-3.3.2-1]", publish(&nothing, &bad)),
        ("response topic", publish(&response_topic, &topic)),
        ("content type", publish(&content_type, &topic)),
        ("name of PUBLISH's user property", publish(&name, &topic)),
        ("value of PUBLISH's user property", publish(&value, &topic)),
        ("filter [MQTT-3.8.3-1]", subscribe(&nothing, &bad)),
        ("name of SUBSCRIBE's user property", subscribe(&name, &topic)),
        ("value of SUBSCRIBE's user property", subscribe(&value, &topic)),
        ("filter of UNSUBSCRIBE [MQTT-3.10.3-1]", unsubscribe(&nothing, &bad)),
        ("value of UNSUBSCRIBE's user property", unsubscribe(&value, &topic)),
        ("PUBACK's reason string", puback(&reason_string)),
        ("value of PUBACK's user property", puback(&value)),
        ("DISCONNECT's reason string", disconnect(&reason_string)),
        ("name of DISCONNECT's user property", disconnect(&name)),
    ] {
        let mut client = ByteClient::v5(&broker, "client");
        client.send(&bytes);
        assert_eq!(disconnect_reason(&client.receive()), 0x81, "{what}, {text:02X?}");
        assert_eq!(client.receive_or_end(), None, "{what}, {text:02X?}");
    }
    broker.assert_serves();
}
