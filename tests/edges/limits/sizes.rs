//! Limits on lengths and sizes within one packet.

use std::num::NonZeroU32;

use bytes::Bytes;
use tenbin_codec::{
    Connect, MessageProperties, Packet, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Text, Unsubscribe,
    UserProperty, Will,
};

use crate::limits::broker_with;
use crate::support::{BrokerProcess, RawClient, at_qos, filter, lasting, message, subscription, text, topic};

fn will(name: &str, payload: usize) -> Will {
    Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic: topic(name),
        payload: vec![b'w'; payload].into(),
        delay_interval: None,
        properties: None,
    }
}

fn user_properties(count: usize) -> Vec<UserProperty> {
    vec![UserProperty::new(Text::from_static("k"), Text::EMPTY); count]
}

#[test]
fn client_identifiers() {
    assert_longest_client_identifier(&BrokerProcess::start(&[]), 1024);
    assert_longest_client_identifier(&broker_with("[sessions]\nclient_id_bytes_maximum = 30"), 30);
}

fn assert_longest_client_identifier(broker: &BrokerProcess, bytes: usize) {
    for (version, reason) in [
        (ProtocolVersion::V5, ReasonCode::ClientIdentifierNotValid),
        (ProtocolVersion::V311, ReasonCode::ClientIdentifierNotValid),
    ] {
        broker.client(version, &"c".repeat(bytes)).settle();
        let (mut client, connack) =
            RawClient::try_connect(broker.address(), Connect::new(version, text(&"c".repeat(bytes + 1))));
        assert_eq!(connack.reason, reason);
        client.expect_closed();
    }
}

#[test]
fn wills() {
    let broker = broker_with("[sessions]\nwill_bytes_maximum = 100");
    let connect =
        |payload| Connect { will: Some(will("will", payload)), ..Connect::new(ProtocolVersion::V5, text("client")) };
    broker.connect(connect(96)).settle();
    let (mut client, connack) = RawClient::try_connect(broker.address(), connect(97));
    assert_eq!(connack.reason, ReasonCode::QuotaExceeded);
    client.expect_closed();
}

#[test]
fn topic_lengths() {
    let broker = broker_with("[sessions]\ntopic_bytes_maximum = 20");
    let mut client = broker.v5("client");
    let (fits, longer) = ("t".repeat(20), "t".repeat(21));
    client.subscribe(&fits, QoS::AtLeastOnce);
    assert_eq!(client.publish(&fits, "x", QoS::AtLeastOnce), ReasonCode::Success);
    client.receive_message();
    assert_eq!(
        client.subscribe_to(None, vec![subscription(&longer, QoS::AtMostOnce)]),
        [ReasonCode::TopicFilterInvalid]
    );
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(client.publish(&longer, "x", qos), ReasonCode::TopicNameInvalid);
    }
    let connect = Connect { will: Some(will(&longer, 1)), ..Connect::new(ProtocolVersion::V5, text("other")) };
    let (_, connack) = RawClient::try_connect(broker.address(), connect);
    assert_eq!(connack.reason, ReasonCode::TopicNameInvalid);
    client.settle();
}

#[test]
fn topic_levels() {
    let broker = broker_with("[sessions]\ntopic_levels_maximum = 3");
    let mut client = broker.v5("client");
    client.subscribe("+/+/+", QoS::AtLeastOnce);
    assert_eq!(client.publish("a/b/c", "x", QoS::AtLeastOnce), ReasonCode::Success);
    client.receive_message();
    let refused = client.subscribe_to(None, vec![subscription("+/+/+/+", QoS::AtMostOnce)]);
    assert_eq!(refused, [ReasonCode::TopicFilterInvalid]);
    assert_eq!(client.publish("a/b/c/", "x", QoS::AtLeastOnce), ReasonCode::TopicNameInvalid);
    client.settle();
}

