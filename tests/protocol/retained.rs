//! Retained messages.

use std::time::{Duration, Instant};

use crate::support::{
    BrokerProcess, ConfigFile, PATIENCE, QOS_ALL, RawClient, VERSIONS, at_qos, filter, retained, share, subscription,
    text, with_expiry,
};
use bytes::Bytes;
use tenbin_codec::{
    MessageProperties, ProtocolVersion, Publish, QoS, ReasonCode, RetainHandling, Subscription, SubscriptionOptions,
    UserProperty,
};

#[test]
fn mqtt_3_3_1_5_new_subscriber_gets_the_last_retained_message() {
    let broker = BrokerProcess::start(&[]);
    for from in VERSIONS {
        let mut publisher = broker.client(from, "publisher");
        publisher.publish_with(retained("state", "old"));
        publisher.publish_with(retained("state", "new"));
        publisher.disconnect();
        for to in VERSIONS {
            let message = only(broker.client(to, "subscriber"), "state");
            assert_eq!((&message.payload[..], message.retain), (&b"new"[..], true), "{from} to {to}");
        }
    }
}

#[test]
fn mqtt_3_3_1_6_and_7_empty_payload_removes_retained_message() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.client(version, "client");
        client.publish_with(retained("state", "there"));
        client.subscribe("state", QoS::AtLeastOnce);
        assert_eq!(client.receive_message().payload, "there");
        client.publish_with(retained("state", ""));
        assert_eq!(client.receive_message().payload, "");
        let mut late = broker.client(version, "late");
        late.subscribe("state", QoS::AtLeastOnce);
        late.expect_nothing_waiting();
    }
}

#[test]
fn mqtt_3_3_1_8_unretained_message_keeps_the_retained_one() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.publish_with(retained("state", "stays"));
    client.publish("state", "passes", QoS::AtLeastOnce);
    client.publish("state", "", QoS::AtLeastOnce);
    client.publish("elsewhere", "passes", QoS::AtLeastOnce);
    client.subscribe("#", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["stays"]);
}

#[test]
fn mqtt_3_3_1_9_to_11_retain_handling() {
    let broker = BrokerProcess::start(&[]);
    broker.v5("publisher").publish_with(retained("state", "x"));
    for (retain_handling, at_first, again) in
        [(RetainHandling::Always, 1, 1), (RetainHandling::IfNew, 1, 0), (RetainHandling::Never, 0, 0)]
    {
        let mut client = broker.v5("subscriber");
        let options = SubscriptionOptions { retain_handling, qos: QoS::AtLeastOnce, ..SubscriptionOptions::default() };
        let subscriptions = vec![Subscription { filter: filter("state"), options }];
        for expected in [at_first, again] {
            client.subscribe_to(None, subscriptions.clone());
            assert_eq!(client.drain().len(), expected, "{retain_handling:?}");
        }
        client.unsubscribe(&["state"]);
        client.subscribe_to(None, subscriptions);
        assert_eq!(client.drain().len(), at_first, "{retain_handling:?}, new again");
    }
}

#[test]
fn every_subscribe_at_3_1_1_brings_retained_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v311("client");
    client.publish_with(retained("state", "x"));
    for _ in 0..2 {
        client.subscribe("state", QoS::AtLeastOnce);
        assert_eq!(client.drain_payloads(), ["x"]);
    }
}

#[test]
fn wildcards_bring_matching_topics_without_leading_dollar() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    let topics = ["a", "a/b", "a/b/c", "/a", "b", "$other/a"];
    for topic in topics {
        publisher.publish_with(retained(topic, topic));
    }
    for (filter, matching) in [
        ("#", &["/a", "a", "a/b", "a/b/c", "b"][..]),
        ("+", &["a", "b"]),
        ("a/#", &["a", "a/b", "a/b/c"]),
        ("+/b/#", &["a/b", "a/b/c"]),
        ("+/+", &["/a", "a/b"]),
        ("a/+/c", &["a/b/c"]),
        ("$other/#", &["$other/a"]),
        ("c", &[]),
    ] {
        let mut subscriber = broker.v5("subscriber");
        subscriber.subscribe(filter, QoS::AtLeastOnce);
        let mut payloads = subscriber.drain_payloads();
        payloads.sort();
        assert_eq!(payloads, matching, "{filter}");
    }
}

#[test]
fn retained_message_has_the_lower_qos_and_the_identifier() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    for published in QOS_ALL {
        publisher.publish_with(Publish { retain: true, ..at_qos("state", "x", published) });
        publisher.settle();
        for granted in QOS_ALL {
            let mut subscriber = broker.v5("subscriber");
            subscriber.subscribe_to(Some(9), vec![subscription("state", granted)]);
            let message = subscriber.receive_message();
            assert_eq!(message.qos, published.min(granted));
            assert_eq!(message.subscription_identifiers, [9]);
        }
    }
}

#[test]
fn a_retained_message_keeps_its_properties() {
    let broker = BrokerProcess::start(&[]);
    let properties = MessageProperties {
        payload_format_indicator: Some(true),
        content_type: Some(text("text/plain")),
        response_topic: Some(text("reply")),
        correlation_data: Some(Bytes::from_static(&[0, 1])),
        user_properties: ["b", "a", "b"].map(|name| UserProperty::new(text(name), text("value"))).into(),
        message_expiry_interval: None,
    };
    let properties = properties.boxed();
    broker.v5("publisher").publish_with(Publish { properties: properties.clone(), ..retained("state", "x") });
    assert_eq!(only(broker.v5("subscriber"), "state").properties, properties);
}

