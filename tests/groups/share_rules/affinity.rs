use std::collections::BTreeMap;

use tenbin_codec::{Publish, QoS};

use crate::share_rules::Ruled;
use crate::support::{BrokerProcess, RawClient, at_qos, share};

const PUBLISHERS: usize = 24;

/// Publishes twice with every publisher, in rounds. Returns the member that got the messages of each.
fn members_by_publisher(broker: &BrokerProcess, members: &mut [RawClient]) -> BTreeMap<String, usize> {
    let mut publishers: Vec<_> = (0..PUBLISHERS).map(|number| broker.v5(&format!("publisher {number}"))).collect();
    for _ in 0..2 {
        for (number, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish_with(at_qos(&format!("t/{number}"), &number.to_string(), QoS::AtLeastOnce));
        }
    }
    let mut by_publisher = BTreeMap::new();
    for (index, member) in members.iter_mut().enumerate() {
        for payload in member.drain_payloads() {
            assert_eq!(*by_publisher.entry(payload.clone()).or_insert(index), index, "{payload} went to two members");
        }
    }
    assert_eq!(by_publisher.len(), PUBLISHERS);
    by_publisher
}

fn member(broker: &BrokerProcess, number: usize) -> RawClient {
    let mut member = broker.v5(&format!("member {number}"));
    member.subscribe(&share("group", "t/+"), QoS::AtLeastOnce);
    member
}

#[test]
fn hash_policies_keep_assignments_when_a_member_returns() {
    for policy in ["hash_client_id", "hash_topic"] {
        let broker = BrokerProcess::start(&["--policy", policy]);
        let mut members: Vec<_> = (0..3).map(|number| member(&broker, number)).collect();
        let before = members_by_publisher(&broker, &mut members);
        // Its session ends with the connection.
        members.remove(1).disconnect();
        let without = members_by_publisher(&broker, &mut members);
        for (publisher, &was) in &before {
            let is = if without[publisher] == 0 { 0 } else { 2 };
            assert!(was == 1 || was == is, "{policy}: {publisher} moved from {was} to {is}");
        }
        members.insert(1, member(&broker, 1));
        assert_eq!(members_by_publisher(&broker, &mut members), before, "{policy}");
    }
}

#[test]
fn a_publisher_sticks_to_a_member() {
    let broker = BrokerProcess::start(&["--policy", "sticky"]);
    let mut members: Vec<_> = (0..2).map(|number| member(&broker, number)).collect();
    let before = members_by_publisher(&broker, &mut members);
    members.push(member(&broker, 2));
    assert_eq!(members_by_publisher(&broker, &mut members), before, "a new member takes no publisher away");
}

/// Returns the next message, unacknowledged, if there is one.
fn next(member: &mut RawClient) -> Option<Publish> {
    member.settle();
    member.take_set_aside()
}

#[test]
fn key_is_pinned_until_its_messages_are_acknowledged() {
    let ruled = Ruled::start("[[share]]\npolicy = \"round_robin\"\nkey = \"topic\"\n");
    let broker = &ruled.broker;
    let mut members = [member(broker, 0), member(broker, 1)];
    let mut publisher = broker.v5("publisher");
    let mut publish = |members: &mut [RawClient; 2], topic: &str| {
        publisher.publish_with(at_qos(topic, "", QoS::AtLeastOnce));
        let got = members.each_mut().map(next);
        let index = got.iter().position(Option::is_some).expect("one member has it");
        assert!(got[1 - index].is_none());
        (index, got.into_iter().flatten().next().expect("it is there"))
    };
    let mut of_a: Vec<_> = (0..3).map(|_| publish(&mut members, "t/a")).collect();
    let (first, _) = of_a[0];
    assert!(of_a.iter().all(|(index, _)| *index == first));
    let (second, of_b) = publish(&mut members, "t/b");
    assert_eq!(second, 1 - first, "the other's turn");
    // Not all of them yet.
    let last = of_a.pop().expect("three");
    for (index, message) in &of_a {
        members[*index].acknowledge(message);
        members[*index].settle();
    }
    let (third, of_c) = publish(&mut members, "t/c");
    assert_eq!(third, first, "its turn");
    let (fourth, more_of_a) = publish(&mut members, "t/a");
    assert_eq!(fourth, first, "one of its messages is there yet, though it is the other's turn");
    for message in [&last.1, &more_of_a] {
        members[first].acknowledge(message);
        members[first].settle();
    }
    // Unacknowledged messages of another topic make no difference.
    assert_eq!(publish(&mut members, "t/a").0, 1 - first);
    members[third].acknowledge(&of_c);
    members[second].acknowledge(&of_b);
}
