use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tenbin_codec::{QoS, TopicName};

use super::ordering_key::TopicKey;
use super::shared::SharedGroup;
use super::subscribers::Subscriber;
use crate::outbox::Outbox;

/// Everybody who receives what is published to one topic.
#[derive(Debug, Default)]
pub(crate) struct MatchSet {
    /// One for each session, however many of its subscriptions match.
    pub(super) targets: Vec<Target>,
    /// One member of each gets a message.
    pub(super) groups: Vec<Route>,
    /// Hash of the topic, if there are groups.
    pub(super) topic: u64,
}

impl MatchSet {
    /// Whether nobody wants it.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.groups.is_empty()
    }
}

/// The way to one share group.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) group: Arc<SharedGroup>,
    /// By what the topic's messages keep their order in it.
    pub(super) key: TopicKey,
}

/// One session that receives a copy.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    /// How it receives what others publish; `None` = not at all.
    pub(super) terms: Option<Terms>,
    /// How it receives what it published itself, where No Local makes that differ.
    pub(super) own_terms: Option<Option<Terms>>,
}

/// What all the matching subscriptions of one session come to (MQTT 5.0 §3.3.4): one copy, at the highest QoS
/// `[MQTT-3.3.4-2]`, with all identifiers `[MQTT-3.3.4-4]`.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) qos: QoS,
    pub(super) retain_as_published: bool,
    pub(super) identifiers: Option<Arc<[u32]>>,
}

/// Collects subscriptions and merges those of one session. Who may not receive the topic is left out.
#[derive(Debug)]
pub(super) struct MatchSetBuilder<'a> {
    topic: &'a TopicName,
    hasher: &'a RandomState,
    subscribers: Vec<Subscriber>,
    groups: Vec<Route>,
}

impl<'a> MatchSetBuilder<'a> {
    pub(super) fn new(topic: &'a TopicName, hasher: &'a RandomState) -> Self {
        Self { topic, hasher, subscribers: Vec::new(), groups: Vec::new() }
    }

    pub(super) fn add(&mut self, subscriber: &Subscriber) {
        if subscriber.rights.may_receive(self.topic) {
            self.subscribers.push(subscriber.clone());
        }
    }

    pub(super) fn add_group(&mut self, group: &Arc<SharedGroup>) {
        self.groups.push(Route { group: Arc::clone(group), key: group.key_of_topic(self.topic) });
    }

    pub(super) fn build(mut self) -> MatchSet {
        self.subscribers.sort_by_key(|subscriber| subscriber.number); // stable: filters stay in order
        let targets = self.subscribers.chunk_by(|a, b| a.number == b.number).map(target).collect();
        let topic = if self.groups.is_empty() { 0 } else { self.hasher.hash_one(self.topic.as_bytes()) };
        MatchSet { targets, groups: self.groups, topic }
    }
}

fn target(subscriptions: &[Subscriber]) -> Target {
    let no_local = subscriptions.iter().any(|subscription| subscription.grant.options.no_local);
    Target {
        number: subscriptions[0].number,
        outbox: Arc::clone(&subscriptions[0].outbox),
        terms: terms(subscriptions.iter()),
        own_terms: no_local.then(|| terms(subscriptions.iter().filter(|sub| !sub.grant.options.no_local))),
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
    Some(Terms { qos, retain_as_published, identifiers: (!identifiers.is_empty()).then(|| identifiers.into()) })
}

impl Target {
    /// How this session receives what `publisher` published.
    pub(super) fn terms_for(&self, publisher: u64) -> Option<&Terms> {
        match &self.own_terms {
            Some(own) if self.number == publisher => own.as_ref(), // [MQTT-3.8.3-3]
            _ => self.terms.as_ref(),
        }
    }
}
