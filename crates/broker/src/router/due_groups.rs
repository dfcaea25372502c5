//! Share groups that are to be looked at later. Other groups are not listed, so they cost nothing.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::share_group::SharedGroup;

/// Times at which share groups have something to do: to repeat a failed read, to deliver a rejected message again, or to
/// look for messages that are not acknowledged in time.
#[derive(Debug, Default)]
pub(crate) struct DueGroups {
    /// The groups, by time and number.
    groups: Mutex<BTreeMap<(Instant, NonZeroU64), Weak<SharedGroup>>>,
    /// Notified when an entry is added that is the earliest.
    added: Notify,
}

impl DueGroups {
    /// Schedules a look at this group.
    pub(super) fn add(&self, group: &Arc<SharedGroup>, at: Instant) {
        let mut groups = self.groups();
        let is_first = groups.first_key_value().is_none_or(|(&(first, _), _)| at <= first);
        groups.insert((at, group.number()), Arc::downgrade(group));
        drop(groups);
        if is_first {
            self.added.notify_one();
        }
    }

    /// Returns the earliest scheduled time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.groups().first_key_value().map(|(&(at, _), _)| at)
    }

    /// Looks at a group that is due; false if there is none.
    pub(crate) fn look(&self, now: Instant) -> bool {
        // Not under this lock: a group takes it under its own.
        let Some(group) = self.take_due(now) else { return false };
        if let Some(group) = group.upgrade() {
            group.is_due(now);
        }
        true
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
