//! Standing groups: share groups that a rule keeps while they have no member.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::SharedGroup;

impl SharedGroup {
    /// Returns whether the group exists without members.
    #[inline]
    pub(in super::super) fn stands(&self) -> bool {
        self.keep_seconds.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the group ends now: it has no member, and does not stand.
    pub(in super::super) fn is_over(&self) -> bool {
        self.members.is_empty() && !self.stands()
    }

    /// Seconds for which messages wait with the group, if it stands; [`u32::MAX`] = for ever.
    pub(in super::super) fn keep_seconds(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.keep_seconds.load(Ordering::Relaxed))
    }

    /// Longest time for which messages wait with the group; `None` = for ever.
    pub(in super::super) fn longest_wait(&self) -> Option<Duration> {
        let seconds = self.keep_seconds()?.get();
        (seconds != u32::MAX).then(|| Duration::from_secs(seconds.into()))
    }

    /// Sets whether the group stands, and returns whether that has changed.
    pub(super) fn set_standing(&self, keep_seconds: Option<NonZeroU32>) -> bool {
        let new = keep_seconds.map_or(0, NonZeroU32::get);
        let old = self.keep_seconds.swap(new, Ordering::Relaxed);
        if old == 0 && new != 0 {
            self.store_messages();
            let account = &self.queues.standing;
            self.payer.store(Some(Arc::clone(account)));
            self.pays(account);
        } else if old != 0 && new == 0 {
            self.find_payer();
        }
        old != new
    }
}
