//! Subscriptions of all members of a trunk.
//!
//! The broker has each filter once. Every SUBSCRIBE for it carries a Subscription Identifier of its own, which replaces
//! the last one. A message so tells by its identifiers which filters it matched, without a search, and retained messages
//! tell which SUBSCRIBE they answer.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use rustc_hash::FxBuildHasher;
use tenbin_codec::{QoS, TopicFilter};

use super::hub::Key;

#[derive(Default)]
pub(super) struct Subscriptions {
    filters: HashMap<TopicFilter, Subscription, FxBuildHasher>,
    issued: HashMap<u32, Issued, FxBuildHasher>,
    last_identifier: u32,
}

/// The members of one filter.
#[derive(Default)]
struct Subscription {
    /// With the QoS that each asked for.
    members: HashMap<Key, QoS, FxBuildHasher>,
    /// Members at QoS 0, 1 and 2.
    at_qos: [usize; 3],
    /// The latest identifiers; the broker may still send messages with the earlier ones.
    identifiers: VecDeque<u32>,
}

/// An identifier of a SUBSCRIBE.
struct Issued {
    filter: TopicFilter,
    /// The member that gets the retained messages.
    newcomer: Key,
}

/// Identifiers of one filter before the last acknowledged one that are known, besides one for each member: retained messages
/// wait behind the broker's window, and SUBACKs do not.
const IDENTIFIERS_KEPT: usize = 1024;
/// The largest Subscription Identifier.
const IDENTIFIER_MAXIMUM: u32 = 268_435_455;

impl Subscriptions {
    /// Adds a member to a filter. Returns identifier and QoS of the SUBSCRIBE.
    pub(super) fn add(&mut self, filter: &TopicFilter, member: Key, qos: QoS) -> (u32, QoS) {
        let identifier = self.next_identifier();
        let subscription = self.filters.entry(filter.clone()).or_default();
        if let Some(old) = subscription.members.insert(member, qos) {
            subscription.at_qos[old as usize] -= 1;
        }
        subscription.at_qos[qos as usize] += 1;
        subscription.identifiers.push_back(identifier);
        let highest = subscription.highest();
        self.issued.insert(identifier, Issued { filter: filter.clone(), newcomer: member });
        (identifier, highest)
    }

    /// The broker has answered the SUBSCRIBE of an identifier: it sends no messages with much older ones.
    pub(super) fn acknowledge(&mut self, filter: &TopicFilter, identifier: u32) {
        let Some(subscription) = self.filters.get_mut(filter) else { return };
        let Some(at) = subscription.position(identifier) else { return };
        let kept = IDENTIFIERS_KEPT + subscription.members.len();
        for old in subscription.identifiers.drain(..at.saturating_sub(kept)) {
            self.issued.remove(&old);
        }
    }

    /// Removes a member from a filter. True if it was the last one.
    pub(super) fn remove(&mut self, filter: &TopicFilter, member: Key) -> bool {
        let Some(subscription) = self.filters.get_mut(filter) else { return false };
        if let Some(qos) = subscription.members.remove(&member) {
            subscription.at_qos[qos as usize] -= 1;
        }
        if !subscription.members.is_empty() {
            return false;
        }
        for identifier in self.filters.remove(filter).into_iter().flat_map(|subscription| subscription.identifiers) {
            self.issued.remove(&identifier);
        }
        true
    }

    /// Collects the receivers of a message, each once with its highest QoS. False if no identifier is known.
    pub(super) fn receivers(&self, identifiers: &[u32], is_retained: bool, receivers: &mut Vec<(Key, QoS)>) -> bool {
        receivers.clear();
        let mut is_known = false;
        for issued in identifiers.iter().filter_map(|identifier| self.issued.get(identifier)) {
            let Some(subscription) = self.filters.get(&issued.filter) else { continue };
            is_known = true;
            if is_retained {
                let newcomer = subscription.members.get(&issued.newcomer);
                receivers.extend(newcomer.map(|&qos| (issued.newcomer, qos)));
            } else {
                receivers.extend(subscription.members.iter().map(|(&key, &qos)| (key, qos)));
            }
        }
        // With one identifier, the usual case, nobody is there twice.
        if identifiers.len() > 1 {
            receivers.sort_unstable_by_key(|&(key, qos)| (key, Reverse(qos)));
            receivers.dedup_by_key(|(key, _)| *key);
        }
        is_known
    }

    /// Whether a filter has members.
    pub(super) fn contains(&self, filter: &TopicFilter) -> bool {
        self.filters.contains_key(filter)
    }

    fn next_identifier(&mut self) -> u32 {
        loop {
            self.last_identifier = self.last_identifier % IDENTIFIER_MAXIMUM + 1;
            if !self.issued.contains_key(&self.last_identifier) {
                return self.last_identifier;
            }
        }
    }
}

impl Subscription {
    /// The highest QoS of a member.
    fn highest(&self) -> QoS {
        let [_, at_least_once, exactly_once] = self.at_qos;
        match (at_least_once, exactly_once) {
            (_, 1..) => QoS::ExactlyOnce,
            (1.., 0) => QoS::AtLeastOnce,
            (0, 0) => QoS::AtMostOnce,
        }
    }

    /// Position of an identifier. Identifiers are in the order in which they were issued, which may begin again at 1.
    fn position(&self, identifier: u32) -> Option<usize> {
        let first = *self.identifiers.front()?;
        let age = |identifier: u32| (identifier + IDENTIFIER_MAXIMUM - first) % IDENTIFIER_MAXIMUM;
        self.identifiers.binary_search_by_key(&age(identifier), |issued| age(*issued)).ok()
    }
}
