//! Differences of MQTT 3.1.1. Identifiers of statements come from its text.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::conformance::byte_client::{ByteClient, body, connect_v311, packet, string};
use crate::conformance::s2_control_packets::pair;
use crate::support::{BrokerProcess, lasting, retained, share};

#[test]
fn mqtt311_3_1_2_1_to_3_illegal_connects_are_refused() {
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    let level = |level: u8| packet(0x10, &[b"\0\x04MQTT", &[level, 2, 0, 0], &id]);
    let refused = vec![0x20, 2, 0, 1];
    for (what, connect, answers) in [
        ("another name", packet(0x10, &[b"\0\x04MQTX\x04\x02\0\0", &id]), vec![]),
        ("level 3", level(3), vec![refused.clone()]),
        ("level 2", level(2), vec![refused.clone()]),
        ("reserved flag", connect_v311(0x03, &[&id]), vec![]),
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        let said = client.receive_to_end();
        // Closing without an answer is always legal. A client of 3.1.1 would not understand a 5.0 answer.
        let fits = said == answers || said.is_empty() || what == "another name" && said[0][0] == 0x20;
        assert!(fits || what == "level 2" && said[0][0] == 0x20, "{what}: {said:02X?}");
    }
}

#[test]
fn mqtt311_3_1_2_9_to_22_flags_and_payload_of_connect() {
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    let will = [string("will"), string("payload")].concat();
    for (what, connect, legal) in [
        ("user name and password", connect_v311(0xC2, &[&id, &string("u"), &string("p")]), true),
        ("user name alone", connect_v311(0x82, &[&id, &string("u")]), true),
        ("password alone [MQTT-3.1.2-22]", connect_v311(0x42, &[&id, &string("p")]), false),
        ("user name behind no flag [MQTT-3.1.2-18]", connect_v311(0x02, &[&id, &string("u")]), false),
        ("flag, no user name [MQTT-3.1.2-19]", connect_v311(0x82, &[&id]), false),
        ("will", connect_v311(0x36, &[&id, &will]), true),
        ("flag, no will [MQTT-3.1.2-9]", connect_v311(0x06, &[&id]), false),
        ("Will QoS without will [MQTT-3.1.2-13]", connect_v311(0x0A, &[&id]), false),
        ("Will QoS 3 [MQTT-3.1.2-14]", connect_v311(0x1E, &[&id, &will]), false),
        ("Will Retain without will [MQTT-3.1.2-15]", connect_v311(0x22, &[&id]), false),
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        if legal {
            client.expect(&[0x20, 2, 0, 0]);
        } else {
            assert_eq!(client.receive_or_end(), None, "{what}: no code fits, so nothing is said [MQTT-3.2.2-6]");
        }
    }
}

#[test]
fn mqtt311_3_1_3_6_to_8_empty_client_id_needs_a_clean_session() {
    let broker = BrokerProcess::start(&[]);
    let empty = string("");
    let mut both = [0, 1].map(|_| ByteClient::connect(&broker, &connect_v311(0x02, &[&empty])));
    for (client, connack) in &mut both {
        assert_eq!(connack[..], [0x20, 2, 0, 0]);
        assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new(), "two clients, not one");
    }
    let (mut client, connack) = ByteClient::connect(&broker, &connect_v311(0, &[&empty]));
    assert_eq!(connack, [0x20, 2, 0, 2]);
    assert_eq!(client.receive_or_end(), None);
}

