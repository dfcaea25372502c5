use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::Ticket;

/// Tasks to wake when changes become durable. The innermost of the state's locks.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<Wake, Waker>,
    /// Number of wakers added so far.
    added: u64,
}

/// A registered waker: see [`State::forget_wake`](super::State::forget_wake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake(Ticket, u64);

impl Wakers {
    /// Keeps a waker, or wakes it at once if `is_done` is true.
    ///
    /// `is_done` runs under the lock. The committer calls [`wake_up_to`](Self::wake_up_to), which takes that lock,
    /// after it has stored the new ticket. So no wake-up is lost.
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
        // Dropping the waker may drop its task, so it happens outside the lock.
        drop(waiting);
        drop(gone);
    }

    /// Wakes all tasks whose ticket is at most `done`.
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
