use std::sync::Arc;

use imbl::OrdMap;

use super::hash_trie::HashTrie;
use super::share_group::SharedGroup;
use crate::auth::Rights;
use crate::outbox::Outbox;
use crate::values::Grant;

/// The subscriptions to one filter.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterEntry {
    pub(super) subscribers: SubscriberList,
    /// By share name.
    pub(super) groups: HashTrie<Arc<SharedGroup>, 22>,
}

impl FilterEntry {
    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.groups.is_empty()
    }
}

/// One ordinary subscription, as the index holds it.
#[derive(Debug, Clone)]
pub(super) struct Subscriber {
    pub(super) number: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) rights: Arc<Rights>,
    pub(super) grant: Grant,
}

/// The subscribers of one filter, ordered by number.
///
/// Most filters have one, which is stored inline. Many subscribers form a tree that snapshots share: a change copies
/// one path, for a hundred subscribers or a million.
#[derive(Debug, Clone, Default)]
pub(super) enum SubscriberList {
    #[default]
    None,
    One(Subscriber),
    // INVARIANT: two or more, at most FEW.
    Few(Arc<[Subscriber]>),
    // INVARIANT: not empty.
    Many(OrdMap<u64, Subscriber>),
}

impl SubscriberList {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn for_each<'a>(&'a self, each: impl FnMut(&'a Subscriber)) {
        match self {
            Self::None => {}
            Self::One(subscriber) => std::iter::once(subscriber).for_each(each),
            Self::Few(few) => few.iter().for_each(each),
            Self::Many(many) => many.values().for_each(each),
        }
    }

    /// Adds a subscriber, or replaces the one of the same number.
    pub(super) fn insert(&mut self, subscriber: Subscriber) {
        match self {
            Self::Many(many) => {
                many.insert(subscriber.number, subscriber);
            }
            _ => {
                let mut list = self.without(subscriber.number);
                let at = list.partition_point(|other| other.number < subscriber.number);
                list.insert(at, subscriber);
                *self = Self::of(list);
            }
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        match self {
            Self::Many(many) => {
                many.remove(&number);
                // Only below FEW / 2, so that a client that comes and goes does not cause a full copy each time.
                if many.len() <= FEW / 2 {
                    *self = Self::of(many.values().cloned().collect());
                }
            }
            _ => *self = Self::of(self.without(number)),
        }
    }

    /// Copies all subscribers with another number.
    fn without(&self, number: u64) -> Vec<Subscriber> {
        let mut list = Vec::new();
        self.for_each(|subscriber| {
            if subscriber.number != number {
                list.push(subscriber.clone());
            }
        });
        list
    }

    /// Creates the list from subscribers in order of their numbers.
    fn of(mut list: Vec<Subscriber>) -> Self {
        match list.len() {
            0 | 1 => list.pop().map_or(Self::None, Self::One),
            2..=FEW => Self::Few(list.into()),
            _ => Self::Many(list.into_iter().map(|subscriber| (subscriber.number, subscriber)).collect()),
        }
    }
}

/// Number of subscribers that can be copied as fast as a node of the tree.
const FEW: usize = 16;
