//! Share groups whose on-disk backlog cannot be read at present. Other groups are not listed, so they cost nothing.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::share_group::SharedGroup;

/// Times at which failed reads are repeated.
#[derive(Debug, Default)]
pub(crate) struct UnreadGroups {
    /// The groups, by time and number.
    groups: Mutex<BTreeMap<(Instant, NonZeroU64), Weak<SharedGroup>>>,
    /// Notified when an entry is added, which may be the earliest.
    added: Notify,
}

impl UnreadGroups {
    /// Schedules a read of this group's backlog.
    pub(super) fn add(&self, group: &Arc<SharedGroup>, at: Instant) {
        self.groups().insert((at, group.number()), Arc::downgrade(group));
        self.added.notify_one();
    }

    /// Returns the earliest scheduled time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.groups().first_key_value().map(|(&(at, _), _)| at)
    }

    /// Repeats the reads that are due.
    pub(crate) fn look(&self, now: Instant) {
        // Not under this lock: a group takes it under its own.
        while let Some(group) = self.take_due(now) {
            if let Some(group) = group.upgrade() {
                group.read_again(now);
            }
        }
    }

    /// Waits until a group is added.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    fn take_due(&self, now: Instant) -> Option<Weak<SharedGroup>> {
        let mut groups = self.groups();
        let first = groups.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<(Instant, NonZeroU64), Weak<SharedGroup>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
