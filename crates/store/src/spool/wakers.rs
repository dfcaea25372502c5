//! Tasks to wake once the log reaches a position.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{RawWakerVTable, Waker},
};

use rustc_hash::FxHashMap;

use super::names::Position;

/// One waker for each task, however often it registers, with the earliest of its positions.
#[derive(Default)]
pub(super) struct Wakers(Mutex<FxHashMap<Task, (Position, Waker)>>);

/// Identity of a task, equal for wakers that wake the same one: see [`Waker::will_wake`].
type Task = (usize, usize);

fn task_of(waker: &Waker) -> Task {
    (waker.data() as usize, waker.vtable() as *const RawWakerVTable as usize)
}

impl Wakers {
    /// Keeps a waker, or wakes it at once if `has_come` is true.
    ///
    /// `has_come` runs under the lock. The committer calls [`wake_until`](Self::wake_until), which takes that lock,
    /// after it has advanced the log. So no wake-up is lost.
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
