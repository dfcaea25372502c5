//! §4.3 Quality of Service levels: each step, and no other.

use std::time::Duration;

use tenbin_codec::QoS;

use crate::conformance::byte_client::{ByteClient, ack_reason, body, connect_v5, packet, string};
use crate::conformance::s2_control_packets::pair;
use crate::support::{BrokerProcess, lasting};

/// Session Expiry Interval 100.
const LASTING: [u8; 5] = [0x11, 0, 0, 0, 100];

#[test]
fn mqtt_4_3_1_1_qos_0_is_sent_once_with_qos_0_and_dup_0() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::connect(&broker, &connect_v5(0, &LASTING, &[&string("client")])).0;
    client.subscribe("a", 0);
    broker.v5("publisher").publish("a", "x", QoS::ExactlyOnce);
    client.expect(&packet(0x30, &[&string("a"), &[0], b"x"]));
    drop(client);
    let mut client = ByteClient::connect(&broker, &connect_v5(0, &LASTING, &[&string("client")])).0;
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_4_3_2_1_to_3_qos_1_message_keeps_its_id_until_puback() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::connect(&broker, &connect_v5(0, &LASTING, &[&string("client")])).0;
    client.subscribe("a", 1);
    let mut publisher = broker.v5("publisher");
    let mut open = Vec::new();
    for number in 0..20 {
        publisher.publish("a", "x", QoS::AtLeastOnce);
        let publish = client.receive();
        assert_eq!(publish[0], 0x32, "DUP 0");
        let id = body(&publish)[3..5].to_vec();
        assert!(!open.contains(&id), "{id:?} is open");
        if number % 3 == 0 {
            client.send(&packet(0x40, &[&id]));
        } else {
            open.push(id);
        }
    }
    client.send(&[0xC0, 0]);
    client.expect(&[0xD0, 0]);
    drop(client);
    let mut client = ByteClient::connect(&broker, &connect_v5(0, &LASTING, &[&string("client")])).0;
    for id in open {
        let publish = client.receive();
        assert_eq!((publish[0], &body(&publish)[3..5]), (0x3A, &id[..]));
        client.send(&packet(0x40, &[&id]));
    }
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_4_3_2_5_id_after_puback_means_a_new_message_despite_dup() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("a", QoS::AtLeastOnce);
    let mut client = ByteClient::v5(&broker, "client");
    for first in [0x32, 0x3A, 0x32, 0x3A] {
        client.send(&packet(first, &[&string("a"), &[0, 7, 0], b"x"]));
        assert_eq!(client.receive()[..4], [0x40, 2, 0, 7]);
        assert_eq!(subscriber.drain_payloads(), ["x"]);
    }
}

#[test]
fn mqtt_4_3_3_1_to_6_qos_2_message_goes_through_four_steps() {
    let broker = BrokerProcess::start(&[]);
    let connect = connect_v5(0, &LASTING, &[&string("client")]);
    let mut client = ByteClient::connect(&broker, &connect).0;
    client.subscribe("a", 2);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "1", QoS::ExactlyOnce);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    let (first, second) = (client.receive(), client.receive());
    assert_eq!((first[0], second[0]), (0x34, 0x34), "DUP 0");
    let (first, second) = (body(&first)[3..5].to_vec(), body(&second)[3..5].to_vec());
    assert_ne!(first, second);

    // Until PUBREC, PUBLISH is resent with DUP; then PUBREL until PUBCOMP, and never PUBLISH again.
    client.send(&packet(0x50, &[&first]));
    assert_eq!(client.receive()[..4], [&[0x62, 2], &first[..]].concat());
    drop(client);
    for _ in 0..2 {
        let mut client = ByteClient::connect(&broker, &connect).0;
        let (pubrel, publish) = pair(&mut client);
        assert_eq!((pubrel[0], &body(&pubrel)[..2]), (0x62, &first[..]));
        assert_eq!((publish[0], &body(&publish)[3..5]), (0x3C, &second[..]));
        assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    }
    let mut client = ByteClient::connect(&broker, &connect).0;
    client.send(&packet(0x70, &[&first]));
    pair(&mut client);
    client.send(&packet(0x50, &[&second]));
    assert_eq!(client.receive()[..4], [&[0x62, 2], &second[..]].concat());
    client.send(&packet(0x70, &[&second]));
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    drop(client);
    let mut client = ByteClient::connect(&broker, &connect).0;
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_4_3_3_7_expiry_does_not_stop_sent_messages() {
    let broker = BrokerProcess::start(&[]);
    let connect = connect_v5(0, &LASTING, &[&string("client")]);
    let mut client = ByteClient::connect(&broker, &connect).0;
    client.subscribe("a", 2);
    let mut publisher = ByteClient::v5(&broker, "publisher");
    for id in [1, 2] {
        publisher.send(&packet(0x34, &[&string("a"), &[0, id, 5, 0x02, 0, 0, 0, 1]]));
        assert_eq!(publisher.receive()[0], 0x50);
    }
    let (first, second) = (client.receive(), client.receive());
    std::thread::sleep(Duration::from_millis(1300)); // the measured time
    client.send(&packet(0x50, &[&body(&first)[3..5]]));
    assert_eq!(client.receive()[0], 0x62);
    drop(client);
    // Sent messages are sent again and completed.
    let mut client = ByteClient::connect(&broker, &connect).0;
    let (pubrel, publish) = pair(&mut client);
    assert_eq!((pubrel[0], &body(&pubrel)[..2]), (0x62, &body(&first)[3..5]));
    assert_eq!((publish[0], &body(&publish)[3..5]), (0x3C, &body(&second)[3..5]));

    // As a receiver, the broker answers the release of an expired message as always. [MQTT-4.3.3-13]
    for id in [1, 2] {
        publisher.send(&packet(0x62, &[&[0, id]]));
        let pubcomp = publisher.receive();
        assert_eq!((pubcomp[0], ack_reason(&pubcomp)), (0x70, 0));
    }
}

