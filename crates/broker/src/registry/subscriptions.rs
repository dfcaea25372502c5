use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};
use tenbin_codec::TopicFilter;

use crate::memory::{Account, Charge, Kind};
use crate::router::is_in_tree;
use crate::values::{Grant, SubscriptionLimits};

/// The subscriptions of one session, and their charge.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    grants: HashMap<TopicFilter, Grant>,
    /// For all filters, see [`weight`]; `None` = no subscription yet.
    charge: Option<Charge>,
    /// Boxed, as many sessions need nothing of it.
    more: Option<Box<More>>,
}

/// What only wildcards and hooks need.
#[derive(Debug, Default)]
struct More {
    /// Number of filters of each wildcard pattern, by [`pattern`].
    patterns: FxHashMap<u64, u32>,
    /// Filters that hooks have replaced, by the filter of the client's SUBSCRIBE; `None` = none.
    #[expect(clippy::box_collection, reason = "sessions with wildcards have the rest, and few have this")]
    renamed: Option<Box<HashMap<TopicFilter, TopicFilter>>>,
}

impl Subscriptions {
    pub(crate) fn contains(&self, filter: &TopicFilter) -> bool {
        self.grants.contains_key(filter)
    }

    pub(crate) fn get(&self, filter: &TopicFilter) -> Option<&Grant> {
        self.grants.get(filter)
    }

    /// Adds a subscription, or replaces that of the same filter. Returns false if the session or the account has no
    /// room for it.
    pub(crate) fn insert(
        &mut self,
        filter: &TopicFilter,
        grant: Grant,
        limits: SubscriptionLimits,
        account: &Arc<Account>,
    ) -> bool {
        if let Some(known) = self.grants.get_mut(filter) {
            *known = grant;
            return true;
        }
        let bytes = self.bytes() + weight(filter);
        let has_room =
            self.grants.len() < limits.count && bytes <= limits.bytes && self.has_pattern(filter, limits.patterns);
        if !has_room || self.charge(account).resize(bytes).is_err() {
            return false;
        }
        self.grants.insert(filter.detach(), grant);
        self.count_pattern(filter);
        true
    }

    /// Adds a subscription of the last run, even above the limits.
    pub(crate) fn restore(&mut self, filter: &TopicFilter, grant: Grant, account: &Arc<Account>) {
        if self.grants.insert(filter.detach(), grant).is_none() {
            let bytes = self.bytes() + weight(filter);
            self.charge(account).set(bytes);
            self.count_pattern(filter);
        }
    }

    /// Notes that a hook has replaced the filter `asked`. Returns false if the session or the account has no room for it.
    pub(crate) fn rename(
        &mut self,
        asked: &TopicFilter,
        given: &TopicFilter,
        limits: SubscriptionLimits,
        account: &Arc<Account>,
    ) -> bool {
        let before = self.name_of(asked);
        if before == Some(given) {
            return true;
        }
        let freed = before.map_or(0, |before| weight(asked) + weight(before));
        let bytes = self.bytes() - freed + weight(asked) + weight(given);
        let names = self.renamed().map_or(0, HashMap::len) - usize::from(before.is_some());
        let has_room = names < limits.count && bytes <= limits.bytes;
        if !has_room || self.charge(account).resize(bytes).is_err() {
            return false;
        }
        self.more.get_or_insert_default().renamed.get_or_insert_default().insert(asked.detach(), given.detach());
        true
    }

    /// Whether a hook has replaced a filter.
    pub(crate) fn are_renamed(&self) -> bool {
        self.renamed().is_some()
    }

    /// The filter that a hook has given instead of `asked`.
    pub(crate) fn name_of(&self, asked: &TopicFilter) -> Option<&TopicFilter> {
        self.renamed()?.get(asked)
    }

    fn renamed(&self) -> Option<&HashMap<TopicFilter, TopicFilter>> {
        self.more.as_ref()?.renamed.as_deref()
    }

