//! Messages queued for one session.

use std::time::Duration;

use tenbin_codec::{
    MessageProperties, ProtocolVersion, Publish, QoS, ReasonCode, Subscription, SubscriptionOptions, UserProperty,
};

use crate::support::{
    BrokerProcess, ConfigFile, DataDirectory, RawClient, VERSIONS, at_qos, filter, lasting, text, with_expiry,
};

#[test]
fn mqtt_4_6_0_5_queue_keeps_order_and_dup_after_a_kill() {
    for version in VERSIONS {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            waits(version, qos, true);
            waits(version, qos, false);
        }
    }
}

/// Sends the first messages without acknowledgement. If `before`, the connection ends before the broker, otherwise with
/// it.
fn waits(version: ProtocolVersion, qos: QoS, before: bool) {
    let case = format!("{version}, QoS {qos}, away before the kill: {before}");
    let config = ConfigFile::new("[sessions]\nin_flight_maximum = 3\n");
    let arguments = ["--config", config.path()];
    let directory = DataDirectory::new();
    let broker = directory.start_with(&arguments);
    let mut receiver = subscribed(&broker, version);
    let mut publisher = broker.v5("publisher");
    let mut publish = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            assert_eq!(publisher.publish("topic", &number.to_string(), qos), ReasonCode::Success);
        }
    };
    publish(0..5);
    let first: Vec<_> = (0..3).map(|_| receiver.receive_publish()).collect();
    assert!(first.iter().all(|message| !message.dup), "{case}");
    if before {
        receiver.cut();
    }
    publish(5..20);
    drop(broker);

    let broker = directory.start_with(&arguments);
    let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(version, "receiver"));
    assert!(connack.session_present, "{case}");
    for number in 0..20 {
        let message = receiver.receive_message();
        assert_eq!((&message.payload[..], message.qos), (number.to_string().as_bytes(), qos), "{case}");
        assert_eq!(message.dup, number < 3, "{case}: message {number} [MQTT-3.3.1-1]");
        // At QoS 1 a kill may lose the latest in-flight markers, and with them the Packet Identifiers.
        if let Some(first) = first.get(number).filter(|_| before || qos == QoS::ExactlyOnce) {
            assert_eq!(message.packet_id, first.packet_id, "{case}: message {number} [MQTT-4.4.0-1]");
        }
    }
    receiver.expect_nothing_waiting();
    // Once their acknowledgements are stored, the messages do not come again.
    receiver.disconnect();
    broker.v5("publisher").publish("topic", "last", qos);
    drop(broker);
    let broker = directory.start_with(&arguments);
    let mut receiver = broker.connect(lasting(version, "receiver"));
    assert_eq!(receiver.receive_message().payload, "last", "{case}");
}

#[test]
fn queued_messages_survive_several_restarts() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    subscribed(&broker, ProtocolVersion::V5).disconnect();
    let mut broker = Some(broker);
    for number in 0..4 {
        let running = broker.take().unwrap_or_else(|| directory.start());
        assert_eq!(
            running.v5("publisher").publish("topic", &number.to_string(), QoS::ExactlyOnce),
            ReasonCode::Success
        );
    }
    let broker = directory.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for payload in ["0", "1", "2", "3"] {
        assert_eq!(receiver.receive_message().payload, payload);
    }
    receiver.expect_nothing_waiting();
}

#[test]
fn queued_message_is_unchanged_after_a_kill() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    let options =
        SubscriptionOptions { qos: QoS::ExactlyOnce, retain_as_published: true, ..SubscriptionOptions::default() };
    let subscription = |topic_filter| Subscription { filter: filter(topic_filter), options };
    receiver.subscribe_to(Some(7), vec![subscription("topic/#")]);
    receiver.subscribe_to(Some(300_000), vec![subscription("topic/+")]);
    receiver.cut();
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        content_type: Some(text("text/plain")),
        response_topic: Some(text("answers")),
        correlation_data: Some("42".into()),
        user_properties: ["1", "2"].map(|value| UserProperty { name: text("a"), value: text(value) }).into(),
        ..MessageProperties::default()
    };
    let large = "large ".repeat(20_000);
    for (payload, retain) in [("", false), ("retained", true), (large.as_str(), false)] {
        let publish = at_qos("topic/x", payload, QoS::ExactlyOnce);
        let publish = Publish { retain, properties: properties.clone().boxed(), ..publish };
        assert_eq!(broker.v5("publisher").publish_with(publish), ReasonCode::Success);
    }
    drop(broker);
    let broker = directory.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for (payload, retain) in [("", false), ("retained", true), (large.as_str(), false)] {
        let message = receiver.receive_message();
        assert_eq!((message.topic.as_bytes(), message.retain), (&b"topic/x"[..], retain));
        assert!(message.payload == payload, "{} bytes and not {}", message.payload.len(), payload.len());
        assert_eq!(message.properties, properties.clone().boxed());
        let mut identifiers = message.subscription_identifiers;
        identifiers.sort_unstable();
        assert_eq!(identifiers, [7, 300_000]);
    }
}

#[test]
fn mqtt_3_3_2_5_queued_messages_expire_while_the_broker_is_down() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    subscribed(&broker, ProtocolVersion::V5).cut();
    let mut publisher = broker.v5("publisher");
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for (payload, seconds) in [("over", 2), ("not yet", 600)] {
            publisher.publish_with(with_expiry(at_qos("topic", payload, qos), seconds));
        }
    }
    drop((publisher, broker));
    std::thread::sleep(Duration::from_millis(2100));
    let broker = directory.start();
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let message = receiver.receive_message();
        assert_eq!((&message.payload[..], message.qos), (&b"not yet"[..], qos));
        let rest = message.properties.expect("an expiry").message_expiry_interval.expect("an expiry");
        assert!((500..=598).contains(&rest), "{rest} [MQTT-3.3.2-6]");
    }
    receiver.expect_nothing_waiting();
}

/// A receiver of `topic` with a persistent session.
fn subscribed(broker: &BrokerProcess, version: ProtocolVersion) -> RawClient {
    let mut receiver = broker.connect(lasting(version, "receiver"));
    receiver.subscribe("topic", QoS::ExactlyOnce);
    receiver
}
