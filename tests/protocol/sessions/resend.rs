//! Messages in flight at the end of a connection continue in the next one.

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, DataDirectory, RawClient, VERSIONS, at_qos, lasting, share};

#[test]
fn mqtt_4_4_0_1_unacknowledged_messages_are_resent_with_dup() {
    for version in VERSIONS {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let broker = BrokerProcess::start(&[]);
            let mut subscriber = subscribed(&broker, version);
            let mut publisher = broker.v5("publisher");
            for payload in ["1", "2", "3", "4"] {
                publisher.publish("topic", payload, qos);
            }
            let first: Vec<_> = (0..4).map(|_| subscriber.receive_publish()).collect();
            assert!(first.iter().all(|message| !message.dup), "[MQTT-4.3.2-2], [MQTT-4.3.3-2]");
            subscriber.acknowledge(&first[1]);
            subscriber.cut();
            publisher.publish("topic", "5", qos);

            let mut subscriber = broker.connect(lasting(version, "subscriber"));
            for expected in [&first[0], &first[2], &first[3]] {
                let again = subscriber.receive_message();
                let case = format!("{version}, QoS {qos}");
                assert_eq!((again.payload, again.packet_id), (expected.payload.clone(), expected.packet_id), "{case}");
                assert!(again.dup, "{case} [MQTT-3.3.1-1]");
            }
            let new = subscriber.receive_message();
            assert_eq!((&new.payload[..], new.dup), (&b"5"[..], false));
            subscriber.expect_nothing_waiting();
        }
    }
}

/// A share group gives the messages of QoS 1 to another member, if there is one. Those that come back are the same.
#[test]
fn mqtt_4_4_0_1_returned_shared_messages_are_resent_with_dup() {
    for (version, qos, stored, is_takeover) in VERSIONS.into_iter().flat_map(|version| {
        [(QoS::AtLeastOnce, false), (QoS::AtLeastOnce, true), (QoS::ExactlyOnce, false), (QoS::ExactlyOnce, true)]
            .into_iter()
            .flat_map(move |(qos, stored)| [false, true].map(|is_takeover| (version, qos, stored, is_takeover)))
    }) {
        let case = format!("{version}, QoS {qos}, stored: {stored}, takeover: {is_takeover}");
        let directory = DataDirectory::new();
        let broker = if stored { directory.start() } else { BrokerProcess::start(&[]) };
        let mut worker = broker.connect(lasting(version, "worker"));
        worker.subscribe(&share("workers", "topic"), QoS::ExactlyOnce);
        worker.subscribe("own", QoS::AtLeastOnce);
        let mut publisher = broker.v5("publisher");
        for payload in ["1", "2", "3", "4"] {
            publisher.publish("topic", payload, qos);
        }
        publisher.publish("own", "own", QoS::AtLeastOnce);
        let first: Vec<_> = (0..5).map(|_| worker.receive_publish()).collect();
        assert!(first.iter().all(|message| !message.dup), "{case}");
        worker.acknowledge(&first[1]);
        worker.settle();
        let mut old = Some(worker);
        if !is_takeover {
            old.take().expect("connected").cut();
            publisher.publish("topic", "5", qos);
        }

        let mut worker = broker.connect(lasting(version, "worker"));
        if is_takeover {
            publisher.publish("topic", "5", qos);
        }
        let mut open: Vec<_> =
            [0, 2, 3, 4].map(|number| (first[number].payload.clone(), first[number].packet_id)).into();
        let mut new = Vec::new();
        for _ in 0..5 {
            let message = worker.receive_message();
            let is_new = &message.payload[..] == b"5";
            assert_eq!(message.dup, !is_new, "{case}: {message:?} [MQTT-3.3.1-1]");
            if is_new {
                new.push(message.packet_id);
            } else {
                let place = open.iter().position(|sent| *sent == (message.payload.clone(), message.packet_id));
                open.remove(place.unwrap_or_else(|| panic!("{case}: {message:?} of {open:?} [MQTT-4.4.0-1]")));
            }
        }
        assert_eq!(new.len(), 1, "{case}");
        assert!(first.iter().all(|message| message.packet_id != new[0]), "{case} [MQTT-2.2.1-4]");
        worker.expect_nothing_waiting();
        worker.cut();
        broker.connect(lasting(version, "worker")).expect_nothing_waiting();
    }
}

#[test]
fn shared_message_returns_as_new_from_another_member() {
    for stored in [false, true] {
        let directory = DataDirectory::new();
        let broker = if stored { directory.start() } else { BrokerProcess::start(&[]) };
        let subscribed = |version| {
            let mut worker = broker.connect(lasting(version, "worker"));
            worker.subscribe(&share("workers", "topic"), QoS::AtLeastOnce);
            worker
        };
        let mut worker = subscribed(ProtocolVersion::V5);
        broker.v5("publisher").publish("topic", "work", QoS::AtLeastOnce);
        let first = worker.receive_publish();
        worker.cut();
        let mut other = broker.v5("other");
        other.subscribe(&share("workers", "topic"), QoS::AtLeastOnce);
        let at_other = other.receive_publish();
        assert_eq!((&at_other.payload, at_other.dup), (&first.payload, false), "stored: {stored}");
        other.cut();
        // Another version of the protocol changes nothing.
        let again = subscribed(ProtocolVersion::V311).receive_publish();
        assert_eq!((&again.payload, again.dup), (&first.payload, false), "stored: {stored}");
        // Its own unacknowledged message again, since no other member had it.
        let last = subscribed(ProtocolVersion::V5).receive_publish();
        assert_eq!((last.packet_id, last.dup), (again.packet_id, true), "stored: {stored}");
    }
}

