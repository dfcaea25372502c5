//! §3.1 CONNECT.

use tenbin_codec::{Connect, ConnectProperties, ProtocolVersion, QoS};

use crate::conformance::byte_client::{ByteClient, body, connect_v5, packet, string};
use crate::support::{BrokerProcess, RawClient, lasting, text};

#[test]
fn mqtt_3_1_2_18_and_19_password_and_its_flag_must_agree() {
    let broker = BrokerProcess::start(&[]);
    let id = string("client");
    for (what, connect, legal) in [
        ("neither", connect_v5(0x02, &[], &[&id]), true),
        ("password alone", connect_v5(0x42, &[], &[&id, &string("secret")]), true),
        ("both", connect_v5(0xC2, &[], &[&id, &string("user"), &string("secret")]), true),
        ("both, empty", connect_v5(0xC2, &[], &[&id, &string(""), &string("")]), true),
        ("password of any bytes", connect_v5(0x42, &[], &[&id, &string(b"\0\xFF\xC3")]), true),
        ("password without its flag", connect_v5(0x82, &[], &[&id, &string("user"), &string("secret")]), false),
        ("flag without password", connect_v5(0xC2, &[], &[&id, &string("user")]), false),
        ("flag alone", connect_v5(0x42, &[], &[&id]), false),
    ] {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        if legal {
            let connack = client.receive();
            assert_eq!((connack[0], body(&connack)[1]), (0x20, 0), "{what}");
        } else {
            assert_refused(&mut client, what);
        }
    }
}

#[test]
fn mqtt_3_1_3_1_connect_payload_fields_are_read_in_order() {
    let broker = BrokerProcess::start(&[]);
    let mut heir = ByteClient::v5(&broker, "heir");
    heir.subscribe("will/topic", 0);
    let will_properties = [&[0x01, 1, 0x03][..], &string("type")].concat();
    let fields: [&[u8]; 7] = [
        &string("client"),
        &[will_properties.len() as u8],
        &will_properties,
        &string("will/topic"),
        &string("will payload"),
        &string("user"),
        &string("password"),
    ];
    let (mut client, connack) = ByteClient::connect(&broker, &connect_v5(0xC6, &[], &fields));
    assert_eq!(body(&connack)[1], 0);
    client.send(&[0xE0, 1, 0x04]); // Disconnect with Will Message
    heir.expect(&packet(
        0x30,
        &[&string("will/topic"), &[will_properties.len() as u8], &will_properties, b"will payload"],
    ));
    // Fields in the wrong order: Will properties do not belong to the user name.
    let swapped: Vec<&[u8]> = fields[..1].iter().chain(&fields[5..]).chain(&fields[1..5]).copied().collect();
    let mut client = ByteClient::open(&broker);
    client.send(&connect_v5(0xC6, &[], &swapped));
    assert_refused(&mut client, "user name before the will");
}

#[test]
fn mqtt_3_1_3_3_connect_without_client_id_is_malformed() {
    let broker = BrokerProcess::start(&[]);
    for (what, connect) in
        [("nothing", connect_v5(0x02, &[], &[])), ("half of it", connect_v5(0x02, &[], &[&[0, 2, b'x']]))]
    {
        let mut client = ByteClient::open(&broker);
        client.send(&connect);
        assert_refused(&mut client, what);
    }
}

#[test]
fn mqtt_3_1_3_2_the_client_identifier_names_the_session() {
    let broker = BrokerProcess::start(&[]);
    let mut first = broker.connect(lasting(ProtocolVersion::V5, "first"));
    first.subscribe("topic", QoS::AtLeastOnce);
    first.disconnect();
    broker.v5("publisher").publish("topic", "first's", QoS::AtLeastOnce);
    for (id, present) in [("First", false), ("firs", false), ("first ", false), ("first", true)] {
        let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, id));
        assert_eq!(connack.session_present, present, "{id:?}");
        let expected: &[&str] = if present { &["first's"] } else { &[] };
        assert_eq!(client.drain_payloads(), expected, "{id:?}");
    }
}

#[test]
fn mqtt_3_1_2_6_without_a_stored_session_a_new_one_begins() {
    let broker = BrokerProcess::start(&[]);
    let (mut client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "client"));
    assert!(!connack.session_present);
    client.subscribe("topic", QoS::AtLeastOnce);
    client.publish("topic", "works", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["works"]);
    client.disconnect();
    let (_client, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "client"));
    assert!(connack.session_present, "it was kept");
}

#[test]
fn mqtt_3_1_2_28_response_information_is_sent_only_on_request() {
    let broker = BrokerProcess::start(&[]);
    for asked in [None, Some(false)] {
        let properties = ConnectProperties { request_response_information: asked, ..ConnectProperties::default() };
        let connect = Connect { properties, ..Connect::new(ProtocolVersion::V5, text("client")) };
        let (_client, connack) = RawClient::connect(broker.address(), connect);
        assert_eq!(connack.properties.response_information, None);
    }
}

#[test]
fn mqtt_3_1_2_29_acks_omit_problem_information_on_request() {
    let broker = BrokerProcess::start(&[]);
    let (mut client, connack) = ByteClient::connect(&broker, &connect_v5(0x02, &[0x17, 0], &[&string("client")]));
    assert_eq!(body(&connack)[1], 0);
    let sys = string("$SYS/x");
    for (what, request, answer) in [
        ("refused QoS 1", packet(0x32, &[&sys, &[0, 1, 0]]), 0x40),
        ("refused QoS 2", packet(0x34, &[&sys, &[0, 2, 0]]), 0x50),
        ("no subscriber", packet(0x32, &[&string("nobody"), &[0, 3, 0]]), 0x40),
        ("release of nothing", packet(0x62, &[&[0, 9]]), 0x70),
        ("PUBREC of nothing", packet(0x50, &[&[0, 9]]), 0x62),
    ] {
        client.send(&request);
        let ack = client.receive();
        assert_eq!(ack[0], answer, "{what}");
        assert!(body(&ack).len() <= 3 || body(&ack)[3] == 0, "{what}: properties in {ack:02X?}");
    }
    let deep = "a/".repeat(2000);
    client.send(&packet(0x82, &[&[0, 4, 0], &string(deep), &[1]]));
    let suback = client.receive();
    assert_eq!((suback[0], body(&suback)[2]), (0x90, 0), "properties in {suback:02X?}");
    client.send(&packet(0xA2, &[&[0, 5, 0], &string("never there")]));
    client.expect(&[0xB0, 4, 0, 5, 0, 0x11]);
}

#[track_caller]
fn assert_refused(client: &mut ByteClient, what: &str) {
    if let Some(connack) = client.receive_or_end() {
        assert_eq!((connack[0], body(&connack)[0]), (0x20, 0), "{what}: {connack:02X?}");
        assert!(body(&connack)[1] >= 0x80, "{what}: {connack:02X?}");
        assert_eq!(client.receive_or_end(), None, "{what}");
    }
}
