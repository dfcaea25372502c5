use std::sync::Arc;

use imbl::OrdMap;

use super::Grant;
use super::by_text::ByText;
use super::shared::SharedGroup;
use crate::auth::Rights;
use crate::outbox::Outbox;

/// Who subscribed to one filter.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    pub(super) subscribers: SubscriberList,
    /// By share name.
    pub(super) groups: ByText<Arc<SharedGroup>, 22>,
}

impl Entry {
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

/// The subscribers of one filter, ordered by number. Most filters have one, which is kept where the filter is; many are a
/// tree that snapshots share, so that a change copies a path, whether a hundred clients have the filter or a million.
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

    /// Adds, or replaces the one of the same number.
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
                // Not as soon as they would fit, or one that comes and goes would have all of them copied each time.
                if many.len() <= FEW / 2 {
                    *self = Self::of(many.values().cloned().collect());
                }
            }
            _ => *self = Self::of(self.without(number)),
        }
    }

    /// Copies of all that have another number.
    fn without(&self, number: u64) -> Vec<Subscriber> {
        let mut list = Vec::new();
        self.for_each(|subscriber| {
            if subscriber.number != number {
                list.push(subscriber.clone());
            }
        });
        list
    }

    /// In order.
    fn of(mut list: Vec<Subscriber>) -> Self {
        match list.len() {
            0 | 1 => list.pop().map_or(Self::None, Self::One),
            2..=FEW => Self::Few(list.into()),
            _ => Self::Many(list.into_iter().map(|subscriber| (subscriber.number, subscriber)).collect()),
        }
    }
}

/// So many are copied as quickly as a node of the tree is.
const FEW: usize = 16;
