//! Calls of the leader's own disk that are under way: a disk that hangs fails none of them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Beginnings of the calls that are under way.
#[derive(Debug, Default)]
pub(super) struct DiskCalls(Mutex<Vec<Instant>>);

impl DiskCalls {
    /// Performs a call.
    pub(super) fn perform<T>(&self, call: impl FnOnce() -> T) -> T {
        let _ends = Begun::new(self);
        call()
    }

    /// How long the oldest call has been under way; `None` = none is.
    pub(super) fn longest(&self) -> Option<Duration> {
        self.begun().iter().min().map(Instant::elapsed)
    }

    fn begun(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes the end of a call, also by a panic.
struct Begun<'c>(&'c DiskCalls, Instant);

impl<'c> Begun<'c> {
    fn new(calls: &'c DiskCalls) -> Self {
        let now = Instant::now();
        calls.begun().push(now);
        Self(calls, now)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut begun = self.0.begun();
        // Calls that began at the same moment are alike.
        if let Some(at) = begun.iter().position(|began| *began == self.1) {
            begun.swap_remove(at);
        }
    }
}
