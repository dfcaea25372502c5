use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::Ticket;

/// Who is to be woken when changes are durable. Innermost of the state's locks.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<Wake, Waker>,
    /// So many were added.
    added: u64,
}

/// One that is to be woken: see [`State::forget_wake`](super::State::forget_wake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake(Ticket, u64);

impl Wakers {
    /// Keeps a waker; wakes it at once if `is_done` says that there is nothing to wait for. It is asked under the lock,
    /// and [`wake_up_to`](Self::wake_up_to) takes that lock after more is done: nobody sleeps through it.
    pub(super) fn add(&self, ticket: Ticket, waker: &Waker, is_done: impl FnOnce() -> bool) -> Wake {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.added += 1;
        let wake = Wake(ticket, waiting.added);
        if is_done() {
            drop(waiting);
            waker.wake_by_ref();
        } else {
            waiting.wakers.insert(wake, waker.clone());
        }
        wake
    }

    pub(super) fn forget(&self, wake: Wake) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = waiting.wakers.remove(&wake);
        // The last that was left of a task may go with it.
        drop(waiting);
        drop(gone);
    }

    /// Wakes those who wait for `done` or less.
    pub(super) fn wake_up_to(&self, done: Ticket) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = waiting.wakers.split_off(&Wake(Ticket(done.0 + 1), 0));
        let woken = mem::replace(&mut waiting.wakers, later);
        drop(waiting);
        woken.into_values().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wakers.len()
    }
}
