//! §4.1 Session State, §4.2 Network Connections, §4.5 Message receipt, §4.6 Message ordering.

use std::time::Duration;

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::conformance::byte_client::{ByteClient, ack_reason, body, connect_v5, packet, string};
use crate::support::{BrokerProcess, VERSIONS, at_qos, lasting, retained};

#[test]
fn mqtt_4_1_0_1_session_lasts_as_long_as_its_connection() {
    let broker = BrokerProcess::start(&[]);
    // Expiry 0: the session ends with the connection, and not before.
    let mut client = broker.v5("client");
    client.subscribe("a", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    publisher.publish("a", "1", QoS::ExactlyOnce);
    let open = client.receive_publish();
    client.expect_nothing_for(Duration::from_millis(500));
    client.acknowledge(&open);
    publisher.publish("a", "2", QoS::ExactlyOnce);
    assert_eq!(client.drain_payloads(), ["2"]);
    client.cut();
    let reason = publisher.publish("a", "3", QoS::AtLeastOnce);
    assert_eq!(reason, ReasonCode::NoMatchingSubscribers, "[MQTT-4.1.0-2]");
}

#[test]
fn mqtt_4_2_1_packets_may_be_split_or_joined_anywhere() {
    let broker = BrokerProcess::start(&[]);
    let payload = "x".repeat(300);
    let publish = packet(0x32, &[&string("a"), &[0, 2, 0], payload.as_bytes()]);
    let all = [
        &connect_v5(0x02, &[], &[&string("client")])[..],
        &packet(0x82, &[&[0, 1, 0], &string("a"), &[0]]),
        &publish,
        &[0xC0, 0],
    ]
    .concat();
    for size in [1, 2, 3, 7, 100, all.len()] {
        let mut client = ByteClient::open(&broker);
        for piece in all.chunks(size) {
            client.send(piece);
            if size < 10 {
                std::thread::sleep(Duration::from_micros(100)); // separate segments
            }
        }
        let mut said: Vec<u8> = (0..5).map(|_| client.receive()[0]).collect();
        said.sort_unstable();
        assert_eq!(said, [0x20, 0x30, 0x40, 0x90, 0xD0], "pieces of {size}");
    }
}

#[test]
fn mqtt_4_5_0_1_a_message_goes_to_every_matching_session() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("a/#", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut others: Vec<_> = ["a/b", "a/+", "+/b", "#", "a/b/#"]
        .into_iter()
        .flat_map(|filter| VERSIONS.map(|version| (filter, version)))
        .map(|(filter, version)| {
            let mut client = broker.client(version, &format!("{filter} {version}"));
            client.subscribe(filter, QoS::ExactlyOnce);
            client
        })
        .collect();
    let mut unconcerned = broker.v5("unconcerned");
    unconcerned.subscribe("b", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    for (payload, qos) in [("0", QoS::AtMostOnce), ("1", QoS::AtLeastOnce), ("2", QoS::ExactlyOnce)] {
        publisher.publish("a/b", payload, qos);
    }
    for client in &mut others {
        assert_eq!(client.drain_payloads(), ["0", "1", "2"]);
    }
    unconcerned.expect_nothing_waiting();
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    assert_eq!(sleeper.drain_payloads(), ["1", "2"]);
}

#[test]
fn mqtt_4_6_0_2_and_3_acks_follow_the_order_of_the_messages() {
    let broker = BrokerProcess::start(&[]);
    for first in [0x32, 0x34] {
        let mut client = ByteClient::v5(&broker, "client");
        let ids: Vec<u16> = (1..=200).map(|number: u16| number * 37 % 211 + 1).collect();
        let messages: Vec<u8> =
            ids.iter().flat_map(|id| packet(first, &[&string("a"), &id.to_be_bytes(), &[0]])).collect();
        client.send(&messages);
        for id in ids {
            let ack = client.receive();
            assert_eq!((ack[0], &body(&ack)[..2]), ([0x40, 0x50][usize::from(first == 0x34)], &id.to_be_bytes()[..]));
        }
    }
}

#[test]
fn mqtt_4_6_0_4_the_broker_releases_in_the_order_of_the_pubrecs() {
    let broker = BrokerProcess::start(&[]);
    let mut client = ByteClient::v5(&broker, "client");
    client.subscribe("a", 2);
    let mut publisher = broker.v5("publisher");
    for number in 0..20 {
        publisher.publish("a", &number.to_string(), QoS::ExactlyOnce);
    }
    let mut ids: Vec<Vec<u8>> = (0..20).map(|_| body(&client.receive())[3..5].to_vec()).collect();
    ids.rotate_left(7);
    client.send(&ids.iter().flat_map(|id| packet(0x50, &[id])).collect::<Vec<_>>());
    for id in ids {
        let pubrel = client.receive();
        assert_eq!((pubrel[0], &body(&pubrel)[..2]), (0x62, &id[..]));
    }
}

#[test]
fn mqtt_4_6_0_6_resent_messages_come_first_and_in_order() {
    let broker = BrokerProcess::start(&[]);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
        client.subscribe("#", QoS::ExactlyOnce);
        let mut publisher = broker.v5("publisher");
        let (mut expected, mut number) = (Vec::new(), 0);
        let mut publish = |expected: &mut Vec<String>, count| {
            for _ in 0..count {
                number += 1;
                publisher.publish(["a", "a/b", "c"][number % 3], &number.to_string(), qos);
                expected.push(number.to_string());
            }
        };
        publish(&mut expected, 5);
        (0..5).for_each(|_| drop(client.receive_publish()));
        client.cut();
        publish(&mut expected, 5);
        let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
        publish(&mut expected, 5);
        let came = client.drain_payloads();
        assert_eq!(came, expected, "QoS {qos}");
        let mut clean = broker.v5("client");
        clean.settle();
    }
}

/// The broker owns an acknowledged message: each matching session has it.
#[test]
fn mqtt_4_3_2_4_acknowledged_message_survives_its_publisher() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut sleeper = broker.connect(lasting(version, "sleeper"));
        sleeper.subscribe("a", QoS::ExactlyOnce);
        sleeper.disconnect();
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut publisher = broker.client(version, "publisher");
            let packet_id = Some(publisher.next_id());
            publisher.send(&Packet::Publish(Publish { packet_id, ..at_qos("a", "kept", qos) }));
            let ack = if qos == QoS::AtLeastOnce { PacketType::PubAck } else { PacketType::PubRec };
            publisher.wait_for(ack);
            drop(publisher);
            let mut sleeper = broker.connect(lasting(version, "sleeper"));
            assert_eq!(sleeper.receive_message().payload, "kept", "{version}, QoS {qos}");
            sleeper.expect_nothing_waiting();
            sleeper.disconnect();
        }
    }
}

