//! Standing groups of the index: their begin, their end, and the messages that have waited too long with them.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tenbin_codec::SharedFilter;

use super::super::hash_trie::Key;
use super::super::share_group::beginning;
use super::{Edit, FilterIndex};

impl FilterIndex {
    /// Creates the standing groups that have no member: see [`Edit::stand`].
    pub(in super::super) fn stand(&self) {
        self.edit().stand();
    }

    /// Drops messages that have waited too long with standing groups. Call it every second or so.
    pub(in super::super) fn drop_overdue(&self, now: Instant) {
        let standing = self.standing.load_full();
        if standing.is_empty() {
            return;
        }
        {
            // A group that has ended must not write its record again, which may be its successor's.
            let _writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
            self.standing.load().iter().for_each(|group| group.mark_age(now));
        }
        standing.iter().for_each(|group| group.drop_overdue(now));
    }
}

impl Edit<'_> {
    /// Creates the groups that stand by the rules, and ends those that have stood and have no member.
    pub(super) fn stand(&mut self) {
        let index = self.index;
        let mut standing = Vec::new();
        for name in index.rules.load().standing_groups() {
            let key = Key::new(name.share_name.text().as_bytes(), index.hasher());
            let known = self.next.entry(&name.filter, index.hasher()).and_then(|entry| entry.groups.get(&key).cloned());
            standing.push(known.unwrap_or_else(|| {
                let group = index.new_group(&name);
                index.groups.insert(group.number(), Arc::clone(&group));
                self.change(&name.filter, |entry| entry.groups.set(&key, Some(Arc::clone(&group))));
                group
            }));
        }
        let before = index.standing.swap(Arc::new(standing));
        for group in before.iter().filter(|group| group.is_over() && index.groups.remove(&group.number()).is_some()) {
            let SharedFilter { share_name, filter } = group.name();
            let key = Key::new(share_name.text().as_bytes(), index.hasher());
            self.change(filter, |entry| entry.groups.set(&key, None));
            let dropped = group.end();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            tracing::warn!(share_name, filter, dropped, "share group ended: it has no member, and no rule keeps it");
        }
    }
}
