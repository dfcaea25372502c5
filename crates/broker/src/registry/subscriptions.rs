use std::collections::HashMap;

use tenbin_codec::TopicFilter;

use crate::router::{Grant, is_in_tree};

/// The subscriptions of one session, and what they weigh.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    grants: HashMap<TopicFilter, Grant>,
    /// Of all filters, see [`weight`].
    bytes: usize,
}

impl Subscriptions {
    pub(crate) fn contains(&self, filter: &TopicFilter) -> bool {
        self.grants.contains_key(filter)
    }

    /// Whether `filter` is there, or may come in addition where so many subscriptions of so many bytes are allowed.
    pub(crate) fn has_room(&self, filter: &TopicFilter, count_maximum: usize, bytes_maximum: usize) -> bool {
        self.contains(filter)
            || (self.grants.len() < count_maximum && self.bytes.saturating_add(weight(filter)) <= bytes_maximum)
    }

    /// Adds a subscription, or replaces that of the same filter.
    pub(crate) fn insert(&mut self, filter: &TopicFilter, grant: Grant) {
        if self.grants.insert(filter.detach(), grant).is_none() {
            self.bytes += weight(filter);
        }
    }

    /// Whether there was one.
    pub(crate) fn remove(&mut self, filter: &TopicFilter) -> bool {
        let removed = self.grants.remove(filter).is_some();
        if removed {
            self.bytes -= weight(filter);
        }
        removed
    }

    pub(crate) fn len(&self) -> usize {
        self.grants.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &TopicFilter> {
        self.grants.keys()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TopicFilter, &Grant)> {
        self.grants.iter()
    }
}

/// About the bytes of memory that a subscription to `filter` costs at most, here and in the router's index: a level
/// of a filter that is kept in the index's tree and nobody shares is a node of its own.
fn weight(filter: &TopicFilter) -> usize {
    let nodes = if is_in_tree(filter) { filter.levels().count() } else { 0 };
    let group = if filter.is_shared() { GROUP_BYTES + filter.as_bytes().len() } else { 0 };
    SUBSCRIPTION_BYTES + 2 * filter.as_bytes().len() + nodes * NODE_BYTES + group
}

/// What a subscription, a node and a share group of one member cost in resident memory, measured and rounded.
const SUBSCRIPTION_BYTES: usize = 512;
const NODE_BYTES: usize = 320;
const GROUP_BYTES: usize = 896;

#[cfg(test)]
mod tests {
    use tenbin_codec::SubscriptionOptions;

    use std::num::NonZeroU16;

    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::try_from(text).unwrap()
    }

    #[test]
    fn what_is_taken_out_weighs_nothing_any_more() {
        let grant = Grant { options: SubscriptionOptions::default(), identifier: None, weight: NonZeroU16::MIN };
        let mut subscriptions = Subscriptions::default();
        for text in ["a", "a/b/+", "$share/g/a", "a"] {
            subscriptions.insert(&filter(text), grant);
        }
        assert_eq!(subscriptions.len(), 3);
        assert_eq!(
            ["a", "a/b/+", "a/b/+", "$share/g/a"].map(|text| subscriptions.remove(&filter(text))),
            [true, true, false, true]
        );
        assert_eq!((subscriptions.len(), subscriptions.bytes), (0, 0));
    }

    #[test]
    fn a_filter_that_is_there_already_needs_no_room_and_one_of_many_levels_much() {
        let grant = Grant { options: SubscriptionOptions::default(), identifier: None, weight: NonZeroU16::MIN };
        let mut subscriptions = Subscriptions::default();
        subscriptions.insert(&filter("a/+"), grant);
        assert!(subscriptions.has_room(&filter("a/+"), 0, 0));
        assert!(!subscriptions.has_room(&filter("b"), 1, 10_000));
        assert!(subscriptions.has_room(&filter("b"), 2, 10_000));
        let deep = "x/".repeat(30);
        assert!(subscriptions.has_room(&filter(&deep), 2, 10_000));
        assert!(!subscriptions.has_room(&filter(&format!("{deep}+")), 2, 10_000));
        assert!(!subscriptions.has_room(&filter(&"x".repeat(5000)), 2, 10_000));
    }
}
