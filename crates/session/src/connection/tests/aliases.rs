//! Topic Aliases in both directions (MQTT 5.0 §3.3.2.3.4).

use super::*;
use std::num::NonZeroU16;

fn aliased(name: &str, alias: u16) -> Packet {
    let topic = if name.is_empty() { TopicName::ALIASED } else { topic(name) };
    Packet::Publish(Publish { topic, topic_alias: NonZeroU16::new(alias), ..publish(0, QoS::AtMostOnce) })
}

fn taking(topic_alias_maximum: u16) -> Limits {
    Limits { topic_alias_maximum, ..Limits::default() }
}

fn sending(peer_topic_alias_maximum: u16) -> Limits {
    Limits { peer_topic_alias_maximum, ..Limits::default() }
}

/// Returns topic and alias of the PUBLISHes written for `topics`.
fn sent(side: &mut Side, topics: &[&str]) -> Vec<(String, u16)> {
    for topic in topics {
        assert!(matches!(side.send(delivery(topic, QoS::AtMostOnce)), Sent::Written(None)));
    }
    let pairs = side.written().into_iter().map(|packet| match packet {
        Packet::Publish(publish) => (publish.topic.to_string(), publish.topic_alias.map_or(0, NonZeroU16::get)),
        other => panic!("{other:?}"),
    });
    pairs.collect()
}

fn owned(pairs: &[(&str, u16)]) -> Vec<(String, u16)> {
    pairs.iter().map(|&(topic, alias)| (topic.to_owned(), alias)).collect()
}

#[test]
fn mqtt_3_3_2_12_aliases_up_to_maximum_can_be_reassigned() {
    for role in [Role::Server, Role::Client] {
        let mut side = Side::new(role, ProtocolVersion::V5, taking(3), Session::new(), epoch());
        for (name, alias, meant) in
            [("a", 3, "a"), ("", 3, "a"), ("b", 1, "b"), ("c", 3, "c"), ("", 1, "b"), ("", 3, "c"), ("a", 2, "a")]
        {
            assert_eq!(assert_new(side.take(aliased(name, alias))).topic, topic(meant));
        }
    }
}

#[test]
fn mqtt_3_3_2_9_an_alias_above_the_maximum_is_0x94() {
    for (maximum, alias) in [(0, 1), (3, 4), (3, u16::MAX)] {
        let mut side = Side::server(taking(maximum));
        assert_violation(side.take(aliased("a", alias)), Violation::TopicAliasTooHigh(alias), 0x94);
        let mut side = Side::server(taking(maximum));
        assert_violation(side.take(aliased("", alias)), Violation::TopicAliasTooHigh(alias), 0x94);
    }
}

#[test]
fn unknown_alias_is_a_protocol_error() {
    let mut side = Side::server(taking(9));
    assert_new(side.take(aliased("a", 5)));
    assert_violation(side.take(aliased("", 4)), Violation::TopicAliasUnknown(4), 0x82);
    assert_violation(side.take(aliased("", 6)), Violation::TopicAliasUnknown(6), 0x82);
}

#[test]
fn mqtt_3_3_2_7_aliases_end_with_their_connection() {
    let limits = Limits { topic_alias_maximum: 3, ..sending(3) };
    let mut side = Side::server(limits);
    assert_new(side.take(aliased("a", 1)));
    assert_eq!(sent(&mut side, &["x", "x"]), owned(&[("x", 1), ("", 1)]));
    side = side.reconnect(limits);
    assert_eq!(sent(&mut side, &["y", "x", "x"]), owned(&[("y", 1), ("x", 2), ("", 2)]));
    assert_violation(side.take(aliased("", 1)), Violation::TopicAliasUnknown(1), 0x82);
}

#[test]
fn mqtt_3_3_2_7_a_message_sent_again_has_its_topic() {
    let mut side = Side::server(sending(1));
    side.sent(QoS::AtLeastOnce);
    side.sent(QoS::AtLeastOnce);
    assert_eq!(sent(&mut side, &[]), owned(&[("topic", 1), ("", 1)]));
    side = side.reconnect(sending(0));
    assert_eq!(sent(&mut side, &[]), owned(&[("topic", 0), ("topic", 0)]));
}

#[test]
fn aliases_are_separate_for_each_direction() {
    let mut side = Side::server(Limits { topic_alias_maximum: 3, ..sending(3) });
    assert_new(side.take(aliased("a", 1)));
    assert_eq!(sent(&mut side, &["b", "a", "b"]), owned(&[("b", 1), ("a", 2), ("", 1)]));
    assert_eq!(assert_new(side.take(aliased("", 1))).topic, topic("a"));
    assert_violation(side.take(aliased("", 2)), Violation::TopicAliasUnknown(2), 0x82);
}

#[test]
fn mqtt_3_1_2_26_and_27_sent_aliases_respect_peers_maximum() {
    let topics = ["a", "b", "a", "c", "c", "b"];
    for (maximum, expected) in [
        (0, [("a", 0), ("b", 0), ("a", 0), ("c", 0), ("c", 0), ("b", 0)]),
        (1, [("a", 1), ("b", 0), ("", 1), ("c", 0), ("c", 0), ("b", 0)]),
        (2, [("a", 1), ("b", 2), ("", 1), ("c", 0), ("c", 0), ("", 2)]),
        (9, [("a", 1), ("b", 2), ("", 1), ("c", 3), ("", 3), ("", 2)]),
    ] {
        assert_eq!(sent(&mut Side::server(sending(maximum)), &topics), owned(&expected), "maximum {maximum}");
    }
}

#[test]
fn version_3_1_1_has_no_aliases() {
    let mut side = Side::new(Role::Server, ProtocolVersion::V311, sending(3), Session::new(), epoch());
    assert_eq!(sent(&mut side, &["a", "a"]), owned(&[("a", 0), ("a", 0)]));
}

#[test]
fn long_topic_gets_no_alias() {
    let mut side = Side::server(sending(9));
    let long = "x".repeat(257);
    let short = &long[1..];
    let expected = [(&long[..], 0), (&long[..], 0), (short, 1), ("", 1)];
    assert_eq!(sent(&mut side, &[&long, &long, short, short]), owned(&expected));
}

#[test]
fn topics_of_aliases_are_bounded_in_bytes() {
    for role in [Role::Server, Role::Client] {
        let mut side = Side::new(role, ProtocolVersion::V5, taking(10), Session::new(), epoch());
        // A replaced topic does not count.
        for _ in 0..100 {
            assert_new(side.take(aliased(&"x".repeat(10_000), 1)));
        }
        for alias in 2..=10 {
            assert_new(side.take(aliased(&"x".repeat(256), alias)));
        }
        assert_new(side.take(aliased("", 10)));
        let result = side.take(aliased(&"x".repeat(17_000), 2));
        assert_violation(result, Violation::TopicAliasBytes(16_384 + 10 * 256), 0x97);
    }
}
