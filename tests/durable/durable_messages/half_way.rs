//! QoS 2 handshakes interrupted by a kill, in both directions.

use tenbin_codec::{Ack, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, DataDirectory, RawClient, VERSIONS, at_qos, lasting};

#[test]
fn mqtt_4_3_3_10_resent_message_after_a_kill_is_a_duplicate() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut early = broker.connect(lasting(ProtocolVersion::V5, "early"));
        early.subscribe("topic", QoS::ExactlyOnce);
        let mut publisher = broker.connect(lasting(version, "publisher"));
        publish(&mut publisher, ID, "once", false);
        assert_eq!(publisher.wait_for_ack(PacketType::PubRec, id(ID)), ReasonCode::Success);
        assert_eq!(early.receive_message().payload, "once");
        early.disconnect();
        drop(broker);

        let broker = directory.start();
        let mut publisher = back(&broker, version, "publisher");
        // As if PUBREC had been lost.
        publish(&mut publisher, ID, "once", true);
        assert!(!publisher.wait_for_ack(PacketType::PubRec, id(ID)).is_error(), "{version}");
        release(&mut publisher, ID);
        publish(&mut publisher, ID, "another", false);
        assert_eq!(publisher.wait_for_ack(PacketType::PubRec, id(ID)), ReasonCode::Success);
        assert_waiting(&broker, &["once", "another"]);
        let mut early = back(&broker, ProtocolVersion::V5, "early");
        assert_eq!(next_publish(&mut early).payload, "another", "{version}");
    }
}

#[test]
fn released_identifier_means_a_new_message_after_a_kill() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut publisher = broker.connect(lasting(version, "publisher"));
        publish(&mut publisher, ID, "1", false);
        publisher.wait_for_ack(PacketType::PubRec, id(ID));
        release(&mut publisher, ID);
        drop(broker);

        let broker = directory.start();
        let mut publisher = back(&broker, version, "publisher");
        publish(&mut publisher, ID, "2", false);
        assert_eq!(publisher.wait_for_ack(PacketType::PubRec, id(ID)), ReasonCode::Success);
        assert_waiting(&broker, &["1", "2"]);
    }
}

#[test]
fn pubrel_resent_after_a_kill_is_completed() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut publisher = broker.connect(lasting(version, "publisher"));
        publish(&mut publisher, ID, "1", false);
        publisher.wait_for_ack(PacketType::PubRec, id(ID));
        publisher.send(&Packet::PubRel(Ack::new(id(ID), ReasonCode::Success)));
        drop(broker);

        let broker = directory.start();
        let mut publisher = back(&broker, version, "publisher");
        publisher.send(&Packet::PubRel(Ack::new(id(ID), ReasonCode::Success)));
        let reason = publisher.wait_for_ack(PacketType::PubComp, id(ID));
        // Depends on whether the first PUBREL arrived.
        let expected = [ReasonCode::Success, ReasonCode::PacketIdentifierNotFound];
        assert!(expected.contains(&reason), "{version}: {reason}");
        publish(&mut publisher, ID, "2", false);
        assert_eq!(publisher.wait_for_ack(PacketType::PubRec, id(ID)), ReasonCode::Success);
        assert_waiting(&broker, &["1", "2"]);
    }
}

#[test]
fn mqtt_4_3_3_6_only_pubrel_is_resent_after_pubrec_and_a_kill() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut receiver = with_message(&broker, version);
        let id = receiver.receive_publish().packet_id.expect("QoS 2");
        receiver.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        assert_eq!(receiver.wait_for_ack(PacketType::PubRel, id), ReasonCode::Success);
        drop(broker);

        let broker = directory.start();
        let mut receiver = back(&broker, version, "half-way");
        match receiver.receive() {
            Packet::PubRel(ack) => assert_eq!(ack.packet_id, id, "{version}"),
            other => panic!("{version}: {other:?} instead of PUBREL"),
        }
        receiver.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
        receiver.expect_nothing_waiting();
        receiver.disconnect();
        back(&broker, version, "half-way").expect_nothing_waiting();
    }
}

