//! Quality of Service, from publisher to broker and from broker to subscriber.

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, QOS_ALL, RawClient, VERSIONS, at_qos};

#[test]
fn mqtt_3_8_4_8_delivers_at_the_lower_of_published_and_granted() {
    let broker = BrokerProcess::start(&[]);
    for from in VERSIONS {
        for to in VERSIONS {
            let mut publisher = broker.client(from, "publisher");
            let mut subscriber = broker.client(to, "subscriber");
            for granted in QOS_ALL {
                let topic = format!("granted/{granted}");
                subscriber.subscribe(&topic, granted);
                for published in QOS_ALL {
                    publisher.publish(&topic, "payload", published);
                    let message = subscriber.receive_message();
                    let case = format!("{from} to {to}, published at {published}, granted {granted}");
                    assert_eq!(message.qos, published.min(granted), "{case}");
                    assert_eq!(message.topic.text().as_str(), topic, "{case}");
                    assert_eq!(message.payload, "payload", "{case}");
                    assert!(!message.dup && !message.retain, "{case}"); // [MQTT-4.3.2-2], [MQTT-3.3.1-12]
                    subscriber.expect_nothing_waiting();
                }
            }
        }
    }
}

#[test]
fn mqtt_2_2_1_5_acks_repeat_the_id_and_report_subscribers() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    assert_eq!(client.publish("nobody", "", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    assert_eq!(client.publish("nobody", "", QoS::ExactlyOnce), ReasonCode::NoMatchingSubscribers);
    client.subscribe("me", QoS::AtMostOnce);
    assert_eq!(client.publish("me", "", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(client.publish("me", "", QoS::ExactlyOnce), ReasonCode::Success);
}

#[test]
fn mqtt_4_3_3_10_a_repeated_qos_2_message_is_delivered_once() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let (mut publisher, mut subscriber) = pair(&broker, version);
        let id = publisher.next_id();
        let first = Publish { packet_id: Some(id), ..at_qos("topic", "once", QoS::ExactlyOnce) };
        for dup in [false, true, true] {
            publisher.send(&Packet::Publish(Publish { dup, ..first.clone() }));
            assert!(!publisher.wait_for_ack(PacketType::PubRec, id).is_error());
        }
        publisher.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
        assert_eq!(publisher.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success); // [MQTT-4.3.3-11]
        assert_eq!(subscriber.drain_payloads(), ["once"]);

        // The id stands for a new message now. [MQTT-4.3.3-12]
        let second = Publish { dup: true, packet_id: Some(id), ..at_qos("topic", "again", QoS::ExactlyOnce) };
        publisher.send(&Packet::Publish(second));
        assert!(!publisher.wait_for_ack(PacketType::PubRec, id).is_error());
        assert_eq!(subscriber.drain_payloads(), ["again"]);
    }
}

#[test]
fn mqtt_4_3_2_5_after_puback_the_id_stands_for_a_new_message() {
    let broker = BrokerProcess::start(&[]);
    let (mut publisher, mut subscriber) = pair(&broker, ProtocolVersion::V5);
    let id = publisher.next_id();
    for payload in ["first", "second"] {
        // DUP describes the publisher's repetition and is not forwarded. [MQTT-3.3.1-3]
        let publish = Publish { dup: true, packet_id: Some(id), ..at_qos("topic", payload, QoS::AtLeastOnce) };
        publisher.send(&Packet::Publish(publish));
        assert!(!publisher.wait_for_ack(PacketType::PubAck, id).is_error());
        let message = subscriber.receive_message();
        assert_eq!((&message.payload[..], message.dup), (payload.as_bytes(), false));
    }
}

#[test]
fn pubrel_of_an_unknown_id_is_answered() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "");
        let id = client.next_id();
        client.send(&Packet::PubRel(Ack::new(id, ReasonCode::Success)));
        assert_eq!(client.wait_for_ack(PacketType::PubComp, id), ReasonCode::Success);
        client.send(&Packet::PubRec(Ack::new(id, ReasonCode::Success)));
        assert_eq!(client.wait_for_ack(PacketType::PubRel, id), ReasonCode::Success);
        client.settle();
    }
}

#[test]
fn mqtt_2_2_1_4_unacknowledged_messages_have_ids_of_their_own() {
    let broker = BrokerProcess::start(&[]);
    let (mut publisher, mut subscriber) = pair(&broker, ProtocolVersion::V5);
    let mut ids = Vec::new();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().cycle().take(20) {
        publisher.publish("topic", "payload", qos);
        ids.push(subscriber.receive_publish().packet_id.expect("QoS 1 and 2 have one"));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}

fn pair(broker: &BrokerProcess, version: ProtocolVersion) -> (RawClient, RawClient) {
    let publisher = broker.client(version, "publisher");
    let mut subscriber = broker.client(version, "subscriber");
    subscriber.subscribe("topic", QoS::ExactlyOnce);
    (publisher, subscriber)
}
