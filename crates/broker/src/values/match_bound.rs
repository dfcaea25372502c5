use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use tenbin_codec::TopicFilter;

/// Upper bound of the filters and share groups that a topic matches, among those of one client or one owner.
///
/// A topic matches at most one filter of each wildcard pattern, and all share groups of that filter. So the bound is the
/// sum over patterns of the most groups of one filter; a pattern without groups counts 1. All filters without wildcards
/// are one pattern, which counts only its groups.
#[derive(Debug, Default)]
pub(crate) struct MatchBound {
    /// By [`pattern`].
    patterns: FxHashMap<u64, Pattern>,
    /// Number of share groups of each filter that has any, by the filter's hash.
    groups: FxHashMap<u64, u32>,
    total: usize,
}

#[derive(Debug, Default)]
struct Pattern {
    /// Filters of ordinary subscriptions.
    ordinary: u32,
    /// At `n`: filters with more than `n` share groups. The last number is not 0.
    deeper_than: Vec<u32>,
}

impl Pattern {
    fn bound(&self) -> usize {
        self.deeper_than.len().max(usize::from(self.ordinary > 0))
    }
}

impl MatchBound {
    #[cfg(test)]
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether the bound stays within `maximum` with this subscription, or does not rise.
    pub(crate) fn has_room(&self, filter: &TopicFilter, maximum: usize) -> bool {
        self.total < maximum || !PatternKey::of(filter).is_some_and(|place| self.would_rise(place))
    }

    /// As [`MatchBound::has_room`], for a share group with this filter.
    pub(crate) fn has_room_for_group(&self, filter: &TopicFilter, maximum: usize) -> bool {
        self.total < maximum || !self.would_rise(PatternKey::of_group(filter))
    }

    fn would_rise(&self, PatternKey { pattern, group }: PatternKey) -> bool {
        let known = self.patterns.get(&pattern);
        let depth = group.map_or(0, |group| self.groups.get(&group).map_or(0, |&groups| groups as usize));
        known.map_or(0, Pattern::bound) <= depth
    }

    /// Adds a subscription.
    pub(crate) fn add(&mut self, filter: &TopicFilter) {
        if let Some(place) = PatternKey::of(filter) {
            self.add_at(place);
        }
    }

    /// Adds a share group with this filter.
    pub(crate) fn add_group(&mut self, filter: &TopicFilter) {
        self.add_at(PatternKey::of_group(filter));
    }

    fn add_at(&mut self, PatternKey { pattern, group }: PatternKey) {
        let pattern = self.patterns.entry(pattern).or_default();
        let before = pattern.bound();
        match group {
            None => pattern.ordinary += 1,
            Some(group) => {
                let groups = self.groups.entry(group).or_default();
                let depth = *groups as usize;
                *groups += 1;
                match pattern.deeper_than.get_mut(depth) {
                    Some(filters) => *filters += 1,
                    None => pattern.deeper_than.push(1),
                }
            }
        }
        self.total += pattern.bound() - before;
    }

    /// Removes a subscription.
    pub(crate) fn remove(&mut self, filter: &TopicFilter) {
        if let Some(place) = PatternKey::of(filter) {
            self.remove_at(place);
        }
    }

    /// Removes a share group with this filter.
    pub(crate) fn remove_group(&mut self, filter: &TopicFilter) {
        self.remove_at(PatternKey::of_group(filter));
    }

    fn remove_at(&mut self, PatternKey { pattern: key, group }: PatternKey) {
        let Some(pattern) = self.patterns.get_mut(&key) else { return };
        let before = pattern.bound();
        match group {
            None => pattern.ordinary = pattern.ordinary.saturating_sub(1),
            Some(group) => {
                let Some(groups) = self.groups.get_mut(&group) else { return };
                *groups -= 1;
                let depth = *groups as usize;
                if depth == 0 {
                    self.groups.remove(&group);
                }
                if let Some(filters) = pattern.deeper_than.get_mut(depth) {
                    *filters -= 1;
                }
                pattern.deeper_than.pop_if(|filters| *filters == 0);
            }
        }
        let after = pattern.bound();
        if after == 0 {
            self.patterns.remove(&key);
        }
        self.total -= before - after;
    }
}