#[test]
fn pubrec_just_before_a_kill_leads_to_publish_or_pubrel() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut receiver = with_message(&broker, version);
        let id = receiver.receive_publish().packet_id.expect("QoS 2");
        receiver.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        drop(broker);

        let broker = directory.start();
        let mut receiver = back(&broker, version, "half-way");
        match receiver.receive() {
            Packet::PubRel(ack) => {
                assert_eq!(ack.packet_id, id, "{version}");
                receiver.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
            }
            Packet::Publish(publish) => {
                assert_eq!((publish.packet_id, publish.dup), (Some(id), true), "{version}");
                receiver.acknowledge(&publish);
            }
            other => panic!("{version}: {other:?} instead of PUBREL or PUBLISH"),
        }
        receiver.expect_nothing_waiting();
    }
}

#[test]
fn completed_message_is_not_resent_after_a_kill() {
    for version in VERSIONS {
        let (directory, broker) = stage();
        let mut receiver = with_message(&broker, version);
        receiver.receive_message();
        receiver.settle();
        drop(broker);

        let broker = directory.start();
        let mut receiver = back(&broker, version, "half-way");
        receiver.settle();
        // PUBREL is resent if the kill lost the PUBCOMP.
        while let Ok(packet) = receiver.try_receive(std::time::Duration::from_millis(1)) {
            assert!(matches!(packet, Packet::PubRel(_)), "{version}: {packet:?}");
        }
    }
}

const ID: u16 = 77;

fn id(id: u16) -> PacketId {
    PacketId::new(id).expect("not 0")
}

/// A broker with an offline receiver of `topic`.
fn stage() -> (DataDirectory, BrokerProcess) {
    let directory = DataDirectory::new();
    let broker = directory.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("topic", QoS::ExactlyOnce);
    receiver.disconnect();
    (directory, broker)
}

/// A receiver, with one message published for it.
fn with_message(broker: &BrokerProcess, version: ProtocolVersion) -> RawClient {
    let mut receiver = broker.connect(lasting(version, "half-way"));
    receiver.subscribe("half-way", QoS::ExactlyOnce);
    assert_eq!(broker.v5("another").publish("half-way", "once", QoS::ExactlyOnce), ReasonCode::Success);
    receiver
}

/// Resumes a session, which must exist.
fn back(broker: &BrokerProcess, version: ProtocolVersion, client_id: &str) -> RawClient {
    let (client, connack) = RawClient::connect(broker.address(), lasting(version, client_id));
    assert!(connack.session_present, "{version}, {client_id}");
    client
}

/// Asserts that these payloads wait for the receiver.
fn assert_waiting(broker: &BrokerProcess, payloads: &[&str]) {
    let mut receiver = back(broker, ProtocolVersion::V5, "receiver");
    for payload in payloads {
        assert_eq!(receiver.receive_message().payload, payload.as_bytes());
    }
    receiver.expect_nothing_waiting();
}

/// Returns the next message, acknowledged. PUBREL of an earlier message may precede it if the kill lost its PUBCOMP.
fn next_publish(client: &mut RawClient) -> Publish {
    loop {
        match client.receive() {
            Packet::Publish(publish) => {
                client.acknowledge(&publish);
                return publish;
            }
            Packet::PubRel(ack) => client.send(&Packet::PubComp(Ack::new(ack.packet_id, ReasonCode::Success))),
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }
}

fn publish(client: &mut RawClient, packet_id: u16, payload: &str, dup: bool) {
    let publish = at_qos("topic", payload, QoS::ExactlyOnce);
    client.send(&Packet::Publish(Publish { packet_id: Some(id(packet_id)), dup, ..publish }));
}

fn release(client: &mut RawClient, packet_id: u16) {
    client.send(&Packet::PubRel(Ack::new(id(packet_id), ReasonCode::Success)));
    assert_eq!(client.wait_for_ack(PacketType::PubComp, id(packet_id)), ReasonCode::Success);
}
