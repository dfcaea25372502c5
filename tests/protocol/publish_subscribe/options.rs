//! Subscription Options, SUBACK and UNSUBACK.

use tenbin_codec::{Publish, QoS, ReasonCode, Subscription, SubscriptionOptions};

use crate::support::{BrokerProcess, QOS_ALL, VERSIONS, filter, retained, subscription};

#[test]
fn mqtt_3_8_4_6_suback_has_a_code_for_each_filter_in_order() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "");
        let subscriptions = vec![
            subscription("a", QoS::ExactlyOnce),
            subscription("b", QoS::AtMostOnce),
            subscription("c", QoS::AtLeastOnce),
        ];
        let granted = [ReasonCode::GrantedQoS2, ReasonCode::Success, ReasonCode::GrantedQoS1];
        assert_eq!(client.subscribe_to(None, subscriptions), granted, "{version}");
    }
}

#[test]
fn mqtt_3_11_3_1_unsuback_has_a_code_for_each_filter_in_order() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.subscribe("a/+", QoS::AtLeastOnce);
    client.subscribe("b", QoS::AtLeastOnce);
    // Filters are compared character by character, not matched. [MQTT-3.10.4-1]
    let reasons = client.unsubscribe(&["a/b", "b", "b", "a/+"]);
    let (gone, never_there) = (ReasonCode::Success, ReasonCode::NoSubscriptionExisted);
    assert_eq!(reasons, [never_there, gone, never_there, gone]);
    client.publish("a/b", "", QoS::AtLeastOnce);
    client.publish("b", "", QoS::AtLeastOnce);
    client.expect_nothing_waiting(); // [MQTT-3.10.4-2]

    let mut client = broker.v311("");
    client.subscribe("a", QoS::AtLeastOnce);
    assert_eq!(client.unsubscribe(&["a", "b"]), [], "UNSUBACK has no payload at 3.1.1");
    client.publish("a", "", QoS::AtLeastOnce);
    client.expect_nothing_waiting();
}

#[test]
fn mqtt_3_10_4_3_unsubscribe_does_not_stop_open_deliveries() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.subscribe("a", QoS::ExactlyOnce);
    client.publish("a", "begun", QoS::ExactlyOnce);
    let begun = client.receive_publish();
    client.unsubscribe(&["a"]);
    client.acknowledge(&begun);
}

#[test]
fn mqtt_3_8_4_3_the_same_filter_again_replaces_the_subscription() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "");
        for qos in [QoS::AtMostOnce, QoS::ExactlyOnce, QoS::AtLeastOnce] {
            client.subscribe("a", qos);
            client.publish("a", "", QoS::ExactlyOnce);
            let messages = client.drain();
            assert_eq!(messages.iter().map(|message| message.qos).collect::<Vec<_>>(), [qos], "{version}");
        }
        client.unsubscribe(&["a"]);
        client.publish("a", "", QoS::ExactlyOnce);
        client.expect_nothing_waiting();
    }
}

#[test]
fn mqtt_3_8_3_3_no_local_leaves_out_the_own_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    let mut other = broker.v5("other");
    let options = SubscriptionOptions { no_local: true, qos: QoS::AtLeastOnce, ..SubscriptionOptions::default() };
    client.subscribe_to(None, vec![Subscription { filter: filter("a"), options }]);
    client.publish("a", "own", QoS::AtLeastOnce);
    other.publish("a", "other's", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["other's"]);

    // An overlapping subscription without No Local delivers them.
    client.subscribe("+", QoS::AtLeastOnce);
    client.publish("a", "own", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["own"]);
}

#[test]
fn mqtt_3_3_1_12_and_13_retain_as_published() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    for retain_as_published in [false, true] {
        let mut subscriber = broker.v5("subscriber");
        let options = SubscriptionOptions { retain_as_published, ..SubscriptionOptions::default() };
        subscriber.subscribe_to(None, vec![Subscription { filter: filter("live/+"), options }]);
        for retain in [false, true] {
            publisher.publish_with(Publish { retain, ..retained(&format!("live/{retain}"), "x") });
            let flag = subscriber.receive_message().retain;
            assert_eq!(flag, retain && retain_as_published, "published {retain}, as published {retain_as_published}");
        }
        publisher.publish_with(retained("live/true", "")); // removes it again
    }
}

#[test]
fn one_subscribe_of_many_filters_counts_as_many() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    let filters: Vec<_> = (0..500).map(|number| subscription(&format!("many/{number}"), QOS_ALL[number % 3])).collect();
    let granted = client.subscribe_to(None, filters);
    assert!(granted.iter().enumerate().all(|(number, reason)| reason.byte() == (number % 3) as u8)); // [MQTT-3.8.4-5]
    for number in [0, 250, 499] {
        client.publish(&format!("many/{number}"), &number.to_string(), QoS::AtLeastOnce);
    }
    assert_eq!(client.drain_payloads(), ["0", "250", "499"]);
}
