use std::hint::black_box;
use std::sync::Arc;

use tenbin_codec::{QoS, TopicName};

use super::key_hasher::KeyHasher;
use super::ordering_key::TopicKey;
use super::shared::SharedGroup;
use super::subscribers::{Entry, Subscriber};
use crate::auth::Access;
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

    /// Bytes of memory of its lists.
    pub(super) fn bytes(&self) -> usize {
        self.targets.capacity() * size_of::<Target>() + self.groups.capacity() * size_of::<Route>()
    }

    /// Sessions that receive a copy; members of share groups are not among them.
    pub(crate) fn receivers(&self) -> usize {
        self.targets.len()
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
    pub(super) identifiers: Option<Arc<Box<[u32]>>>,
}

/// Collects filters that match, and merges the subscriptions of one session. Who may not receive the topic is left out.
#[derive(Debug)]
pub(super) struct MatchSetBuilder<'a> {
    topic: &'a TopicName,
    keys: &'a KeyHasher,
    /// Everybody may receive everything, so that nobody's rights need to be looked at.
    is_open: bool,
    /// The first filter: mostly it is the only one, and then there is nothing to merge.
    first: Option<&'a Entry>,
    others: Vec<&'a Entry>,
}

impl<'a> MatchSetBuilder<'a> {
    pub(super) fn new(topic: &'a TopicName, keys: &'a KeyHasher, access: &Access) -> Self {
        Self { topic, keys, is_open: access.is_open(), first: None, others: Vec::new() }
    }

    /// Nothing is read of it yet: what is looked for next does not wait for that.
    #[inline]
    pub(super) fn add(&mut self, entry: &'a Entry) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            self.add_another(entry);
        }
    }

    fn add_another(&mut self, entry: &'a Entry) {
        if self.others.is_empty() {
            self.others.reserve(FEW);
        }
        self.others.push(entry);
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

    fn targets_of(&self, entry: &Entry) -> Vec<Target> {
        let mut targets = Vec::with_capacity(entry.subscribers.len());
        entry.subscribers.for_each(|subscriber| {
            if self.may_receive(subscriber) {
                targets.push(target(&[(subscriber.number, subscriber)]));
            }
        });
        targets
    }

    fn merged_targets(&self, first: &'a Entry) -> Vec<Target> {
        let mut subscribers = Vec::with_capacity(1 + self.others.len());
        for entry in std::iter::once(&first).chain(&self.others) {
            entry.subscribers.for_each(|subscriber| {
                if self.may_receive(subscriber) {
                    // With the number beside it: a sort reads nothing else.
                    subscribers.push((subscriber.number, subscriber));
                }
            });
        }
        subscribers.sort_by_key(|(number, _)| *number); // stable: filters stay in order
        // To count one more reference waits for a queue's memory, of one queue after the other. To read does not: so what
        // the first ones need is on its way together.
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

/// Filters of which a message is mostly for fewer.
const FEW: usize = 16;

/// The target of one session, of whose number and subscriptions this is.
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
    Some(Terms {
        qos,
        retain_as_published,
        identifiers: (!identifiers.is_empty()).then(|| Arc::new(identifiers.into())),
    })
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
