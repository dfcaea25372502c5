//! Matching of filters and topics, and overlapping subscriptions.

use tenbin_codec::{Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, VERSIONS, is_store_durable, subscription};

#[test]
fn mqtt_3_3_2_3_filters_match_as_the_standard_says() {
    let broker = BrokerProcess::start(&[]);
    for (filter, matching, other) in FILTERS {
        let mut subscriber = broker.v5("subscriber");
        let mut publisher = broker.v5("publisher");
        subscriber.subscribe(filter, QoS::AtLeastOnce);
        for topic in matching.iter().chain(*other) {
            publisher.publish(topic, topic, QoS::AtLeastOnce);
        }
        assert_eq!(subscriber.drain_payloads(), *matching, "{filter}");
    }
}

/// Filter, topics that match, topics that do not.
#[rustfmt::skip]
const FILTERS: &[(&str, &[&str], &[&str])] = &[
    ("a/b",     &["a/b"],                                     &["a", "a/b/", "/a/b", "a/b/c", "A/b"]),
    ("#",       &["a", "a/b", "/", "/a"],                     &["$other", "$other/a"]),
    ("a/#",     &["a", "a/", "a/b", "a/b/c"],                 &["ab", "/a"]),
    ("+",       &["a", "b"],                                  &["a/b", "/a", "$other"]),
    ("+/b",     &["a/b", "/b"],                               &["b", "a/b/c", "$other/b"]),
    ("a/+/c",   &["a/b/c", "a//c"],                           &["a/c", "a/b/b/c"]),
    ("+/+",     &["/a", "a/", "a/b"],                         &["a", "a/b/c"]),
    ("/+",      &["/a", "/"],                                 &["a", "a/b"]),
    ("+/b/#",   &["a/b", "a/b/c", "/b/c/d"],                  &["a/c", "b", "$other/b/c"]),
    ("$other/#", &["$other", "$other/a"],                     &["other", "$othera"]),
    ("$other/+", &["$other/a", "$other/"],                    &["$other", "other/a"]),
    ("a b/é/\u{FEFF}", &["a b/é/\u{FEFF}"],                   &["a b/e/\u{FEFF}", "a b/é/"]),
];

#[test]
fn mqtt_4_7_2_1_leading_wildcards_exclude_sys() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    for filter in ["#", "+/a", "+/#", "$SYS/a"] {
        client.subscribe(filter, QoS::AtLeastOnce);
    }
    assert_eq!(client.publish("$SYS/a", "mine", QoS::AtLeastOnce), ReasonCode::NotAuthorized);
    assert_eq!(client.publish("$SYS/a", "mine", QoS::ExactlyOnce), ReasonCode::NotAuthorized);
    client.publish("$SYS/a", "mine", QoS::AtMostOnce);
    client.expect_nothing_waiting();
}

#[test]
fn mqtt_3_3_4_2_overlapping_filters_bring_one_copy_at_max_qos() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut subscriber = broker.client(version, "subscriber");
        for (filter, qos) in [("a/+", QoS::AtMostOnce), ("a/b", QoS::AtLeastOnce), ("#", QoS::AtMostOnce)] {
            subscriber.subscribe(filter, qos);
        }
        let mut publisher = broker.client(version, "publisher");
        publisher.publish("a/b", "one", QoS::ExactlyOnce);
        let messages = subscriber.drain();
        assert_eq!(messages.iter().map(|message| message.qos).collect::<Vec<_>>(), [QoS::AtLeastOnce], "{version}");
    }
}

#[test]
fn mqtt_3_3_4_4_one_copy_carries_all_matching_identifiers() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    for (identifier, filter) in
        [(Some(1), "a/b"), (Some(2), "a/+"), (None, "+/b"), (Some(268_435_455), "#"), (Some(5), "other")]
    {
        client.subscribe_to(identifier, vec![subscription(filter, QoS::AtLeastOnce)]);
    }
    client.publish("a/b", "", QoS::AtLeastOnce);
    assert_eq!(identifiers(client.drain()), [[1, 2, 268_435_455]]);
}

#[test]
fn mqtt_3_3_4_3_identifiers_are_sent_only_if_given() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    client.subscribe_to(Some(7), vec![subscription("a", QoS::AtMostOnce), subscription("b", QoS::AtMostOnce)]);
    client.subscribe_to(None, vec![subscription("c", QoS::AtMostOnce)]);
    // The same identifier may stand for several subscriptions.
    client.subscribe_to(Some(7), vec![subscription("d", QoS::AtMostOnce)]);
    for topic in ["a", "b", "c", "d"] {
        client.publish(topic, "", QoS::AtLeastOnce);
    }
    assert_eq!(identifiers(client.drain()), [vec![7], vec![7], vec![], vec![7]]);

    // A new SUBSCRIBE replaces or removes it.
    client.subscribe_to(Some(8), vec![subscription("a", QoS::AtMostOnce)]);
    client.subscribe_to(None, vec![subscription("b", QoS::AtMostOnce)]);
    client.publish("a", "", QoS::AtLeastOnce);
    client.publish("b", "", QoS::AtLeastOnce);
    assert_eq!(identifiers(client.drain()), [vec![8], vec![]]);
}

#[test]
fn mqtt_4_7_3_3_long_topics_are_served_and_deep_ones_refused() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("");
    // A store limits the length of keys.
    let long = "x".repeat(if is_store_durable() { 65_000 } else { 65_535 });
    client.subscribe(&long, QoS::AtLeastOnce);
    client.publish(&long, "long", QoS::AtLeastOnce);
    assert_eq!(client.receive_message().topic.text().as_str(), long);

    let deep = "/".repeat(65_535);
    let refused = client.subscribe_to(None, vec![subscription(&deep, QoS::AtLeastOnce)]);
    assert_eq!(refused, [ReasonCode::TopicFilterInvalid]);
    let wide = "+/".repeat(32_000) + "#";
    let refused = client.subscribe_to(None, vec![subscription(&wide, QoS::AtLeastOnce)]);
    assert_eq!(refused, [ReasonCode::TopicFilterInvalid]);
    assert_eq!(client.publish(&deep, "deep", QoS::AtLeastOnce), ReasonCode::TopicNameInvalid);
    client.expect_nothing_waiting();
}

fn identifiers(messages: Vec<Publish>) -> Vec<Vec<u32>> {
    let sorted = |mut identifiers: Vec<u32>| {
        identifiers.sort_unstable();
        identifiers
    };
    messages.into_iter().map(|message| sorted(message.subscription_identifiers)).collect()
}
