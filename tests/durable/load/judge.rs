//! Compares the received messages with the acknowledged ones.

use std::time::Instant;

use tenbin_codec::QoS;

use super::journal::Complaint;
use super::ledger::{Fate, Number, Topic};
use super::publisher::Publisher;
use super::receiver::{Life, Receiver};

/// Finds missing messages with later ones of their topics received: topics are ordered, so they will never arrive.
///
/// `may_refuse`: a resent message may have been refused before, and then follows later ones.
pub(crate) fn gaps(publishers: &[Publisher], receivers: &mut [Receiver], may_refuse: bool) -> Vec<Complaint> {
    let is_in_order = |fate: &Fate| !(may_refuse && fate.is_repeated);
    let mut gaps = Vec::new();
    for receiver in receivers.iter_mut() {
        let lives = std::mem::take(&mut receiver.lives);
        // A member of a group need not get all messages.
        for life in lives.into_iter().filter(|_| !receiver.is_member()) {
            gaps.extend(gaps_of_life(publishers, &receiver.name(), &life, is_in_order));
        }
    }
    let alone = receivers.iter().filter(|receiver| !receiver.is_member() && receiver.lasts());
    gaps.extend(alone.flat_map(|receiver| {
        let end = |topic| receiver.received.end(topic);
        missing_of(publishers, &[receiver], end, is_in_order)
    }));
    gaps
}

/// As [`gaps`], in a session that ended with its connection: messages published after its SUBACK.
fn gaps_of_life(
    publishers: &[Publisher],
    who: &str,
    life: &Life,
    is_in_order: impl Fn(&Fate) -> bool,
) -> Vec<Complaint> {
    let mut gaps = Vec::new();
    for (topic, arrivals) in life.topics.iter().filter(|(topic, _)| !may_miss_some(publishers, **topic)) {
        let fates = fates(publishers, *topic);
        for (number, fate) in fates.iter().enumerate().take(arrivals.end) {
            let must_come = fate.acknowledged.is_some() && fate.first_sent > life.subscribed && is_in_order(fate);
            if must_come && !arrivals.numbers.contains(&number) {
                let message = Number { topic: *topic, number };
                let text = format!("{who}: {message} did not come, message {} did", arrivals.end - 1);
                gaps.push(Complaint { text, message: Some(message) });
            }
        }
    }
    gaps
}

/// Finds messages that arrived after a later one.
///
/// A resent message may be late if it may have been refused before, or if the receiver had not subscribed before.
pub(crate) fn overtaken(publishers: &[Publisher], receivers: &mut [Receiver], may_refuse: bool) -> Vec<Complaint> {
    let all = receivers.iter_mut().flat_map(|receiver| std::mem::take(&mut receiver.overtaken));
    let is_wrong = |(complaint, subscribed): &(Complaint, Option<Instant>)| {
        let fate = complaint.message.and_then(|message| fates(publishers, message.topic).get(message.number));
        fate.is_none_or(|fate| {
            let is_early = subscribed.is_some_and(|subscribed| fate.first_sent < subscribed);
            !(fate.is_repeated && (may_refuse || is_early))
        })
    };
    all.filter(is_wrong).map(|(complaint, _)| complaint).collect()
}

/// Finds acknowledged messages that have not arrived.
pub(crate) fn missing(publishers: &[Publisher], receivers: &[Receiver]) -> Vec<Complaint> {
    let (members, alone): (Vec<_>, Vec<_>) = receivers.iter().partition(|receiver| receiver.is_member());
    let mut missing = missing_of(publishers, &members, |_| usize::MAX, |_| true);
    for receiver in alone.into_iter().filter(|receiver| receiver.lasts()) {
        missing.extend(missing_of(publishers, &[receiver], |_| usize::MAX, |_| true));
    }
    missing
}

/// Finds QoS 2 messages that arrived at two members of the share group, or twice at one member.
pub(crate) fn shared_twice(publishers: &[Publisher], receivers: &[Receiver]) -> Vec<Complaint> {
    let members: Vec<_> = receivers.iter().filter(|receiver| receiver.is_member()).collect();
    let mut twice = Vec::new();
    for (&topic, fates) in publishers.iter().flat_map(|publisher| &publisher.sent.topics) {
        if !topic.is_shared || topic.qos != QoS::ExactlyOnce {
            continue;
        }
        for number in 0..fates.len() {
            let who = members.iter().filter(|member| member.received.count(topic, number) > 0);
            let who: Vec<_> = who.collect();
            // A member that receives at QoS 1 may have left before it acknowledged.
            if who.len() > 1 && who.iter().all(|member| member.qos() == QoS::ExactlyOnce) {
                let message = Number { topic, number };
                let names: Vec<_> = who.iter().map(|member| member.name()).collect();
                let text = format!("{message} came to {} members: {}", who.len(), names.join("; "));
                twice.push(Complaint { text, message: Some(message) });
            }
        }
    }
    twice
}

fn fates(publishers: &[Publisher], topic: Topic) -> &[Fate] {
    let publisher = publishers.get(topic.publisher);
    publisher.and_then(|publisher| publisher.sent.topics.get(&topic)).map_or(&[], Vec::as_slice)
}

fn may_miss_some(publishers: &[Publisher], topic: Topic) -> bool {
    publishers.get(topic.publisher).is_some_and(|publisher| publisher.may_miss_some(topic))
}

/// Finds acknowledged messages that arrived at none of `receivers`, among those that `counts` accepts before `end`.
fn missing_of(
    publishers: &[Publisher],
    receivers: &[&Receiver],
    end: impl Fn(Topic) -> usize,
    counts: impl Fn(&Fate) -> bool,
) -> Vec<Complaint> {
    let Some(first) = receivers.first() else { return Vec::new() };
    let who = if first.is_member() { "the share group".to_owned() } else { first.name() };
    let mut missing = Vec::new();
    let topics = publishers.iter().flat_map(|publisher| &publisher.sent.topics);
    let must_come = |topic: Topic| topic.is_shared == first.is_member() && !may_miss_some(publishers, topic);
    for (&topic, fates) in topics.filter(|(topic, _)| must_come(**topic)) {
        for (number, fate) in fates.iter().enumerate().take(end(topic)).filter(|(_, fate)| counts(fate)) {
            let Some(acknowledged) = fate.acknowledged else { continue };
            if receivers.iter().all(|receiver| receiver.received.count(topic, number) == 0) {
                let message = Number { topic, number };
                let rounds = format!("first sent in round {}, acknowledged in round {acknowledged}", fate.sent);
                let text = format!("{who}: {message} never came; {rounds}");
                missing.push(Complaint { text, message: Some(message) });
            }
        }
    }
    missing
}