/// Where a subscription counts.
struct PatternKey {
    pattern: u64,
    /// Hash of the filter that a share group has.
    group: Option<u64>,
}

impl PatternKey {
    /// `None` for an ordinary subscription without wildcards, which counts nowhere.
    fn of(filter: &TopicFilter) -> Option<Self> {
        match filter.shared() {
            Some(shared) => Some(Self::of_group(&shared.filter)),
            None => filter.has_wildcard().then(|| Self { pattern: pattern(filter), group: None }),
        }
    }

    fn of_group(filter: &TopicFilter) -> Self {
        Self { pattern: pattern(filter), group: Some(HASHER.hash_one(filter.as_bytes())) }
    }
}

/// A hash of the positions of a filter's wildcards and its number of levels; the same for all filters without wildcards.
fn pattern(filter: &TopicFilter) -> u64 {
    let mut hasher = HASHER.build_hasher();
    if filter.has_wildcard() {
        for level in filter.levels() {
            hasher.write_u8(match level {
                b"+" => 1,
                b"#" => 2,
                _ => 3,
            });
        }
    }
    hasher.finish()
}

/// With keys that clients do not know, so that none finds two patterns of one hash.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::try_from(text).unwrap()
    }

    /// The bound after each of these subscriptions.
    fn totals<'a>(bound: &mut MatchBound, filters: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
        let add = |text| {
            bound.add(&filter(text));
            bound.total()
        };
        filters.into_iter().map(add).collect()
    }

    #[test]
    fn share_names_on_one_filter_add_up_and_those_on_others_do_not() {
        let mut bound = MatchBound::default();
        let on_one = ["$share/a/x", "$share/b/x", "$share/c/x", "$share/d/x"];
        assert_eq!(totals(&mut bound, on_one), [1, 2, 3, 4]);
        let on_others = ["$share/e/y", "$share/f/z", "$share/a/z", "plain"];
        assert_eq!(totals(&mut bound, on_others), [4; 4]);
        assert_eq!(totals(&mut bound, ["x/#", "y/#", "$share/a/y/#", "$share/b/y/#", "+/#"]), [5, 5, 5, 6, 7]);
    }

    #[test]
    fn only_a_subscription_that_raises_the_bound_needs_room() {
        let mut bound = MatchBound::default();
        totals(&mut bound, ["$share/a/x", "$share/b/x", "y/#"]);
        let has_room = |text| bound.has_room(&filter(text), 3);
        let is_free = ["$share/a/y", "$share/b/z", "$share/a/z/#", "z/#", "plain"];
        assert_eq!(is_free.map(has_room), [true; 5]);
        assert_eq!(["$share/c/x", "+/#", "$share/a/+"].map(has_room), [false; 3]);
        assert!(bound.has_room(&filter("+/#"), 4));
    }

    #[test]
    fn removed_subscriptions_leave_nothing_behind() {
        let mut bound = MatchBound::default();
        let filters = ["$share/a/x", "$share/b/x", "$share/a/y", "a/#", "$share/a/b/#", "b/#"];
        assert_eq!(totals(&mut bound, filters), [1, 2, 2, 3, 3, 3]);
        let after = ["a/#", "$share/a/x", "$share/a/b/#", "$share/a/y", "b/#", "$share/b/x"].map(|text| {
            bound.remove(&filter(text));
            bound.total()
        });
        assert_eq!(after, [3, 2, 2, 2, 1, 0]);
        assert!(bound.is_empty() && bound.groups.is_empty());
        bound.remove(&filter("$share/a/x"));
        assert!(bound.is_empty());
    }
}
