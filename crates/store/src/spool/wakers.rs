//! Who is to be woken when the log has come to a position.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{RawWakerVTable, Waker},
};

use rustc_hash::FxHashMap;

use super::names::Position;

/// Each task once, however often it asks: with the first of the positions that it waits for.
#[derive(Default)]
pub(super) struct Wakers(Mutex<FxHashMap<Task, (Position, Waker)>>);

/// What two wakers that wake the same task have in common: see [`Waker::will_wake`].
type Task = (usize, usize);

fn task_of(waker: &Waker) -> Task {
    (waker.data() as usize, waker.vtable() as *const RawWakerVTable as usize)
}

impl Wakers {
    /// Keeps a waker; wakes it at once if `has_come` says that the log is there. It is asked under the lock, and
    /// [`wake_until`](Self::wake_until) takes that lock after the log has moved on: nobody sleeps through it.
    pub(super) fn add(&self, position: Position, waker: &Waker, has_come: impl FnOnce() -> bool) {
        let mut wakers = self.lock();
        if has_come() {
            drop(wakers);
            waker.wake_by_ref();
        } else {
            let (first, _) = wakers.entry(task_of(waker)).or_insert_with(|| (position, waker.clone()));
            *first = position.min(*first);
        }
    }

    pub(super) fn wake_until(&self, durable: Position, woken: &mut Vec<Waker>) {
        let mut wakers = self.lock();
        woken.extend(wakers.extract_if(|_, (position, _)| *position <= durable).map(|(_, (_, waker))| waker));
        drop(wakers);
        woken.drain(..).for_each(Waker::wake);
    }

    pub(super) fn wake_all(&self) {
        let wakers = mem::take(&mut *self.lock());
        wakers.into_values().for_each(|(_, waker)| waker.wake());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Task, (Position, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