#[test]
fn mqtt_3_3_2_5_and_6_a_retained_message_ages_and_expires() {
    let broker = BrokerProcess::start(&[]);
    let mut publisher = broker.v5("publisher");
    publisher.publish_with(with_expiry(retained("short", "x"), 1));
    publisher.publish_with(with_expiry(retained("long", "x"), 100));
    std::thread::sleep(Duration::from_millis(1200)); // the measured time
    let message = only(broker.v5("subscriber"), "+");
    assert_eq!(message.topic.text().as_str(), "long");
    let expiry = message.properties.and_then(|properties| properties.message_expiry_interval);
    assert!(matches!(expiry, Some(90..=99)), "{expiry:?}");
}

#[test]
fn mqtt_3_3_1_9_retained_messages_may_exceed_the_queue_limit() {
    let file = ConfigFile::new("[queue]\nmessages_maximum = 100");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut publisher = broker.v5("publisher");
    for number in 0..300 {
        publisher.publish_with(retained(&format!("state/{number}"), "x"));
    }
    for qos in QOS_ALL {
        let mut subscriber = broker.v5("subscriber");
        subscriber.subscribe("state/#", qos);
        assert_eq!(subscriber.drain().len(), 300, "QoS {qos}");
    }
}

#[test]
fn a_shared_subscription_brings_no_retained_messages() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.v5("client");
    client.publish_with(retained("state", "x"));
    client.subscribe(&share("group", "state"), QoS::AtLeastOnce);
    client.expect_nothing_waiting();
}

#[test]
fn retained_message_beyond_the_limit_is_only_delivered_live() {
    let file = ConfigFile::new("[retained]\nmessages_maximum = 2");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut client = broker.v5("client");
    client.subscribe("+", QoS::AtLeastOnce);
    assert_eq!(client.publish_with(retained("1", "x")), ReasonCode::Success);
    assert_eq!(client.publish_with(retained("2", "x")), ReasonCode::Success);
    assert_eq!(client.publish_with(retained("3", "x")), ReasonCode::QuotaExceeded);
    assert_eq!(client.publish_with(retained("2", "replaces")), ReasonCode::Success);
    assert_eq!(client.publish_with(retained("1", "")), ReasonCode::Success);
    assert_eq!(client.publish_with(retained("3", "x")), ReasonCode::Success);
    client.drain();
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("+", QoS::AtLeastOnce);
    let mut topics: Vec<_> = subscriber.drain().iter().map(|message| message.topic.text().to_string()).collect();
    topics.sort();
    assert_eq!(topics, ["2", "3"]);
}

#[test]
fn full_retained_store_stops_no_publisher() {
    let file = ConfigFile::new("[retained]\nmessages_maximum = 1\n[sys]\ninterval_seconds = 1\n");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut live = broker.v5("live");
    live.subscribe("+", QoS::ExactlyOnce);
    assert_eq!(broker.v5("first").publish_with(retained("first", "kept")), ReasonCode::Success);
    assert_eq!(live.receive_message().payload, "kept");
    let mut publishers = VERSIONS.map(|version| broker.client(version, &format!("{version:?}")));
    for qos in QOS_ALL {
        for publisher in &mut publishers {
            let version = publisher.version();
            let is_told = version.is_v5() && qos != QoS::AtMostOnce;
            let expected = if is_told { ReasonCode::QuotaExceeded } else { ReasonCode::Success };
            let payload = format!("{version:?} {qos:?}");
            let publish = Publish { qos, ..retained("second", &payload) };
            assert_eq!(publisher.publish_with(publish), expected, "{payload}");
            assert_eq!(live.receive_message().payload, payload);
        }
    }
    publishers.iter_mut().for_each(RawClient::settle);
    let mut late = broker.v5("late");
    late.subscribe("+", QoS::AtMostOnce);
    assert_eq!(late.drain_payloads(), ["kept"]);
    let wait_for = |condition: &dyn Fn() -> bool, what: &str| {
        let until = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_logged = |line: &String| line.contains("messages are not retained") && line.contains("topic=second");
    wait_for(&|| broker.log().all().iter().any(is_logged), "the log says so");
    let refused = || {
        let mut reader = broker.v5("reader");
        reader.subscribe("$SYS/broker/publish/messages/refused/over_quota", QoS::AtMostOnce);
        reader.receive_publish().payload
    };
    wait_for(&|| refused() == (QOS_ALL.len() * VERSIONS.len()).to_string(), "they are counted");
}

#[test]
fn a_retained_publish_to_a_refused_topic_is_not_kept() {
    let broker = BrokerProcess::start(&[]);
    let mut client = broker.client(ProtocolVersion::V5, "client");
    assert_eq!(client.publish_with(retained("$SYS/x", "mine")), ReasonCode::NotAuthorized);
    client.subscribe("$SYS/x", QoS::AtLeastOnce);
    client.expect_nothing_waiting();
}

/// Returns the only retained message of a subscription.
fn only(mut subscriber: RawClient, topic_filter: &str) -> Publish {
    subscriber.subscribe(topic_filter, QoS::ExactlyOnce);
    let mut messages = subscriber.drain();
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.remove(0)
}