#[test]
fn mqtt311_3_1_2_4_to_6_clean_session_decides_what_survives() {
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    for (clean, then_clean, present) in [(false, false, 1), (false, true, 0), (true, false, 0), (true, true, 0)] {
        let flags = |clean| if clean { 0x02 } else { 0x00 };
        ByteClient::v311(&broker, "client").send(&[0xE0, 0]);
        let (mut client, connack) = ByteClient::connect(&broker, &connect_v311(flags(clean), &[&id]));
        assert_eq!(connack, [0x20, 2, 0, 0]);
        client.send(&packet(0x82, &[&[0, 1], &string("a"), &[1]]));
        client.expect(&[0x90, 3, 0, 1, 1]);
        client.send(&[0xE0, 0]);
        assert_eq!(client.receive_or_end(), None);
        broker.v311("publisher").publish("a", "x", QoS::AtLeastOnce);
        let (mut client, connack) = ByteClient::connect(&broker, &connect_v311(flags(then_clean), &[&id]));
        assert_eq!(connack, [0x20, 2, present, 0], "{clean}, {then_clean} [MQTT-3.2.2-1] to [MQTT-3.2.2-3]");
        assert_eq!(client.all_waiting().len(), usize::from(present), "{clean}, {then_clean}");
    }
}

#[test]
fn mqtt311_3_1_4_2_taken_over_client_is_closed_without_a_packet() {
    let broker = BrokerProcess::start(&[]);
    let mut first = ByteClient::v311(&broker, "client");
    let mut second = ByteClient::v311(&broker, "client");
    assert_eq!(first.receive_or_end(), None);
    assert_eq!(second.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt311_4_8_0_1_errors_close_without_a_packet() {
    let broker = BrokerProcess::start(&[]);
    for bytes in [
        &b"\x36\x04\0\x01a\0"[..],
        b"\x30\x02\0\0",
        b"\x82\x02\0\x01",            // [MQTT-3.8.3-3]
        b"\x82\x06\0\x01\0\x01a\x03", // [MQTT-3.8.3-4]
        b"\x82\x06\0\x01\0\x01a\x04",
        b"\xA2\x02\0\x01",
        b"\x20\x02\0\0",
        b"\xF0\0",
        b"\x62\x02\0\0",
    ] {
        let mut client = ByteClient::v311(&broker, "client");
        client.send(bytes);
        assert_eq!(client.receive_to_end(), Vec::<Vec<u8>>::new(), "{bytes:02X?}");
    }
}

#[test]
fn mqtt311_3_3_5_2_forbidden_publish_is_acknowledged() {
    let broker = BrokerProcess::start(&[]);
    let mut witness = broker.v5("witness");
    witness.subscribe("$SYS/x", QoS::AtLeastOnce);
    let mut client = ByteClient::v311(&broker, "client");
    client.send(&packet(0x32, &[&string("$SYS/x"), &[0, 1]]));
    client.expect(&[0x40, 2, 0, 1]);
    client.send(&packet(0x34, &[&string("$SYS/x"), &[0, 2]]));
    client.expect(&[0x50, 2, 0, 2]);
    client.send(&packet(0x62, &[&[0, 2]]));
    client.expect(&[0x70, 2, 0, 2]);
    witness.expect_nothing_waiting();
}

#[test]
fn mqtt311_3_8_4_5_and_3_9_3_2_suback_codes_are_0_1_2_and_0x80() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v311(&broker, "client");
    let filters = [("a", 0), ("b", 1), ("c", 2), (&"a/".repeat(2000)[..], 1)];
    let payload: Vec<u8> = filters.iter().flat_map(|(filter, qos)| [string(filter), vec![*qos]].concat()).collect();
    client.send(&packet(0x82, &[&[0, 9], &payload]));
    client.expect(&[0x90, 6, 0, 9, 0, 1, 2, 0x80]);
    client.send(&packet(0xA2, &[&[0, 10], &string("a"), &string("never there")]));
    client.expect(&[0xB0, 2, 0, 10]);
}

#[test]
fn mqtt311_3_3_1_6_to_12_retain_is_set_only_after_subscribe() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v311("publisher");
    publisher.publish_with(retained("state", "first"));
    let mut client = ByteClient::v311(&broker, "client");
    let subscribe = packet(0x82, &[&[0, 1], &string("state"), &[0]]);
    for _ in 0..2 {
        client.send(&subscribe); // every SUBSCRIBE brings the message [MQTT-3.8.4-3]
        client.expect(&[0x90, 3, 0, 1, 0]);
        client.expect(&packet(0x31, &[&string("state"), b"first"]));
    }
    publisher.publish_with(retained("state", "second"));
    client.expect(&packet(0x30, &[&string("state"), b"second"])); // [MQTT-3.3.1-9]
    publisher.publish("state", "passes", QoS::AtLeastOnce); // [MQTT-3.3.1-12]
    client.expect(&packet(0x30, &[&string("state"), b"passes"]));
    publisher.publish_with(retained("state", "")); // [MQTT-3.3.1-10], [MQTT-3.3.1-11]
    client.expect(&packet(0x30, &[&string("state")]));
    client.send(&subscribe);
    client.expect(&[0x90, 3, 0, 1, 0]);
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt311_4_3_packets_have_neither_properties_nor_codes() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v311(&broker, "client");
    client.send(&packet(0x82, &[&[0, 1], &string("a"), &[2]]));
    client.expect(&[0x90, 3, 0, 1, 2]);
    let mut publisher = ByteClient::v5(&broker, "publisher");
    publisher.send(&packet(0x34, &[&string("a"), &[0, 5, 2, 0x01, 1], b"x"]));
    let publish = client.receive();
    let id = body(&publish)[3..5].to_vec();
    assert_eq!(publish, packet(0x34, &[&string("a"), &id, b"x"]));
    client.send(&packet(0x50, &[&id]));
    client.expect(&packet(0x62, &[&id]));
    client.send(&packet(0x70, &[&id]));
    // Unknown identifiers in PUBREL and PUBREC: 3.1.1 has no code for them.
    client.send(&packet(0x62, &[&[0, 77]]));
    client.expect(&[0x70, 2, 0, 77]);
    client.send(&packet(0x50, &[&[0, 78]]));
    client.expect(&[0x62, 2, 0, 78]);
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt311_4_4_0_1_and_4_3_3_publish_and_pubrel_are_resent() {
    let broker = BrokerProcess::start(&[]);
    let connect = connect_v311(0, &[&string("client")]);
    let mut client = ByteClient::connect(&broker, &connect).0;
    client.send(&packet(0x82, &[&[0, 1], &string("a"), &[2]]));
    client.expect(&[0x90, 3, 0, 1, 2]);
    let mut publisher = broker.v311("publisher");
    publisher.publish("a", "1", QoS::AtLeastOnce);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    let (first, second) = (client.receive(), client.receive());
    client.send(&packet(0x50, &[&body(&second)[3..5]]));
    assert_eq!(client.receive()[0], 0x62);
    drop(client);
    let mut client = ByteClient::connect(&broker, &connect).0;
    let mut again = first;
    again[0] |= 8; // DUP [MQTT-3.3.1-1]
    let (pubrel, publish) = pair(&mut client);
    assert_eq!(publish, again);
    assert_eq!(pubrel, packet(0x62, &[&body(&second)[3..5]]));
}

/// The standard of 3.1.1 has no `$share`, but the broker serves it.
#[test]
fn mqtt311_4_7_3_shared_subscriptions_are_served() {
    let broker = BrokerProcess::start(&["--policy", "round_robin"]);
    let mut members = ["first", "second"].map(|name| {
        let mut member = broker.v311(name);
        member.subscribe(&share("group", "a"), QoS::AtLeastOnce);
        member
    });
    let mut publisher = broker.v311("publisher");
    for _ in 0..10 {
        publisher.publish("a", "x", QoS::AtLeastOnce);
    }
    assert_eq!(members.each_mut().map(|member| member.drain().len()), [5, 5]);
}

#[test]
fn mqtt311_a_session_has_no_expiry() {
    let broker = BrokerProcess::start(&[]);
    broker.connect(lasting(ProtocolVersion::V311, "client")).cut();
    std::thread::sleep(std::time::Duration::from_millis(1200)); // more than 1 s, the shortest possible expiry
    let (_, connack) = ByteClient::connect(&broker, &connect_v311(0, &[&string("client")]));
    assert_eq!(connack, [0x20, 2, 1, 0]);
}
