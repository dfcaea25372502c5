//! Message properties, and message expiry.

use std::time::Duration;

use bytes::Bytes;
use tenbin_codec::{MessageProperties, ProtocolVersion, Publish, QoS, UserProperty};

use crate::support::{BrokerProcess, QOS_ALL, at_qos, lasting, text, with_expiry};

#[test]
fn mqtt_3_3_2_4_and_15_to_20_properties_are_forwarded_unchanged() {
    let broker = BrokerProcess::start(&[]);
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        message_expiry_interval: None,
        content_type: Some(text("text/plain; charset=utf-8")),
        response_topic: Some(text("reply/\u{FEFF}to")), // [MQTT-1.5.4-3]
        correlation_data: Some(Bytes::from_static(&[0, 255, 1, 0])),
        user_properties: [("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("a", "0")]
            .map(|(name, value)| UserProperty::new(text(name), text(value)))
            .into(),
    };
    let mut client = broker.v5("client");
    client.subscribe("topic", QoS::ExactlyOnce);
    let mut old = broker.v311("old");
    old.subscribe("topic", QoS::ExactlyOnce);
    for qos in QOS_ALL {
        client.publish_with(Publish { properties: properties.clone().boxed(), ..at_qos("topic", "payload", qos) });
        let message = client.receive_message();
        assert_eq!(message.properties.as_deref(), Some(&properties), "QoS {qos}");
        let message = old.receive_message();
        assert_eq!((message.payload, message.properties), (Bytes::from("payload"), None), "3.1.1, QoS {qos}");
    }
}

#[test]
fn a_message_without_properties_arrives_without_any() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.subscribe("topic", QoS::AtLeastOnce);
    let mut old = broker.v311("old");
    client.publish("topic", "new", QoS::AtLeastOnce);
    old.publish("topic", "old", QoS::AtLeastOnce);
    for message in client.drain() {
        assert_eq!(message.properties, None);
        assert!(message.subscription_identifiers.is_empty());
    }
}

#[test]
fn mqtt_3_3_2_6_expiry_is_reduced_by_the_time_in_the_queue() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("topic", QoS::AtLeastOnce);
    sleeper.disconnect(); // waits until the broker has closed
    let mut publisher = broker.v5("publisher");
    for (payload, seconds) in [("short", 1), ("long", 100)] {
        publisher.publish_with(with_expiry(at_qos("topic", payload, QoS::AtLeastOnce), seconds));
    }
    publisher.publish("topic", "unlimited", QoS::AtLeastOnce);
    std::thread::sleep(Duration::from_millis(1200)); // the measured time
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    let messages = sleeper.receive_messages(2);
    let payloads: Vec<_> = messages.iter().map(|message| &message.payload[..]).collect();
    assert_eq!(payloads, [&b"long"[..], b"unlimited"], "[MQTT-3.3.2-5]");
    let expiry = messages[0].properties.as_ref().and_then(|properties| properties.message_expiry_interval);
    assert!(matches!(expiry, Some(90..=99)), "{expiry:?}");
    assert_eq!(messages[1].properties, None);
}

#[test]
fn a_message_that_does_not_wait_keeps_its_expiry() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.subscribe("topic", QoS::AtLeastOnce);
    for seconds in [1000, u32::MAX] {
        client.publish_with(with_expiry(at_qos("topic", "payload", QoS::AtLeastOnce), seconds));
        let properties = client.receive_message().properties.expect("an expiry");
        let left = properties.message_expiry_interval.expect("an expiry");
        assert!((seconds - 10..=seconds).contains(&left), "{left} of {seconds}");
    }
}
