//! Share groups of which something on disk cannot be read for now. Those that are well are not known here, and cost nothing.

use std::collections::BTreeMap;
use std::future::pending;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::shared::SharedGroup;
use crate::shared::Shared;

/// When which of them are looked at again.
#[derive(Debug, Default)]
pub(crate) struct UnreadGroups {
    /// By time, and their numbers.
    groups: Mutex<BTreeMap<(Instant, NonZeroU64), Weak<SharedGroup>>>,
    /// There may be an earlier one.
    added: Notify,
}

impl UnreadGroups {
    /// This one is to be looked at then.
    pub(super) fn add(&self, group: &Arc<SharedGroup>, at: Instant) {
        self.groups().insert((at, group.number()), Arc::downgrade(group));
        self.added.notify_one();
    }

    /// When the next one is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.groups().first_key_value().map(|(&(at, _), _)| at)
    }

    /// Has those read whose time has come.
    pub(super) fn look(&self, now: Instant) {
        // Not under our lock: theirs is taken before it.
        while let Some(group) = self.take_due(now) {
            if let Some(group) = group.upgrade() {
                group.read_again(now);
            }
        }
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

/// Looks, for ever.
pub(crate) async fn read_again(shared: Arc<Shared>) {
    let unread = shared.router.unread_groups();
    loop {
        let next = unread.next();
        let is_time = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = is_time => unread.look(Instant::now()),
            () = unread.added.notified() => {}
        }
    }
}
