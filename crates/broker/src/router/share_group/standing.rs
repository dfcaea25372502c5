//! Share groups that exist without members: standing ones, which a rule keeps; dormant ones, which have lost the rule; and
//! those whose members all lack the right to receive their messages.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tenbin_balancer::{Availability, MemberLoad};

use super::{Receiver, SharedGroup};
use crate::durable::KnownWait;
use crate::outbox::Outbox;

/// A session that left the group, perhaps with messages in flight.
#[derive(Debug)]
pub(super) struct Drain {
    load: Weak<MemberLoad>,
    /// Of a member of a work queue; otherwise none.
    outbox: Weak<Outbox>,
}

impl Drain {
    /// Returns whether the session goes on, and has messages of share groups.
    fn is_loaded(&self) -> bool {
        self.load.upgrade().is_some_and(|load| load.snapshot().outstanding_messages > 0)
    }
}

impl SharedGroup {
    /// Returns whether the group takes messages without members.
    #[inline]
    pub(in super::super) fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }

    /// Returns whether the group ends now: it has no member, not even a suspended one, and never stood. The others end
    /// when they are empty, see [`SharedGroup::is_spent`].
    pub(in super::super) fn is_over(&self) -> bool {
        self.members.is_empty() && self.keep_seconds().is_none() && !self.has_suspended()
    }

    /// Returns whether the group has lost its rule and its members: messages may wait, and no new ones join them.
    pub(in super::super) fn is_dormant(&self) -> bool {
        self.members.is_empty() && !self.stands()
    }

    /// Returns whether the group has lost its rule, its members and its messages, those in flight included.
    pub(in super::super) fn is_spent(&self) -> bool {
        self.is_dormant()
            && !self.has_suspended()
            && !self.backlog.has_backlog()
            && !self.has_retries()
            && !self.has_messages_in_flight()
    }

    /// Returns whether sessions that were members may have messages of the group, which come back if the sessions end.
    fn has_messages_in_flight(&self) -> bool {
        let stored = self.queues.durable.as_ref().zip(self.stored());
        stored.is_some_and(|(durable, queue)| durable.has_messages(&queue))
            || self.drains().iter().any(Drain::is_loaded)
    }

    /// Notes that a member leaves, perhaps with messages in flight.
    pub(super) fn note_drain(&self, load: &Arc<MemberLoad>, outbox: &Arc<Outbox>) {
        let is_work_queue = self.work.load().is_some();
        if self.keep_seconds().is_none() && !is_work_queue {
            return; // the group ends with its last member
        }
        let mut drains = self.drains();
        if drains.len() == drains.capacity() {
            drains.retain(Drain::is_loaded);
        }
        let outbox = if is_work_queue { Arc::downgrade(outbox) } else { Weak::new() };
        drains.push(Drain { load: Arc::downgrade(load), outbox });
    }

    /// Outboxes of former members that may have messages of this work queue in flight.
    pub(in super::super) fn former_members(&self) -> Vec<Arc<Outbox>> {
        let mut drains = self.drains();
        drains.retain(Drain::is_loaded);
        drains.iter().filter_map(|drain| drain.outbox.upgrade()).collect()
    }

    fn drains(&self) -> MutexGuard<'_, Vec<Drain>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session a member that gets no message, and for which no new one waits, until it joins again. Under the lock
    /// of the index's writers, as all changes of members.
    pub(in super::super) fn suspend(&self, receiver: &Receiver) {
        self.suspended().insert(receiver.number); // first, as the group must not seem to end
        if receiver.outbox.keeps_in().is_some() {
            self.store_messages();
        }
        if self.payer.load().is_none() {
            self.payer.store(receiver.outbox.account());
        }
        self.leave(receiver.number);
    }

    /// Ends the suspension of a session, and returns whether it was suspended.
    pub(in super::super) fn resume(&self, number: u64) -> bool {
        self.suspended().remove(&number)
    }

    /// Returns whether a member can take messages.
    pub(in super::super) fn has_ready_member(&self) -> bool {
        let members = self.members.members();
        members.iter().any(|member| member.load().availability() == Availability::Ready && !member.load().is_draining())
    }

    /// Returns whether a member is suspended.
    pub(in super::super) fn has_suspended(&self) -> bool {
        !self.suspended().is_empty()
    }

    fn suspended(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.suspended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds for which messages wait with the group, if it stands or stood; [`u32::MAX`] = for ever.
    pub(in super::super) fn keep_seconds(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.keep_seconds.load(Ordering::Relaxed))
    }

    /// Longest time for which messages wait with the group; `None` = for ever. A former rule holds while there is no
    /// member, not even a suspended one: with members the group is an ordinary one.
    pub(in super::super) fn longest_wait(&self) -> Option<Duration> {
        let seconds = self.keep_seconds()?.get();
        let is_ruled = self.stands() || self.members.is_empty() && !self.has_suspended();
        (is_ruled && seconds != u32::MAX).then(|| Duration::from_secs(seconds.into()))
    }

    /// Sets whether the group stands, and returns whether that has changed. `None`: it takes no more messages without
    /// members, and the waiting ones stay as long as before.
    pub(super) fn set_standing(&self, keep_seconds: Option<NonZeroU32>) -> bool {
        let stood = self.stands.swap(keep_seconds.is_some(), Ordering::Relaxed);
        let Some(seconds) = keep_seconds else {
            if stood {
                self.find_payer();
            }
            return stood;
        };
        self.store_messages();
        let is_other = self.keep_seconds.swap(seconds.get(), Ordering::Relaxed) != seconds.get();
        if is_other {
            self.store_wait(Instant::now());
        }
        if !stood {
            self.standing_pays();
        }
        is_other || !stood
    }

    /// Keeps the messages that the last run left with a group whose rule is gone.
    pub(in super::super) fn lie_dormant(&self) {
        self.store_messages();
        self.standing_pays();
    }

    /// Restores the last run's facts about the waiting messages.
    pub(super) fn restore_wait(&self, KnownWait { keep_seconds, ages }: KnownWait) {
        self.keep_seconds.store(keep_seconds.map_or(0, NonZeroU32::get), Ordering::Relaxed);
        self.restore_ages(ages);
    }

    fn standing_pays(&self) {
        let account = &self.queues.standing;
        self.payer.store(Some(Arc::clone(account)));
        self.pays(account);
    }
}
