use std::collections::HashMap;
use std::sync::Arc;

use tenbin_codec::TopicFilter;

use crate::memory::{Account, Charge, Kind, OverLimit};
use crate::router::is_in_tree;
use crate::values::{Bound, Grant, MatchBound, SubscriptionLimits};

/// The subscriptions of one session, and their charge.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    grants: HashMap<TopicFilter, Grant>,
    /// For all filters, see [`weight`]; `None` = no subscription yet.
    charge: Option<Charge>,
    /// Boxed, as many sessions need nothing of it.
    more: Option<Box<More>>,
}

/// What only wildcards, share groups and hooks need.
#[derive(Debug, Default)]
struct More {
    matches: MatchBound,
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

    /// Adds a subscription, or replaces the one of the same filter.
    ///
    /// # Errors
    /// The session or the account has no room for it.
    pub(crate) fn insert(
        &mut self,
        filter: &TopicFilter,
        grant: Grant,
        limits: SubscriptionLimits,
        account: &Arc<Account>,
    ) -> Result<(), Bound> {
        if let Some(known) = self.grants.get_mut(filter) {
            *known = grant;
            return Ok(());
        }
        let bytes = self.bytes() + weight(filter);
        let has_match = |more: &More| more.matches.has_room(filter, limits.patterns);
        if self.grants.len() >= limits.count {
            return Err(Bound::Subscriptions);
        }
        if bytes > limits.bytes {
            return Err(Bound::SubscriptionBytes);
        }
        if !self.more.as_deref().map_or_else(|| has_match(&More::default()), has_match) {
            return Err(Bound::WildcardPatterns);
        }
        self.charge(account).resize(bytes).map_err(|OverLimit(bound)| bound)?;
        self.grants.insert(filter.detach(), grant);
        self.count_matches(filter);
        Ok(())
    }

    /// Adds a subscription of the last run, even above the limits.
    pub(crate) fn restore(&mut self, filter: &TopicFilter, grant: Grant, account: &Arc<Account>) {
        if self.grants.insert(filter.detach(), grant).is_none() {
            let bytes = self.bytes() + weight(filter);
            self.charge(account).set(bytes);
            self.count_matches(filter);
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
        self.more.take_if(|more| more.matches.is_empty() && more.renamed.is_none());
    }

    fn bytes(&self) -> usize {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Moves the charge to another account.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.iter_mut().for_each(|charge| charge.move_to(account));
    }

    /// Tells the account whether the session is without a connection.
    pub(crate) fn set_away(&mut self, is_away: bool) {
        self.charge.iter_mut().for_each(|charge| charge.set_away(is_away));
    }

    fn charge(&mut self, account: &Arc<Account>) -> &mut Charge {
        self.charge.get_or_insert_with(|| Charge::nothing(account, Kind::Subscriptions))
    }

    /// Removes a subscription. Returns whether there was one.
    pub(crate) fn remove(&mut self, filter: &TopicFilter) -> bool {
        let removed = self.grants.remove(filter).is_some();
        if removed {
            self.charge.iter_mut().for_each(|charge| charge.set(charge.bytes().saturating_sub(weight(filter))));
            if let Some(more) = &mut self.more {
                more.matches.remove(filter);
            }
            self.forget_more();
        }
        removed
    }

    fn count_matches(&mut self, filter: &TopicFilter) {
        if filter.has_wildcard() || filter.is_shared() {
            self.more.get_or_insert_default().matches.add(filter);
        }
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

    /// Filters of share groups for which the client's speed is remembered when its connection ends. It is the same in all
    /// of them, so a few are enough.
    pub(crate) fn remembered_groups(&self) -> impl Iterator<Item = &TopicFilter> {
        self.keys().filter(|filter| filter.is_shared()).take(REMEMBERED_GROUPS)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TopicFilter, &Grant)> {
        self.grants.iter()
    }
}

/// Bytes of memory of a subscription to `filter`, here and in the router's index: an upper estimate.
///
/// A level that no other filter in the index's tree shares is a separate node.
fn weight(filter: &TopicFilter) -> usize {
    let nodes = if is_in_tree(filter) { filter.levels().count() } else { 0 };
    let group = if filter.is_shared() { GROUP_BYTES + filter.as_bytes().len() } else { 0 };
    SUBSCRIPTION_BYTES + 2 * filter.as_bytes().len() + nodes * NODE_BYTES + group
}

/// Share groups of one client in which its speed is remembered while it is away.
const REMEMBERED_GROUPS: usize = 64;

/// Resident memory of a subscription, a node, and a share group of one member; measured and rounded.
const SUBSCRIPTION_BYTES: usize = 288;
const NODE_BYTES: usize = 160;
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

    /// An account with this bound in bytes.
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
            assert_eq!(subscriptions.insert(&filter(text), grant(), PLENTY, &account), Ok(()));
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
        assert_eq!(all, [Ok(()); 5]);
        let beyond = ["x/+", "+/x/y", "#", "a/b/#", "$share/h/c/+/e", "$share/g/a"].map(&mut fit);
        assert_eq!(beyond, [Err(Bound::WildcardPatterns); 6]);
        for (removed, has_room) in [("a/+/c", false), ("$share/g/c/+/e", false), ("b/+/d", true)] {
            subscriptions.remove(&filter(removed));
            let is_in = subscriptions.insert(&filter("x/+"), grant(), limits, &account);
            assert_eq!(is_in.is_ok(), has_room, "without {removed}");
        }
    }

    #[test]
    fn replaced_filter_needs_no_room_and_a_deep_one_much() {
        let (mut subscriptions, account) = (Subscriptions::default(), account(1 << 20));
        let mut fits = |text: &str, count, bytes| {
            let limits = SubscriptionLimits { count, bytes, ..PLENTY };
            subscriptions.insert(&filter(text), grant(), limits, &account).is_ok()
        };
        assert!(fits("a/+", 1, 10_000));
        assert!(fits("a/+", 0, 0));
        assert!(!fits("b", 1, 10_000));
        let deep = "x/".repeat(30);
        assert!(!fits(&format!("{deep}+"), 2, 5000));
        assert!(!fits(&"x".repeat(3000), 2, 5000));
        assert!(fits(&deep, 2, 5000));
        assert!(fits("b", 3, 5000));
    }

    #[test]
    fn subscriptions_of_all_sessions_share_their_owner_s_account() {
        let account = account(96_000);
        let mut sessions = (0..100).map(|_| Subscriptions::default()).collect::<Vec<_>>();
        let filter = filter(&format!("{}+", "x/".repeat(100)));
        let granted = sessions.iter_mut().filter_map(|session| session.insert(&filter, grant(), PLENTY, &account).ok());
        assert_eq!(granted.count(), 54_000 / weight(&filter));
        assert!(account.bytes() > 0);
        drop(sessions);
        assert_eq!(account.bytes(), 0);
    }
}
