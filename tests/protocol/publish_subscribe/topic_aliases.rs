//! Topic Aliases, which are separate for each direction and each connection.

use std::collections::HashMap;
use std::num::NonZeroU16;

use tenbin_codec::{Connect, ConnectProperties, Packet, ProtocolVersion, Publish, QoS, ReasonCode, TopicName};

use crate::support::{BrokerProcess, RawClient, at_qos, lasting, text, topic};

#[test]
fn mqtt_3_3_2_12_the_broker_takes_every_alias_up_to_its_maximum() {
    let broker = BrokerProcess::start(&[]);
    let connect = Connect::new(ProtocolVersion::V5, text("publisher"));
    let (mut publisher, connack) = RawClient::connect(broker.address(), connect);
    let maximum = connack.properties.topic_alias_maximum.expect("the broker takes aliases by default");
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("#", QoS::AtLeastOnce);
    for alias in [1, maximum] {
        publisher.publish_with(aliased(&format!("topic/{alias}"), alias));
        publisher.publish_with(Publish { topic: TopicName::ALIASED, ..aliased("unused", alias) });
    }
    publisher.publish_with(aliased("renamed", 1));
    publisher.publish_with(Publish { topic: TopicName::ALIASED, ..aliased("unused", 1) });
    let first = "topic/1".to_owned();
    let last = format!("topic/{maximum}");
    let topics: Vec<_> = subscriber.drain().iter().map(|message| message.topic.text().as_str().to_owned()).collect();
    assert_eq!(topics, [&first, &first, &last, &last, "renamed", "renamed"]);
}

#[test]
fn mqtt_3_2_2_17_an_alias_above_the_maximum_ends_the_connection() {
    let file = crate::support::ConfigFile::new("[sessions]\ntopic_alias_maximum = 3");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut client = broker.v5("");
    client.send(&Packet::Publish(Publish { qos: QoS::AtMostOnce, ..aliased("topic", 4) }));
    client.expect_end(ReasonCode::TopicAliasInvalid);
}

#[test]
fn mqtt_3_3_2_8_alias_0_ends_the_connection() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.send_bytes(b"\x30\x07\x00\x01a\x03\x23\x00\x00");
    match client.receive() {
        Packet::Disconnect(disconnect) => {
            // The standard names no code.
            let reasons = [ReasonCode::ProtocolError, ReasonCode::TopicAliasInvalid];
            assert!(reasons.contains(&disconnect.reason), "{}", disconnect.reason);
        }
        other => panic!("{other:?} instead of DISCONNECT"),
    }
    client.expect_closed();
}

#[test]
fn mqtt_3_3_2_7_aliases_end_with_their_connection() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.publish_with(aliased("topic", 1));
    client.cut();
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    let publish = Publish { topic: TopicName::ALIASED, ..aliased("unused", 1) };
    client.send(&Packet::Publish(Publish { qos: QoS::AtMostOnce, ..publish }));
    client.expect_end(ReasonCode::ProtocolError);
}

#[test]
fn mqtt_3_3_2_11_broker_aliases_stay_within_the_clients_maximum() {
    let broker = BrokerProcess::start(&[]);
    let properties = ConnectProperties { topic_alias_maximum: Some(2), ..ConnectProperties::default() };
    let mut subscriber =
        broker.connect(Connect { properties, ..Connect::new(ProtocolVersion::V5, text("subscriber")) });
    subscriber.subscribe("#", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let topics = ["a", "b", "c", "a", "b", "c", "a", "a", "c"];
    for topic in topics {
        publisher.publish(topic, topic, QoS::AtLeastOnce);
    }
    let mut meanings = HashMap::new();
    let mut saved = 0;
    for sent in topics {
        let message = subscriber.receive_message();
        assert_eq!(message.payload, sent);
        let Some(alias) = message.topic_alias else {
            assert_eq!(message.topic, topic(sent));
            continue;
        };
        assert!(alias.get() <= 2, "alias {alias}");
        if message.topic.is_empty() {
            saved += 1;
        } else {
            meanings.insert(alias, message.topic);
        }
        assert_eq!(meanings.get(&alias), Some(&topic(sent)));
    }
    assert!(saved > 0, "no alias ever stood for a topic");
}

#[test]
fn mqtt_3_1_2_27_no_alias_is_sent_to_a_client_that_takes_none() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..5 {
        publisher.publish_with(aliased("topic", 1));
    }
    for message in subscriber.drain() {
        assert_eq!((message.topic, message.topic_alias), (topic("topic"), None));
    }
}

fn aliased(name: &str, alias: u16) -> Publish {
    Publish { topic_alias: NonZeroU16::new(alias), ..at_qos(name, "payload", QoS::AtLeastOnce) }
}
