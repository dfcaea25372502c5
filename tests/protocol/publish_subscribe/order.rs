//! Messages of one publisher to one topic arrive in order.

use tenbin_codec::{ProtocolVersion, QoS};

use crate::support::{BrokerProcess, Numbered, VERSIONS};

#[test]
fn mqtt_4_6_0_5_qos_0_keeps_its_order() {
    keeps_order(QoS::AtMostOnce, ProtocolVersion::V5);
}

#[test]
fn mqtt_4_6_0_5_qos_1_keeps_its_order() {
    keeps_order(QoS::AtLeastOnce, ProtocolVersion::V5);
}

#[test]
fn mqtt_4_6_0_5_qos_2_keeps_its_order() {
    keeps_order(QoS::ExactlyOnce, ProtocolVersion::V5);
}

#[test]
fn mqtt_4_6_0_5_of_3_1_1_keeps_its_order_too() {
    keeps_order(QoS::ExactlyOnce, ProtocolVersion::V311);
}

/// 10,000 messages, fewer than a queue holds, in turn to two topics: two subscribers get all of them, once.
fn keeps_order(qos: QoS, version: ProtocolVersion) {
    let broker = BrokerProcess::start(&[]);
    let messages = Numbered { topics: &["order/a", "order/b"], count: 10_000, qos };
    let mut publisher = broker.client(version, "publisher");
    let subscribers = VERSIONS.map(|version| {
        let mut subscriber = broker.client(version, &format!("subscriber {version}"));
        subscriber.subscribe("order/+", qos);
        subscriber
    });
    std::thread::scope(|scope| {
        for mut subscriber in subscribers {
            let messages = &messages;
            scope.spawn(move || {
                assert!(messages.receive(&mut subscriber) == messages.in_order(), "lost, repeated or out of order");
                subscriber.expect_nothing_waiting();
            });
        }
        messages.publish(&mut publisher);
    });
}
