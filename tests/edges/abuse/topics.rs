//! Deep topics and filters, and filters that are expensive to match.

use std::time::Instant;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode, Subscription};

use crate::abuse::broker_with;
use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, PATIENCE, RawClient, at_qos, lasting, message, retained, subscription};

/// Every use of a topic with as many levels as fit into a string is refused: growth ≤ 16 MiB.
#[test]
fn sixty_five_thousand_levels_are_refused() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let deep = "/".repeat(65_535);
    let plus = format!("+{}", "/+".repeat(32_767));
    let hash = format!("{}#", "+/".repeat(32_767));
    let shared = format!("$share/g/{}+", "+/".repeat(32_762));
    for _ in 0..20 {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            assert_eq!(client.publish(&deep, "x", qos), ReasonCode::TopicNameInvalid);
        }
        client.publish(&deep, "x", QoS::AtMostOnce);
        assert_eq!(client.publish_with(retained(&deep, "x")), ReasonCode::TopicNameInvalid);
        for filter in [&deep, &plus, &hash, &shared] {
            let reasons = client.subscribe_to(None, vec![subscription(filter, QoS::AtMostOnce)]);
            assert_eq!(reasons, [ReasonCode::TopicFilterInvalid]);
        }
    }
    broker.assert_serves();
    growth.assert_within(16, "65,535 levels");
}

/// As many levels as the configuration allows: no stack overflows, growth ≤ 16 MiB.
#[test]
fn a_thousand_levels_work() {
    let broker = broker_with("[sessions]\ntopic_levels_maximum = 1000");
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let deep = "/".repeat(999);
    let plus = format!("+{}", "/+".repeat(999));
    let hash = format!("{}#", "+/".repeat(999));
    assert_eq!(client.publish_with(retained(&deep, "x")), ReasonCode::Success);
    for filter in [&deep[..], &plus, &hash, "#"] {
        client.subscribe(filter, QoS::AtLeastOnce);
        assert_eq!(client.receive_message().topic.as_bytes(), deep.as_bytes(), "retained");
    }
    client.publish(&deep, "y", QoS::AtLeastOnce);
    assert_eq!(client.drain_payloads(), ["y"], "one copy");
    client.publish_with(retained(&deep, ""));
    client.drain();
    client.unsubscribe(&[&deep, &plus, &hash, "#"]);
    assert_eq!(client.publish(&deep, "y", QoS::AtLeastOnce), ReasonCode::NoMatchingSubscribers);
    growth.assert_within(16, "1,000 levels");
}

/// All 2,048 filters of 11 levels of `a` or `+` match one topic, so a tree walk visits all of them. 1,000 messages
/// within 10 s, growth ≤ 48 MiB.
#[test]
fn matching_2048_wildcard_filters_is_fast() {
    let broker = broker_with("[sessions]\nwildcard_patterns_maximum = 2048");
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let levels = 11;
    let filters = (0..1u32 << levels).map(|choice| {
        let level = |n: u32| if choice >> n & 1 == 0 { "a" } else { "+" };
        (0..levels).map(level).collect::<Vec<_>>().join("/")
    });
    let filters = filters.collect::<Vec<_>>();
    for some in filters.chunks(512) {
        let some: Vec<Subscription> = some.iter().map(|filter| subscription(filter, QoS::AtMostOnce)).collect();
        assert!(client.subscribe_to(None, some).iter().all(|reason| *reason == ReasonCode::Success));
    }
    let topic = vec!["a"; levels as usize].join("/");
    let mut publisher = broker.v5("publisher");
    let began = Instant::now();
    for number in 0..1000 {
        // Every other topic is new, so that no cached route is used. Half of the filters match it.
        let topic = if number % 2 == 0 { topic.clone() } else { format!("{}/{number}", &topic[..topic.len() - 2]) };
        publisher.publish(&topic, "x", QoS::AtLeastOnce);
    }
    let took = began.elapsed();
    assert!(took < PATIENCE, "1,000 messages took {took:?}");
    assert_eq!(client.drain().len(), 1000, "one copy of each");
    growth.assert_within(48, "2,048 filters of one topic");
}

/// Malformed `$share` filters are refused, and publishing to similar topics does no harm.
#[test]
fn malformed_share_filters_are_refused_without_side_effects() {
    let broker = BrokerProcess::start(&[]);
    for bad in ["$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/#/t", "$share/g#/t"] {
        let mut client = broker.open(ProtocolVersion::V5);
        client.send(&tenbin_codec::Packet::Connect(Box::new(lasting(ProtocolVersion::V5, "sharer"))));
        client.wait_for(tenbin_codec::PacketType::ConnAck);
        // SUBSCRIBE by hand: the codec makes no illegal filter.
        let mut packet = vec![0x82, 6 + bad.len() as u8, 0, 1, 0, 0, bad.len() as u8];
        packet.extend(bad.bytes());
        packet.push(0);
        client.send_bytes(&packet);
        client.read_to_end();
        let mut publisher = broker.v5("publisher");
        publisher.publish("t", "x", QoS::AtLeastOnce);
        publisher.publish("share/g/t", "x", QoS::AtLeastOnce);
    }
    broker.assert_serves();
}

/// 20 clients find 2^13 retained topics with a filter of wildcards only, and disconnect at once: growth ≤ 32 MiB.
#[test]
fn wildcards_over_many_retained_topics() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut publisher = broker.v5("publisher");
    let levels = 13;
    for choice in 0..1u32 << levels {
        let level = |n: u32| if choice >> n & 1 == 0 { "a" } else { "b" };
        let name = (0..levels).map(level).collect::<Vec<_>>().join("/");
        let publish = tenbin_codec::Publish { retain: true, ..message(&name, "x") };
        publisher.send(&tenbin_codec::Packet::Publish(publish));
    }
    publisher.publish_with(at_qos("end", "x", QoS::AtLeastOnce));
    let mut storm = (0..20).map(|number| broker.v5(&format!("client-{number}"))).collect::<Vec<RawClient>>();
    for client in &mut storm {
        client.subscribe(&vec!["+"; levels as usize].join("/"), QoS::AtLeastOnce);
    }
    drop(storm);
    let mut client = broker.v5("client");
    client.subscribe(&vec!["+"; levels as usize].join("/"), QoS::AtMostOnce);
    assert_eq!((0..1 << levels).map(|_| client.receive_publish()).filter(|publish| publish.retain).count(), 8192);
    growth.assert_within(32, "8,192 retained topics");
}
