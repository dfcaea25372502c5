//! Processor time of one packet, whatever one client has subscribed to: the bounds of `docs/performance.md`.
//!
//! Figures are ratios to the same packet of a client that has subscribed to little, in the same run.

use std::time::Duration;

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode, Subscription};

use crate::broker_with;
use crate::growth::Growth;
use crate::support::{BrokerProcess, PATIENCE, RawClient, share, subscription};

/// Ten clients ask for 12,000 share groups on filters that match one topic. A message of others costs at most
/// `limits.groups_per_topic_maximum` times as much, growth ≤ 64 MiB.
#[test]
fn share_names_on_one_topic_cost_publishers_a_bounded_time() {
    let broker = broker_with("");
    let mut growth = Growth::of(&broker);
    let mut publisher = broker.v5("publisher");
    let mut worker = broker.v5("worker");
    worker.subscribe(&share("workers", "t/a"), QoS::AtMostOnce);
    let before = cost_of(&broker, 50, || assert_eq!(publish(&mut publisher), ReasonCode::Success));
    let mut granted = 1;
    let filters = ["t/a", "t/#", "t/+", "+/a", "#", "+/+"];
    let mut clients: Vec<_> = (0..10).map(|number| broker.v5(&format!("client-{number}"))).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for filter in filters {
            let names = (0..200).map(|name| share(&format!("{number}-{name}"), filter));
            let reasons = subscribe(client, names);
            let refused = reasons.iter().filter(|reason| **reason == ReasonCode::QuotaExceeded).count();
            granted += reasons.len() - refused;
        }
    }
    let during = cost_of(&broker, 50, || assert_eq!(publish(&mut publisher), ReasonCode::Success));
    let ratio = during.as_secs_f64() / before.as_secs_f64();
    eprintln!("a message: {before:?}, with {granted} share groups {during:?}: {ratio:.0} times as much");
    assert!(granted <= 256, "{granted} groups match one topic");
    assert!(ratio <= 256.0, "a message takes {during:?} instead of {before:?}");
    growth.assert_within(64, "share names on one topic");
    broker.log().wait_for(&["subscriptions refused", "limits.groups_per_topic_maximum"], PATIENCE);
    broker.log().wait_for(&["subscriptions refused", "sessions.wildcard_patterns_maximum"], PATIENCE);
}

/// Refused share groups leave the others alone: existing groups take members, and groups on other filters are created.
/// A group that ends makes room.
#[test]
fn share_groups_beyond_the_bound_are_refused_and_no_others() {
    let broker = broker_with("[limits]\ngroups_per_topic_maximum = 3");
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let mut clients: Vec<_> = (0..3).map(|number| broker.client(version, &format!("client-{number}"))).collect();
        let mut answers = Vec::new();
        for (number, filter) in [(0, "t/#"), (1, "t/+"), (1, "t/a"), (2, "+/a"), (2, "t/#"), (2, "x/b"), (2, "x/+")] {
            let name = share(&format!("group-{}", number % 2), filter);
            answers.push(subscribe(&mut clients[number], [name])[0].is_error());
        }
        // The fourth one would be the fourth group for t/a; the fifth joins the group of the first client.
        assert_eq!(answers, [false, false, false, true, false, false, false], "{version}");
        clients[1].unsubscribe(&[&share("group-1", "t/a")]);
        // x/b counts for the same pattern.
        assert!(subscribe(&mut clients[2], [share("group-0", "+/a")])[0].is_error(), "{version}");
        clients[2].unsubscribe(&[&share("group-0", "x/b")]);
        assert!(!subscribe(&mut clients[2], [share("group-0", "+/a")])[0].is_error(), "{version}");
        clients.into_iter().for_each(RawClient::disconnect);
        broker.v5("after").settle();
    }
}

/// The processor time of the broker for one of `count` `events`.
fn cost_of(broker: &BrokerProcess, count: u32, mut event: impl FnMut()) -> Duration {
    let before = broker.work();
    (0..count).for_each(|_| event());
    (broker.work() - before) / count
}

fn publish(publisher: &mut RawClient) -> ReasonCode {
    publisher.publish("t/a", "x", QoS::AtLeastOnce)
}

fn subscribe(client: &mut RawClient, filters: impl IntoIterator<Item = String>) -> Vec<ReasonCode> {
    let all: Vec<Subscription> = filters.into_iter().map(|filter| subscription(&filter, QoS::AtLeastOnce)).collect();
    all.chunks(1000).flat_map(|some| client.subscribe_to(None, some.to_vec())).collect()
}