#[test]
fn mqtt_4_3_3_8_to_12_qos_2_message_is_accepted_once() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("a", QoS::ExactlyOnce);
    let mut client = ByteClient::v5(&broker, "client");
    for round in 0..3 {
        for first in [0x34, 0x3C, 0x34] {
            client.send(&packet(first, &[&string("a"), &[0, 7, 0], b"x"]));
            assert_eq!(client.receive()[..4], [0x50, 2, 0, 7], "round {round}");
        }
        client.send(&packet(0x62, &[&[0, 7]]));
        assert_eq!(client.receive(), [0x70, 2, 0, 7], "round {round}");
        assert_eq!(subscriber.drain_payloads(), ["x"], "round {round}");
    }
}

#[test]
fn mqtt_4_3_3_9_after_a_refusal_the_id_stands_for_a_new_message() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("a", QoS::ExactlyOnce);
    let mut client = ByteClient::v5(&broker, "client");
    for first in [0x34, 0x3C] {
        client.send(&packet(0x34, &[&string("$SYS/x"), &[0, 7, 0]]));
        let pubrec = client.receive();
        assert_eq!(pubrec[0], 0x50);
        assert!(ack_reason(&pubrec) >= 0x80, "{pubrec:02X?}");
        client.send(&packet(first, &[&string("a"), &[0, 7, 0], b"x"]));
        assert_eq!(client.receive(), [0x50, 2, 0, 7]);
        assert_eq!(subscriber.drain_payloads(), ["x"]);
        client.send(&packet(0x62, &[&[0, 7]]));
        assert_eq!(client.receive(), [0x70, 2, 0, 7]);
    }
}

#[test]
fn mqtt_4_3_3_4_refusing_pubrec_gets_no_pubrel() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 2);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "x", QoS::ExactlyOnce);
    let publish = client.receive();
    client.send(&packet(0x50, &[&body(&publish)[3..5], &[0x80]]));
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
    publisher.publish("a", "x", QoS::ExactlyOnce);
    let publish = client.receive();
    client.send(&packet(0x50, &[&body(&publish)[3..5], &[0x10]])); // below 0x80
    assert_eq!(client.receive()[..4], [&[0x62, 2], &body(&publish)[3..5]].concat());
}

/// Ending a session ends its open handshakes.
#[test]
fn mqtt_3_1_2_4_clean_start_ends_open_handshakes() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.connect(lasting(tenbin_codec::ProtocolVersion::V5, "client"));
    client.subscribe("a", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "1", QoS::AtLeastOnce);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    client.receive_publish();
    client.receive_publish();
    client.cut();
    broker.v5("client").expect_nothing_waiting();
    broker.connect(lasting(tenbin_codec::ProtocolVersion::V5, "client")).expect_nothing_waiting();
}
