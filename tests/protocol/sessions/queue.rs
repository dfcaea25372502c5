//! Messages queued for an offline client.

use tenbin_codec::{QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, Numbered, VERSIONS, lasting, number_of};

#[test]
fn mqtt_4_6_0_5_the_offline_queue_comes_in_order() {
    for version in VERSIONS {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let broker = BrokerProcess::start(&[]);
            let mut sleeper = broker.connect(lasting(version, "sleeper"));
            sleeper.subscribe("queue/+", QoS::ExactlyOnce);
            sleeper.disconnect();
            let messages = Numbered { topics: &["queue/a", "queue/b"], count: 5000, qos };
            messages.publish(&mut broker.v5("publisher"));
            let mut sleeper = broker.connect(lasting(version, "sleeper"));
            assert!(messages.receive(&mut sleeper) == messages.in_order(), "{version}, QoS {qos}");
            sleeper.expect_nothing_waiting();
        }
    }
}

#[test]
fn qos_0_messages_and_qos_0_subscriptions_are_not_queued() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
    sleeper.subscribe("two", QoS::ExactlyOnce);
    sleeper.subscribe("zero", QoS::AtMostOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    for (topic, payload, qos) in [
        ("two", "0", QoS::AtMostOnce),
        ("two", "1", QoS::AtLeastOnce),
        ("zero", "granted 0", QoS::ExactlyOnce),
        ("two", "2", QoS::ExactlyOnce),
    ] {
        publisher.publish(topic, payload, qos);
    }
    let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
    let payloads: Vec<_> = sleeper.receive_messages(2).into_iter().map(|message| message.payload).collect();
    assert_eq!(payloads, ["1", "2"]);
}

#[test]
fn queued_messages_survive_several_connections() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
    sleeper.subscribe("topic", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    for payload in ["1", "2", "3"] {
        publisher.publish("topic", payload, QoS::AtLeastOnce);
    }
    for left in [["1", "2", "3"].as_slice(), &["2", "3"], &["3"], &[]] {
        let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
        match left {
            [first, ..] => assert_eq!(sleeper.receive_message().payload, first.as_bytes()),
            [] => sleeper.expect_nothing_waiting(),
        }
        // The acknowledgement was read before the connection ended.
        sleeper.disconnect();
    }
}

#[test]
fn full_queue_refuses_further_qos_1_messages() {
    // The bound also holds on disk, if there is a store.
    let file = ConfigFile::new("[queue]\nmessages_maximum = 10\n[store]\nqueue_bytes_maximum = 700");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
    sleeper.subscribe("topic", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..25 {
        let reason = publisher.publish("topic", &number.to_string(), QoS::AtLeastOnce);
        let expected = if number < 10 { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
        assert_eq!(reason, expected, "message {number}");
    }
    let mut sleeper = broker.connect(lasting(VERSIONS[0], "sleeper"));
    let numbers: Vec<_> = sleeper.receive_messages(10).iter().map(number_of).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}
