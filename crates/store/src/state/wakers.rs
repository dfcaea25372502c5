use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::Ticket;

/// Who is to be woken when changes are durable. Innermost of the state's locks.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<Vec<(Ticket, Waker)>>);

impl Wakers {
    /// Keeps a waker; wakes it at once if `is_done` says that there is nothing to wait for. It is asked under the lock,
    /// and [`wake_up_to`](Self::wake_up_to) takes that lock after more is done: nobody sleeps through it.
    pub(super) fn add(&self, ticket: Ticket, waker: &Waker, is_done: impl FnOnce() -> bool) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_done() {
            drop(wakers);
            waker.wake_by_ref();
        } else {
            wakers.push((ticket, waker.clone()));
        }
    }

    /// Wakes those who wait for `done` or less.
    pub(super) fn wake_up_to(&self, done: Ticket) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = wakers.extract_if(.., |(ticket, _)| *ticket <= done).collect::<Vec<_>>();
        if wakers.capacity() > KEPT {
            wakers.shrink_to(KEPT);
        }
        drop(wakers);
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Places that are kept for later.
const KEPT: usize = 1024;