#[test]
fn packets() {
    let broker = broker_with("[connections]\npacket_bytes_maximum = 1000\nconnect_packet_bytes_maximum = 300");
    let mut client = broker.v5("client");
    client.publish("t", &"x".repeat(900), QoS::AtLeastOnce);
    client.send(&Packet::Publish(message("t", &"x".repeat(1000))));
    client.expect_end(ReasonCode::PacketTooLarge);
    let mut stranger = broker.open(ProtocolVersion::V5);
    let connect = Connect::new(ProtocolVersion::V5, text(&"c".repeat(300)));
    stranger.send(&Packet::Connect(Box::new(connect)));
    stranger.read_to_end();
    broker.assert_serves();
}

#[test]
fn user_properties_of_a_message() {
    let broker = broker_with("[connections]\nuser_properties_maximum = 10");
    let mut client = broker.v5("client");
    client.subscribe("t", QoS::AtLeastOnce);
    let publish = |count| Publish {
        properties: MessageProperties { user_properties: user_properties(count), ..Default::default() }.boxed(),
        ..at_qos("t", "x", QoS::AtLeastOnce)
    };
    assert_eq!(client.publish_with(publish(10)), ReasonCode::Success);
    let received = client.receive_message();
    assert_eq!(received.properties.expect("properties").user_properties.len(), 10);
    let packet_id = Some(client.next_id());
    client.send(&Packet::Publish(Publish { packet_id, ..publish(11) }));
    client.expect_end(ReasonCode::QuotaExceeded);
}

#[test]
fn user_properties_of_a_connect_and_its_will() {
    let broker = broker_with("[connections]\nuser_properties_maximum = 10");
    let connect = |own, of_will| {
        let mut connect = Connect::new(ProtocolVersion::V5, text("client"));
        connect.properties.user_properties = user_properties(own);
        let properties = MessageProperties { user_properties: user_properties(of_will), ..Default::default() };
        connect.will = Some(Will { properties: properties.boxed(), payload: Bytes::new(), ..will("w", 0) });
        connect
    };
    broker.connect(connect(10, 10)).settle();
    for (own, of_will) in [(11, 0), (0, 11)] {
        let (mut client, connack) = RawClient::try_connect(broker.address(), connect(own, of_will));
        assert_eq!(connack.reason, ReasonCode::QuotaExceeded);
        client.expect_closed();
    }
}

/// The answer has a byte for each filter. A request whose answer exceeds the client's Maximum Packet Size has no
/// effect.
#[test]
fn mqtt_3_1_2_24_oversized_answer_ends_the_connection() {
    let broker = broker_with("");
    let mut publisher = broker.v5("publisher");
    let names: Vec<_> = (0..36).map(|number| number.to_string()).collect();
    let subscriptions = |count| names[..count].iter().map(|name| subscription(name, QoS::AtLeastOnce)).collect();
    let mut connect = lasting(ProtocolVersion::V5, "c");
    connect.properties.maximum_packet_size = NonZeroU32::new(40);
    let mut expect_subscribed = |client: &mut RawClient, expected: usize| {
        for name in &names {
            publisher.publish(name, "x", QoS::AtLeastOnce);
        }
        assert_eq!(client.drain().len(), expected);
    };

    let mut client = broker.connect(connect.clone());
    let (packet_id, user_properties) = (client.next_id(), Vec::new());
    let subscribe =
        Subscribe { packet_id, subscription_identifier: None, user_properties, subscriptions: subscriptions(36) };
    client.send(&Packet::Subscribe(subscribe));
    client.expect_end(ReasonCode::PacketTooLarge);
    let mut client = broker.connect(connect.clone());
    expect_subscribed(&mut client, 0);
    assert_eq!(client.subscribe_to(None, subscriptions(35)).len(), 35);
    assert_eq!(client.subscribe_to(None, vec![subscription("35", QoS::AtLeastOnce)]).len(), 1);

    let filters = names.iter().map(|name| filter(name)).collect();
    let packet_id = client.next_id();
    client.send(&Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: Vec::new(), filters }));
    client.expect_end(ReasonCode::PacketTooLarge);
    let mut client = broker.connect(connect);
    expect_subscribed(&mut client, 36);
    let some: Vec<_> = names[..35].iter().map(String::as_str).collect();
    assert_eq!(client.unsubscribe(&some).len(), 35);
    expect_subscribed(&mut client, 1);
}
