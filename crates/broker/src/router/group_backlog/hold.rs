//! Back-pressure: a publisher's acknowledgements are held while the group backlog is too long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::super::share_group::SharedGroup;
use super::Queued;

/// Whether a group holds acknowledgements, and the tasks that wait for the end of that.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Written under the backlog's lock, before the tasks are woken; release/acquire.
    is_on: AtomicBool,
    next_ticket: AtomicU64,
    /// By ticket. No other lock is taken under this one.
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

/// A share group that holds a publisher's acknowledgements.
#[derive(Debug)]
pub(crate) struct HoldingGroup {
    group: Arc<SharedGroup>,
    /// Names the publisher in [`Hold::waiting`].
    ticket: u64,
}

impl HoldingGroup {
    /// Returns whether the group still holds acknowledgements; then `waker` is woken at the end of that.
    pub(crate) fn still_holds(&self, waker: &Waker) -> bool {
        let hold = &self.group.backlog.hold;
        let mut waiting = hold.waiting();
        // Under the lock: the end either sees the waker, or is seen here.
        let is_on = hold.is_on();
        if is_on {
            waiting.entry(self.ticket).or_insert_with(|| waker.clone()).clone_from(waker);
        }
        is_on
    }

    /// Returns whether both are about the same group.
    pub(crate) fn is_same_group(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.group, &other.group)
    }
}

impl Drop for HoldingGroup {
    fn drop(&mut self) {
        self.group.backlog.hold.waiting().remove(&self.ticket);
    }
}

impl Hold {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Begins or ends the hold, and wakes all tasks at the end. Call it under the backlog's lock.
    fn set(&self, is_on: bool) {
        let was_on = self.is_on();
        if is_on != was_on {
            self.is_on.store(is_on, Ordering::Release);
        }
        if was_on && !is_on {
            let woken = std::mem::take(&mut *self.waiting());
            woken.into_values().for_each(Waker::wake);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedGroup {
    /// Adds the group to those that hold a publisher's acknowledgements, if its backlog is too long.
    pub(super) fn hold_acknowledgements(self: &Arc<Self>, holding: &mut Vec<HoldingGroup>) {
        let hold = &self.backlog.hold;
        if hold.is_on() && !holding.iter().any(|other| Arc::ptr_eq(&other.group, self)) {
            let ticket = hold.next_ticket.fetch_add(1, Ordering::Relaxed);
            holding.push(HoldingGroup { group: Arc::clone(self), ticket });
        }
    }

    /// Begins or ends the hold after a change of the backlog.
    pub(super) fn update_hold(&self, queued: &Queued) {
        let hold = &self.backlog.hold;
        // Half of it ends a hold, so that no task is woken and stopped again for each message.
        let limit = queued.hold_beyond.map(|limit| if hold.is_on() { limit / 2 } else { limit });
        hold.set(limit.is_some_and(|limit| self.is_longer_than(limit, queued.len())));
    }

    /// Whether the backlog is full or holds acknowledgements.
    pub(in super::super) fn is_congested(&self) -> bool {
        self.backlog.is_over_quota() || self.backlog.hold.is_on()
    }

    /// Ends the hold after a member has left, if the others have caught up or there is none.
    pub(in super::super) fn recheck_hold(&self) {
        if self.backlog.hold.is_on() {
            self.change_queued(|_| ());
        }
    }

    /// Returns whether the members need more than `limit` for this number of messages, as far as their speeds are known.
    fn is_longer_than(&self, limit: Duration, messages: usize) -> bool {
        let per_second = if messages > 0 { self.members.members().messages_per_second() } else { 0.0 };
        per_second > 0.0 && messages as f64 > limit.as_secs_f64() * per_second
    }

    /// Sets the length of the backlog beyond which acknowledgements are held. Returns whether it differs.
    pub(in super::super) fn set_hold_beyond(&self, limit: Option<Duration>) -> bool {
        self.change_queued(|queued| std::mem::replace(&mut queued.hold_beyond, limit) != limit)
    }
}