#[test]
fn mqtt_4_3_3_6_after_pubrec_only_the_release_is_repeated() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut subscriber = subscribed(&broker, version);
        broker.v5("publisher").publish("topic", "once", QoS::ExactlyOnce);
        let id = subscriber.receive_publish().packet_id.expect("QoS 2");
        subscriber.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        subscriber.wait_for_ack(PacketType::PubRel, id);
        subscriber.cut();

        let mut subscriber = broker.connect(lasting(version, "subscriber"));
        match subscriber.receive() {
            Packet::PubRel(ack) => assert_eq!(ack.packet_id, id),
            other => panic!("{other:?} instead of PUBREL"),
        }
        subscriber.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
        subscriber.disconnect();
        broker.connect(lasting(version, "subscriber")).expect_nothing_waiting();
    }
}

#[test]
fn mqtt_4_3_3_10_received_ids_survive_a_reconnect() {
    for version in VERSIONS {
        let broker = BrokerProcess::start(&[]);
        let mut subscriber = subscribed(&broker, ProtocolVersion::V5);
        let mut publisher = broker.connect(lasting(version, "publisher"));
        let id = publisher.next_id();
        let publish = Publish { packet_id: Some(id), ..at_qos("topic", "once", QoS::ExactlyOnce) };
        publisher.send(&Packet::Publish(publish.clone()));
        publisher.wait_for_ack(PacketType::PubRec, id);
        publisher.cut();

        let mut publisher = broker.connect(lasting(version, "publisher"));
        publisher.send(&Packet::Publish(Publish { dup: true, ..publish }));
        assert!(!publisher.wait_for_ack(PacketType::PubRec, id).is_error());
        publisher.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
        assert_eq!(publisher.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success);
        assert_eq!(subscriber.drain_payloads(), ["once"]);
    }
}

#[test]
fn mqtt_4_4_0_2_a_refused_message_is_not_sent_again() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = subscribed(&broker, ProtocolVersion::V5);
    let mut publisher = broker.v5("publisher");
    publisher.publish("topic", "1", QoS::AtLeastOnce);
    publisher.publish("topic", "2", QoS::ExactlyOnce);
    let refused = |id| Ack::new(id, ReasonCode::UnspecifiedError);
    let id = subscriber.receive_publish().packet_id.expect("QoS 1");
    subscriber.send(&Packet::PubAck(refused(id)));
    let id = subscriber.receive_publish().packet_id.expect("QoS 2");
    subscriber.send(&Packet::PubRec(refused(id)));
    subscriber.settle();
    subscriber.cut();
    broker.connect(lasting(ProtocolVersion::V5, "subscriber")).expect_nothing_waiting();
}

#[test]
fn mqtt_4_4_0_1_nothing_is_sent_again_on_the_same_connection() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = subscribed(&broker, ProtocolVersion::V5);
    broker.v5("publisher").publish("topic", "once", QoS::AtLeastOnce);
    subscriber.receive_publish();
    subscriber.expect_nothing_for(std::time::Duration::from_millis(500));
}

#[test]
fn mqtt_2_2_1_4_ids_open_before_a_reconnect_are_not_reused() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = subscribed(&broker, ProtocolVersion::V5);
    let mut publisher = broker.v5("publisher");
    publisher.publish("topic", "open", QoS::AtLeastOnce);
    publisher.publish("topic", "released", QoS::ExactlyOnce);
    let mut open = vec![subscriber.receive_publish().packet_id];
    let id = subscriber.receive_publish().packet_id.expect("QoS 2");
    subscriber.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
    subscriber.wait_for_ack(PacketType::PubRel, id);
    open.push(Some(id));
    subscriber.cut();

    let mut subscriber = broker.connect(lasting(ProtocolVersion::V5, "subscriber"));
    subscriber.wait_for_ack(PacketType::PubRel, id);
    assert_eq!(subscriber.receive_publish().packet_id, open[0]);
    for _ in 0..5 {
        publisher.publish("topic", "new", QoS::AtLeastOnce);
        let new = subscriber.receive_publish().packet_id;
        assert!(!open.contains(&new), "{new:?} is open: {open:?}");
        open.push(new);
    }
}

fn subscribed(broker: &BrokerProcess, version: ProtocolVersion) -> RawClient {
    let mut subscriber = broker.connect(lasting(version, "subscriber"));
    subscriber.subscribe("topic", QoS::ExactlyOnce);
    subscriber
}
