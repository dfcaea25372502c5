//! Standing groups of the index, and those that have lost their rule: their begin, their end, and the messages that have
//! waited too long with them.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use tenbin_codec::SharedFilter;

use super::super::hash_trie::Key;
use super::super::share_group::{SharedGroup, beginning};
use super::{Edit, FilterIndex};

impl FilterIndex {
    /// Creates the standing groups that have no member: see [`Edit::stand`]. `stood`: groups of the last run that may
    /// have lost their rule.
    pub(in super::super) fn stand(&self, stood: impl FnOnce() -> Vec<SharedFilter>) {
        let mut edit = self.edit();
        edit.stand();
        edit.lie_dormant(&stood());
    }

    /// Groups without members that have lost their rule, and number of messages that wait with each.
    pub(in super::super) fn dormant(&self) -> Vec<(Arc<SharedGroup>, usize)> {
        let standing = self.standing.load();
        let dormant = standing.iter().filter(|group| group.is_dormant() && !group.has_suspended());
        dormant.map(|group| (Arc::clone(group), group.waiting())).filter(|(_, waiting)| *waiting > 0).collect()
    }

    /// Groups whose members all lack the right, and number of messages that wait with each.
    pub(in super::super) fn suspended(&self) -> Vec<(Arc<SharedGroup>, usize)> {
        let groups: Vec<_> = self.without_right().values().filter(|group| group.members.is_empty()).cloned().collect();
        groups
            .into_iter()
            .map(|group| (Arc::clone(&group), group.waiting()))
            .filter(|(_, waiting)| *waiting > 0)
            .collect()
    }

    pub(super) fn without_right(&self) -> MutexGuard<'_, HashMap<NonZeroU64, Arc<SharedGroup>>> {
        self.without_right.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a session is no suspended member of the group any more.
    pub(super) fn forget_suspended(&self, group: &SharedGroup, number: u64) {
        if group.resume(number) && !group.has_suspended() {
            self.without_right().remove(&group.number());
        }
    }

    /// Logs the dormant groups: their messages wait for a rule.
    pub(in super::super) fn tell_dormant(&self) {
        let dormant = self.dormant();
        for (group, messages) in dormant.iter().take(TOLD_MAX) {
            let SharedFilter { share_name, filter } = group.name();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            let keep_seconds = group.keep_seconds();
            tracing::warn!(
                share_name,
                filter,
                messages,
                keep_seconds,
                "share group without a rule: its messages wait until it has one, or for keep_seconds of the last one"
            );
        }
        if dormant.len() > TOLD_MAX {
            let messages: usize = dormant.iter().map(|(_, messages)| messages).sum();
            tracing::warn!(groups = dormant.len(), messages, "share groups without a rule, the above included");
        }
    }

    /// Drops messages that have waited too long with standing groups. Call it every second or so, and go on with the
    /// iterator: each step drops some messages.
    pub(in super::super) fn drop_overdue(&self, now: Instant) -> impl Iterator<Item = ()> + use<> {
        let standing = self.standing.load_full();
        if !standing.is_empty() {
            // A group that has ended must not write its record again, which may be its successor's.
            let mut edit = self.edit();
            self.standing.load().iter().for_each(|group| group.mark_age(now));
            edit.end_spent();
        }
        let mut place = 0;
        std::iter::from_fn(move || {
            let group = standing.get(place)?;
            place += usize::from(!group.drop_overdue(now));
            Some(())
        })
    }
}

impl Edit<'_> {
    /// Creates the groups that stand by the rules. Groups that stood before lie dormant: without members they take no
    /// messages, and the waiting ones stay.
    pub(super) fn stand(&mut self) {
        let index = self.index;
        let standing = index.rules.load().standing_groups().map(|name| self.found(&name)).collect();
        let before = index.standing.swap(Arc::new(standing));
        self.watch(before.iter().filter(|group| !group.stands()));
        self.end_spent();
    }

    /// Creates the groups of the last run that stood then, and have lost their rule.
    fn lie_dormant(&mut self, names: &[SharedFilter]) {
        names.iter().for_each(|name| self.found(name).lie_dormant());
        let has_stood = |group: &Arc<SharedGroup>| !group.stands() && group.keep_seconds().is_some();
        let dormant: Vec<_> = self.index.groups().filter(has_stood).collect();
        self.watch(dormant.iter());
    }

    /// Returns the group of this name, which it creates without members if there is none.
    pub(super) fn found(&mut self, name: &SharedFilter) -> Arc<SharedGroup> {
        let index = self.index;
        let key = Key::new(name.share_name.text().as_bytes(), index.hasher());
        let known = self.next.entry(&name.filter, index.hasher()).and_then(|entry| entry.groups.get(&key).cloned());
        known.unwrap_or_else(|| {
            let group = index.new_group(name);
            index.groups.insert(group.number(), Arc::clone(&group));
            self.change(&name.filter, |entry| entry.groups.set(&key, Some(Arc::clone(&group))));
            group
        })
    }

    /// Looks every second after the messages of these groups too.
    fn watch<'a>(&self, groups: impl Iterator<Item = &'a Arc<SharedGroup>>) {
        let mut watched = Vec::clone(&self.index.standing.load());
        watched.extend(groups.cloned());
        self.index.standing.store(Arc::new(watched));
    }

    /// Ends the groups that have lost rule, members and messages.
    pub(super) fn end_spent(&mut self) {
        let index = self.index;
        let (spent, left): (Vec<_>, Vec<_>) = index.standing.load().iter().cloned().partition(|group| group.is_spent());
        if spent.is_empty() {
            return;
        }
        index.standing.store(Arc::new(left));
        for group in spent.iter().filter(|group| index.groups.remove(&group.number()).is_some()) {
            let SharedFilter { share_name, filter } = group.name();
            let key = Key::new(share_name.text().as_bytes(), index.hasher());
            self.change(filter, |entry| entry.groups.set(&key, None));
            group.end();
        }
    }
}

/// Dormant groups that a reload or a start logs one by one.
const TOLD_MAX: usize = 8;
