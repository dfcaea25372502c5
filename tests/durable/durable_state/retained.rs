use std::time::Duration;

use tenbin_codec::{MessageProperties, Publish, QoS, ReasonCode};

use super::DataDirectory;
use crate::support::{BrokerProcess, QOS_ALL, at_qos, retained, text, with_expiry};

#[test]
fn acknowledged_retained_messages_survive_a_kill() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut client = broker.v5("client");
    for publish in [
        retained("a/set", "1"),
        retained("a/replaced", "1"),
        retained("a/replaced", "2"),
        retained("a/cleared", "1"),
        retained("a/cleared", ""),
        Publish { retain: true, ..at_qos("a/twice", "2", QoS::ExactlyOnce) },
        retained("b", &"long".repeat(50_000)),
    ] {
        assert_eq!(client.publish_with(publish), ReasonCode::Success);
    }
    for _ in 0..2 {
        client.publish_with(retained("a/came back", ""));
        client.publish_with(retained("a/came back", "1"));
    }
    drop((client, broker));
    // The second start follows a run that changed nothing.
    for _ in 0..2 {
        let broker = stage.start();
        assert_eq!(greeting(&broker, "a/+"), ["a/came back 1", "a/replaced 2", "a/set 1", "a/twice 2"]);
        assert_eq!(greeting(&broker, "b")[0].len(), 200_002);
    }
}

#[test]
fn a_message_keeps_its_properties_and_its_qos() {
    let stage = DataDirectory::new();
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        content_type: Some(text("text/plain")),
        response_topic: Some(text("answers")),
        correlation_data: Some("42".into()),
        ..MessageProperties::default()
    };
    let broker = stage.start();
    for qos in QOS_ALL {
        let publish = Publish { retain: true, ..at_qos(&qos.bits().to_string(), "x", qos) };
        broker.v5("client").publish_with(Publish { properties: properties.clone().boxed(), ..publish });
    }
    broker.v5("client").publish_with(retained("last", "x")); // commits the QoS 0 message, too
    drop(broker);
    let broker = stage.start();
    for qos in QOS_ALL {
        let mut client = broker.v5("client");
        client.subscribe(&qos.bits().to_string(), QoS::ExactlyOnce);
        let message = client.receive_message();
        assert_eq!((message.qos, message.retain), (qos, true));
        assert_eq!(message.properties, properties.clone().boxed());
    }
}

#[test]
fn mqtt_3_3_2_5_retained_message_expires_by_wall_clock() {
    let stage = DataDirectory::new();
    let broker = stage.start();
    let mut client = broker.v5("client");
    client.publish_with(with_expiry(retained("over", "1"), 2));
    client.publish_with(with_expiry(retained("not yet", "1"), 600));
    drop((client, broker));
    std::thread::sleep(Duration::from_millis(2100));
    let broker = stage.start();
    let mut client = broker.v5("client");
    client.subscribe("#", QoS::AtLeastOnce);
    let message = client.receive_message();
    assert_eq!(message.topic.as_bytes(), b"not yet");
    let rest = message.properties.expect("an expiry").message_expiry_interval.expect("an expiry");
    assert!((500..=598).contains(&rest), "{rest}");
    client.expect_nothing_waiting();
}

#[test]
fn a_broker_without_a_store_forgets() {
    let broker = BrokerProcess::start(&["--ephemeral"]);
    broker.v5("client").publish_with(retained("a", "1"));
    drop(broker);
    assert_eq!(greeting(&BrokerProcess::start(&["--ephemeral"]), "#"), [""; 0]);
}

/// Topics and payloads of retained messages, sorted.
fn greeting(broker: &BrokerProcess, filter: &str) -> Vec<String> {
    let mut client = broker.v5("greeted");
    client.subscribe(filter, QoS::AtLeastOnce);
    let messages = client.drain().into_iter();
    let mut lines = messages
        .map(|message| format!("{} {}", message.topic.text(), String::from_utf8_lossy(&message.payload)))
        .collect::<Vec<_>>();
    lines.sort();
    lines
}