    /// Forgets that a hook has replaced the filter `asked`.
    pub(crate) fn forget_name(&mut self, asked: &TopicFilter) {
        let Some(More { renamed: names @ Some(_), .. }) = self.more.as_deref_mut() else { return };
        if let Some(given) = names.as_mut().and_then(|names| names.remove(asked)) {
            let bytes = weight(asked) + weight(&given);
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(bytes)));
        }
        names.take_if(|names| names.is_empty());
        self.forget_more();
    }

    /// Frees the box if nothing is in it.
    fn forget_more(&mut self) {
        self.more.take_if(|more| more.patterns.is_empty() && more.renamed.is_none());
    }

    fn bytes(&self) -> usize {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Moves the charge to another account.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.iter_mut().for_each(|charge| charge.move_to(account));
    }

    fn charge(&mut self, account: &Arc<Account>) -> &mut Charge {
        self.charge.get_or_insert_with(|| Charge::nothing(account, Kind::Subscriptions))
    }

    /// Removes a subscription. Returns whether there was one.
    pub(crate) fn remove(&mut self, filter: &TopicFilter) -> bool {
        let removed = self.grants.remove(filter).is_some();
        if removed {
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(weight(filter))));
            self.forget_pattern(filter);
        }
        removed
    }

    fn has_pattern(&self, filter: &TopicFilter, maximum: usize) -> bool {
        let patterns = self.more.as_deref().map(|more| &more.patterns);
        patterns.map_or(0, FxHashMap::len) < maximum
            || pattern(filter).is_none_or(|new| patterns.is_some_and(|known| known.contains_key(&new)))
    }

    fn count_pattern(&mut self, filter: &TopicFilter) {
        if let Some(pattern) = pattern(filter) {
            *self.more.get_or_insert_default().patterns.entry(pattern).or_default() += 1;
        }
    }

    fn forget_pattern(&mut self, filter: &TopicFilter) {
        let (Some(pattern), Some(more)) = (pattern(filter), &mut self.more) else { return };
        if let Entry::Occupied(mut count) = more.patterns.entry(pattern) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.forget_more();
    }

    /// Granted options by Topic Filter.
    pub(crate) fn grants(&self) -> &HashMap<TopicFilter, Grant> {
        &self.grants
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

/// A hash of the positions of a filter's wildcards and its number of levels; `None`: no wildcards. A topic matches at
/// most one filter of each pattern in each share group, and one outside of share groups.
fn pattern(filter: &TopicFilter) -> Option<u64> {
    if !filter.has_wildcard() {
        return None;
    }
    // Two patterns of one hash count as one: a client that finds such filters gains a few patterns.
    let mut hasher = FxBuildHasher.build_hasher();
    let share = if filter.is_shared() { 2 } else { 0 };
    for level in filter.levels().skip(share) {
        hasher.write_u8(match level {
            b"+" => 1,
            b"#" => 2,
            _ => 3, // a 0 would not change the hash
        });
    }
    Some(hasher.finish())
}

/// Bytes of memory of a subscription to `filter`, here and in the router's index: an upper estimate.
///
/// A level that no other filter in the index's tree shares is a node of its own.
fn weight(filter: &TopicFilter) -> usize {
    let nodes = if is_in_tree(filter) { filter.levels().count() } else { 0 };
    let group = if filter.is_shared() { GROUP_BYTES + filter.as_bytes().len() } else { 0 };
    SUBSCRIPTION_BYTES + 2 * filter.as_bytes().len() + nodes * NODE_BYTES + group
}

/// Resident memory of a subscription, a node, and a share group of one member; measured and rounded.
const SUBSCRIPTION_BYTES: usize = 512;
const NODE_BYTES: usize = 192;
const GROUP_BYTES: usize = 896;

#[cfg(test)]
mod tests {
    use tenbin_codec::SubscriptionOptions;

    use std::num::NonZeroU16;

    use super::*;
    use crate::memory::{Memory, Owner};
    use crate::values::MemoryLimits;

    const PLENTY: SubscriptionLimits = SubscriptionLimits { count: 100, bytes: 1 << 20, patterns: 10 };

    fn grant() -> Grant {
        Grant { options: SubscriptionOptions::default(), identifier: None, weight: NonZeroU16::MIN }
    }

    /// An account with a bound of so many bytes.
    fn account(all: usize) -> Arc<Account> {
        Memory::new(MemoryLimits { all, user: 0, address: 0, loopback_address: 0 }).account(Owner::Restored)
    }

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::try_from(text).unwrap()
    }

    #[test]
    fn removed_subscriptions_are_charged_no_more() {
        let (mut subscriptions, account) = (Subscriptions::default(), account(1 << 20));
        for text in ["a", "a/b/+", "$share/g/a", "a"] {
            assert!(subscriptions.insert(&filter(text), grant(), PLENTY, &account));
        }
        subscriptions.restore(&filter("a"), grant(), &account);
        assert_eq!(subscriptions.len(), 3);
        let bytes = ["a", "a/b/+", "$share/g/a"].map(|text| weight(&filter(text))).iter().sum();
        assert_eq!((subscriptions.bytes(), account.bytes()), (bytes, bytes));
        assert_eq!(
            ["a", "a/b/+", "a/b/+", "$share/g/a"].map(|text| subscriptions.remove(&filter(text))),
            [true, true, false, true]
        );
        assert_eq!((subscriptions.len(), subscriptions.bytes(), account.bytes()), (0, 0, 0));
        assert!(subscriptions.more.is_none());
    }

    #[test]
    fn names_of_hooks_are_bounded_and_charged() {
        let (mut subscriptions, account) = (Subscriptions::default(), account(1 << 20));
        let few = SubscriptionLimits { count: 2, ..PLENTY };
        let mut rename = |asked, given| subscriptions.rename(&filter(asked), &filter(given), few, &account);
        assert_eq!([rename("a", "x"), rename("a", "y"), rename("b", "y"), rename("c", "y")], [true, true, true, false]);
        assert_eq!(subscriptions.name_of(&filter("a")), Some(&filter("y")));
        ["a", "b", "c"].iter().for_each(|asked| subscriptions.forget_name(&filter(asked)));
        assert_eq!((subscriptions.bytes(), account.bytes(), subscriptions.are_renamed()), (0, 0, false));
        assert!(subscriptions.more.is_none());
    }

    #[test]
    fn filters_of_one_wildcard_pattern_count_once() {
        let (mut subscriptions, account) = (Subscriptions::default(), account(1 << 20));
        let limits = SubscriptionLimits { patterns: 2, ..PLENTY };
        let mut fit = |text: &str| subscriptions.insert(&filter(text), grant(), limits, &account);
        let all = ["a/+/c", "a/#", "b/+/d", "a", "$share/g/c/+/e"].map(&mut fit);
        assert_eq!(all, [true; 5]);
        let beyond = ["x/+", "+/x/y", "#", "a/b/#"].map(&mut fit);
        assert_eq!(beyond, [false; 4]);
        for (removed, has_room) in [("a/+/c", false), ("$share/g/c/+/e", false), ("b/+/d", true)] {
            subscriptions.remove(&filter(removed));
            let is_in = subscriptions.insert(&filter("x/+"), grant(), limits, &account);
            assert_eq!(is_in, has_room, "without {removed}");
        }
    }

    #[test]
    fn replaced_filter_needs_no_room_and_a_deep_one_much() {
        let (mut subscriptions, account) = (Subscriptions::default(), account(1 << 20));
        let mut fits = |text: &str, count, bytes| {
            let limits = SubscriptionLimits { count, bytes, ..PLENTY };
            subscriptions.insert(&filter(text), grant(), limits, &account)
        };
        assert!(fits("a/+", 1, 10_000));
        assert!(fits("a/+", 0, 0));
        assert!(!fits("b", 1, 10_000));
        let deep = "x/".repeat(30);
        assert!(!fits(&format!("{deep}+"), 2, 6000));
        assert!(!fits(&"x".repeat(3000), 2, 6000));
        assert!(fits(&deep, 2, 6000));
        assert!(fits("b", 3, 6000));
    }

    #[test]
    fn subscriptions_of_all_sessions_share_their_owner_s_account() {
        let account = account(96_000);
        let mut sessions = (0..100).map(|_| Subscriptions::default()).collect::<Vec<_>>();
        let filter = filter(&format!("{}+", "x/".repeat(100)));
        let granted =
            sessions.iter_mut().filter_map(|session| session.insert(&filter, grant(), PLENTY, &account).then_some(()));
        assert_eq!(granted.count(), 54_000 / weight(&filter));
        assert!(account.bytes() > 0);
        drop(sessions);
        assert_eq!(account.bytes(), 0);
    }
}
