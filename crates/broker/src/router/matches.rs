use std::hint::black_box;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenbin_codec::{QoS, TopicName};
use tenbin_session::Extras;

use super::key_hasher::KeyHasher;
use super::ordering_key::TopicKey;
use super::share_group::SharedGroup;
use super::subscribers::{FilterEntry, Subscriber};
use crate::auth::Access;
use crate::hooks::{Events, HookSet, Targets};
use crate::outbox::Outbox;

/// All receivers of messages to one topic.
#[derive(Debug, Default)]
pub(crate) struct MatchSet {
    /// One per session, however many of its subscriptions match.
    pub(super) targets: Vec<Target>,
    /// Share groups, of each of which one member gets a message.
    pub(super) groups: Vec<Route>,
    /// Hash of the topic, if there are groups.
    pub(super) topic: u64,
}

impl MatchSet {
    /// Returns whether no subscription matches.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.groups.is_empty()
    }

    /// Returns the bytes of memory of its lists.
    pub(super) fn bytes(&self) -> usize {
        self.targets.capacity() * size_of::<Target>() + self.groups.capacity() * size_of::<Route>()
    }

    /// Returns the number of sessions that receive a copy, without members of share groups.
    pub(crate) fn receivers(&self) -> usize {
        self.targets.len()
    }
}

/// The route to one share group.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) group: Arc<SharedGroup>,
    /// The ordering key of the topic's messages in the group.
    pub(super) key: TopicKey,
}

/// One session that receives a copy.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    /// Terms for messages of other publishers; `None` = it receives none.
    pub(super) terms: Option<Terms>,
    /// Terms for its own messages, if No Local makes them differ.
    pub(super) own_terms: Option<Option<Terms>>,
}

/// Merged options of all matching subscriptions of one session (MQTT 5.0 §3.3.4).
///
/// One copy, at the highest QoS `[MQTT-3.3.4-2]`, with all identifiers `[MQTT-3.3.4-4]`.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) qos: QoS,
    pub(super) retain_as_published: bool,
    pub(super) identifiers: Option<Arc<Extras>>,
}

/// Collects matching filters, and merges the subscriptions of each session. Sessions without the right to receive the
/// topic are left out.
#[derive(Debug)]
pub(super) struct MatchSetBuilder<'a> {
    topic: &'a TopicName,
    keys: &'a KeyHasher,
    /// All sessions may receive all topics, so rights need no check.
    is_open: bool,
    /// The first filter. Mostly it is the only one, and there is nothing to merge.
    first: Option<&'a FilterEntry>,
    others: Vec<&'a FilterEntry>,
}

impl<'a> MatchSetBuilder<'a> {
    pub(super) fn new(topic: &'a TopicName, keys: &'a KeyHasher, access: &Access) -> Self {
        Self { topic, keys, is_open: access.is_open(), first: None, others: Vec::new() }
    }