#[test]
fn mqtt_4_4_0_1_pubrel_is_sent_again_and_answered_again() {
    let broker = BrokerProcess::start(&[]);
    let lasting_bytes = connect_v5(0, &[0x11, 0, 0, 0, 100], &[&string("client")]);
    let mut client = ByteClient::connect(&broker, &lasting_bytes).0;
    client.send(&packet(0x34, &[&string("a"), &[0, 5, 0]]));
    assert_eq!(client.receive()[0], 0x50);
    client.send(&packet(0x62, &[&[0, 5]]));
    assert_eq!(client.receive()[0], 0x70);
    drop(client);
    // As if the PUBCOMP had been lost, the client sends PUBREL again.
    let (mut client, _) = ByteClient::connect(&broker, &lasting_bytes);
    client.send(&packet(0x62, &[&[0, 5]]));
    let pubcomp = client.receive();
    assert_eq!((pubcomp[0], &body(&pubcomp)[..2]), (0x70, &[0, 5][..]));
    assert!([0x00, 0x92].contains(&ack_reason(&pubcomp)), "{pubcomp:02X?}");
    assert_eq!(client.all_waiting(), Vec::<Vec<u8>>::new());
}

#[test]
fn mqtt_3_1_2_23_stored_session_holds_its_complete_state() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    for version in VERSIONS {
        let mut client = broker.connect(lasting(version, "client"));
        client.subscribe("a", QoS::ExactlyOnce);
        publisher.publish("a", "unacknowledged", QoS::AtLeastOnce);
        publisher.publish("a", "released", QoS::ExactlyOnce);
        client.receive_publish();
        let released = client.receive_publish().packet_id.expect("QoS 2");
        client.send(&Packet::PubRec(Ack::new(released, ReasonCode::Success)));
        client.wait_for_ack(PacketType::PubRel, released);
        let taken = client.next_id();
        let mine = Publish { packet_id: Some(taken), ..at_qos("b", "mine", QoS::ExactlyOnce) };
        client.send(&Packet::Publish(mine.clone()));
        client.wait_for_ack(PacketType::PubRec, taken);
        client.cut();
        publisher.publish("a", "queued", QoS::ExactlyOnce);

        let mut witness = broker.v5("witness");
        witness.subscribe("b", QoS::AtLeastOnce);
        let mut client = broker.connect(lasting(version, "client"));
        let mut came = Vec::new();
        for _ in 0..3 {
            match client.receive() {
                Packet::Publish(publish) => {
                    client.acknowledge(&publish);
                    came.push(String::from_utf8_lossy(&publish.payload).into_owned());
                }
                Packet::PubRel(ack) => {
                    assert_eq!(ack.packet_id, released);
                    client.send(&Packet::PubComp(ack));
                    came.push("release".to_owned());
                }
                other => panic!("{other:?}"),
            }
        }
        came[..2].sort(); // the standard defines no order between PUBLISH and PUBREL
        assert_eq!(came, ["release", "unacknowledged", "queued"], "{version}");
        client.send(&Packet::Publish(Publish { dup: true, ..mine }));
        client.wait_for_ack(PacketType::PubRec, taken);
        witness.expect_nothing_waiting(); // known duplicate
        client.publish_with(retained("a", "")); // leaves no retained message behind
        client.drain();
        client.disconnect();
        broker.client(version, "client").disconnect();
    }
}
