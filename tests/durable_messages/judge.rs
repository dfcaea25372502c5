//! What has come, beside what was acknowledged.

use tenbin_codec::QoS;

use super::ledger::{Number, Topic};
use super::publisher::Publisher;
use super::receiver::Receiver;

/// Messages that have not come, though later ones of their topics have: the order is kept, so they never will.
pub(crate) fn gaps(publishers: &[Publisher], receivers: &[Receiver]) -> Vec<String> {
    let alone = receivers.iter().filter(|receiver| !receiver.is_member());
    alone.flat_map(|receiver| missing_of(publishers, &[receiver], |topic| receiver.received.end(topic))).collect()
}

/// All that was acknowledged and has not come.
pub(crate) fn missing(publishers: &[Publisher], receivers: &[Receiver]) -> Vec<String> {
    let (members, alone): (Vec<_>, Vec<_>) = receivers.iter().partition(|receiver| receiver.is_member());
    let mut missing = missing_of(publishers, &members, |_| usize::MAX);
    for receiver in alone {
        missing.extend(missing_of(publishers, &[receiver], |_| usize::MAX));
    }
    missing
}

/// QoS 2 messages of which two members of the share group have each one, or one member two.
pub(crate) fn shared_twice(publishers: &[Publisher], receivers: &[Receiver]) -> Vec<String> {
    let members: Vec<_> = receivers.iter().filter(|receiver| receiver.is_member()).collect();
    let mut twice = Vec::new();
    for (&topic, fates) in publishers.iter().flat_map(|publisher| &publisher.sent.topics) {
        if !topic.is_shared || topic.qos != QoS::ExactlyOnce {
            continue;
        }
        for number in 0..fates.len() {
            let who = members.iter().filter(|member| member.received.count(topic, number) > 0);
            let who: Vec<_> = who.map(|member| member.name()).collect();
            if who.len() > 1 {
                let message = Number { topic, number };
                twice.push(format!("{message} came to {} members: {}", who.len(), who.join("; ")));
            }
        }
    }
    twice
}

/// What was acknowledged and came to none of `receivers`, up to where `end` says.
fn missing_of(publishers: &[Publisher], receivers: &[&Receiver], end: impl Fn(Topic) -> usize) -> Vec<String> {
    let Some(first) = receivers.first() else { return Vec::new() };
    let who = if first.is_member() { "the share group".to_owned() } else { first.name() };
    let mut missing = Vec::new();
    let topics = publishers.iter().flat_map(|publisher| &publisher.sent.topics);
    for (&topic, fates) in topics.filter(|(topic, _)| topic.is_shared == first.is_member()) {
        for (number, fate) in fates.iter().enumerate().take(end(topic)) {
            let Some(acknowledged) = fate.acknowledged else { continue };
            if receivers.iter().all(|receiver| receiver.received.count(topic, number) == 0) {
                let message = Number { topic, number };
                let rounds = format!("first sent in round {}, acknowledged in round {acknowledged}", fate.sent);
                missing.push(format!("{who}: {message} never came; {rounds}"));
            }
        }
    }
    missing
}