    /// Adds a filter's entry without reading it, so that the next look-up does not wait for its memory.
    #[inline]
    pub(super) fn add(&mut self, entry: &'a FilterEntry) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.add_another(entry);
        }
    }

    fn add_another(&mut self, entry: &'a FilterEntry) {
        if self.others.is_empty() {
            self.others.reserve(FEW);
        }
        self.others.push(entry);
    }

    /// As [`build`](Self::build), without the receivers that hooks leave out.
    #[cold]
    pub(super) fn build_selected(self, hooks: &HookSet) -> MatchSet {
        let topic = self.topic;
        let mut client_ids = FxHashMap::default();
        for entry in self.first.iter().chain(&self.others) {
            entry.subscribers.for_each(|subscriber| {
                client_ids.insert(subscriber.number, subscriber.rights.principal().client_id.clone());
            });
        }
        let mut matches = self.build();
        let name = |target: &Target| client_ids.remove(&target.number).unwrap_or_default();
        let receivers = matches.targets.iter().map(name).collect();
        let groups = matches.groups.iter().map(|route| route.group.full_name()).collect();
        let mut selected = Targets::new(receivers, groups);
        hooks.tell(Events::SELECT, |hooks| hooks.select(topic, &mut selected));
        let mut index = 0..;
        matches.targets.retain(|_| index.next().is_some_and(|index| selected.has_client(index)));
        let mut index = 0..;
        matches.groups.retain(|_| index.next().is_some_and(|index| selected.has_group(index)));
        matches
    }

    pub(super) fn build(self) -> MatchSet {
        let Some(first) = self.first else { return MatchSet::default() };
        let targets = if self.others.is_empty() { self.targets_of(first) } else { self.merged_targets(first) };
        let mut groups = Vec::new();
        for entry in std::iter::once(first).chain(self.others) {
            entry.groups.for_each(|group| {
                groups.push(Route { group: Arc::clone(group), key: group.key_of_topic(self.topic) });
            });
        }
        let topic = if groups.is_empty() { 0 } else { self.keys.hash(self.topic.as_bytes()) };
        MatchSet { targets, groups, topic }
    }

    fn targets_of(&self, entry: &FilterEntry) -> Vec<Target> {
        let mut targets = Vec::with_capacity(entry.subscribers.len());
        entry.subscribers.for_each(|subscriber| {
            if self.may_receive(subscriber) {
                targets.push(target(&[(subscriber.number, subscriber)]));
            }
        });
        targets
    }

    fn merged_targets(&self, first: &'a FilterEntry) -> Vec<Target> {
        let mut subscribers = Vec::with_capacity(1 + self.others.len());
        for entry in std::iter::once(&first).chain(&self.others) {
            entry.subscribers.for_each(|subscriber| {
                if self.may_receive(subscriber) {
                    // The number is stored beside it, so that the sort reads nothing else.
                    subscribers.push((subscriber.number, subscriber));
                }
            });
        }
        subscribers.sort_by_key(|(number, _)| *number); // stable: filters stay in order
        // Each increment of a reference counter below would wait for the memory of its queue, one after the other.
        // Reads do not wait, so this prefetches the first counters together.
        subscribers.iter().take(FEW).for_each(|(_, subscriber)| {
            black_box(Arc::strong_count(&subscriber.outbox));
        });
        let mut targets = Vec::with_capacity(subscribers.len());
        targets.extend(subscribers.chunk_by(|a, b| a.0 == b.0).map(target));
        targets
    }

    fn may_receive(&self, subscriber: &Subscriber) -> bool {
        self.is_open || subscriber.rights.may_receive(self.topic)
    }
}

/// More filters than most messages match.
const FEW: usize = 16;

/// Merges the subscriptions of one session, each with the session's number.
fn target(subscriptions: &[(u64, &Subscriber)]) -> Target {
    let no_local = subscriptions.iter().any(|(_, subscription)| subscription.grant.options.no_local);
    let all = || subscriptions.iter().map(|(_, subscription)| *subscription);
    Target {
        number: subscriptions[0].0,
        outbox: Arc::clone(&subscriptions[0].1.outbox),
        terms: terms(all()),
        own_terms: no_local.then(|| terms(all().filter(|subscription| !subscription.grant.options.no_local))),
    }
}

fn terms<'a>(subscriptions: impl Iterator<Item = &'a Subscriber>) -> Option<Terms> {
    let mut merged: Option<(QoS, bool)> = None;
    let mut identifiers = Vec::new();
    for subscription in subscriptions {
        let options = subscription.grant.options;
        let (qos, retain_as_published) = merged.unwrap_or_default();
        merged = Some((qos.max(options.qos), retain_as_published || options.retain_as_published));
        identifiers.extend(subscription.grant.identifier);
    }
    let (qos, retain_as_published) = merged?;
    Some(Terms { qos, retain_as_published, identifiers: Extras::identifiers(identifiers) })
}

impl Target {
    /// Returns the terms on which this session receives messages of `publisher`.
    pub(super) fn terms_for(&self, publisher: u64) -> Option<&Terms> {
        if self.number == publisher
            && let Some(own) = &self.own_terms
        {
            return own.as_ref(); // [MQTT-3.8.3-3]
        }
        self.terms.as_ref()
    }
}
