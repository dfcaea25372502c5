//! Subscriptions of all members of a trunk.
//!
//! The broker has each filter once. Every SUBSCRIBE for it carries a Subscription Identifier of its own, which replaces
//! the last one. A message so tells by its identifiers which filters it matched, without a search, and retained messages
//! tell which SUBSCRIBE they answer.

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
struct Subscription {
    /// With the QoS that each asked for.
    members: Vec<(Key, QoS)>,
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
        let subscription = self
            .filters
            .entry(filter.clone())
            .or_insert_with(|| Subscription { members: Vec::new(), identifiers: VecDeque::new() });
        match subscription.members.iter_mut().find(|(key, _)| *key == member) {
            Some((_, old)) => *old = qos,
            None => subscription.members.push((member, qos)),
        }
        subscription.identifiers.push_back(identifier);
        let highest = subscription.members.iter().map(|(_, qos)| *qos).max().unwrap_or(qos);
        self.issued.insert(identifier, Issued { filter: filter.clone(), newcomer: member });
        (identifier, highest)
    }

    /// The broker has answered the SUBSCRIBE of an identifier: it sends no messages with much older ones.
    pub(super) fn acknowledge(&mut self, filter: &TopicFilter, identifier: u32) {
        let Some(subscription) = self.filters.get_mut(filter) else { return };
        let Some(at) = subscription.identifiers.iter().position(|issued| *issued == identifier) else { return };
        let kept = IDENTIFIERS_KEPT + subscription.members.len();
        for old in subscription.identifiers.drain(..at.saturating_sub(kept)) {
            self.issued.remove(&old);
        }
    }

    /// Removes a member from a filter. True if it was the last one.
    pub(super) fn remove(&mut self, filter: &TopicFilter, member: Key) -> bool {
        let Some(subscription) = self.filters.get_mut(filter) else { return false };
        subscription.members.retain(|(key, _)| *key != member);
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
            for &(key, qos) in &subscription.members {
                if is_retained && key != issued.newcomer {
                    continue;
                }
                // With one identifier, the usual case, nobody is there twice.
                match receivers.iter_mut().find(|(known, _)| identifiers.len() > 1 && *known == key) {
                    Some((_, highest)) => *highest = (*highest).max(qos),
                    None => receivers.push((key, qos)),
                }
            }
        }
        is_known
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
