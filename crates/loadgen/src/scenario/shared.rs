use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ledger::{Ledger, LedgerTotals, Receipt};

/// State that publisher, workers and watcher of a run share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Messages sent and taken.
    ///
    /// The publisher enters a message before sending it, a worker when it has finished it. That happens a few hundred
    /// times a second, so that a lock is cheap enough.
    ledger: Mutex<Ledger>,
    /// Messages of other programs, counted by the workers.
    foreign: AtomicU64,
    /// Reasons why workers' connections ended.
    ends: Mutex<Vec<String>>,
    /// Set once, by the watcher. Guards no other memory: relaxed.
    stopped: AtomicBool,
}

impl Shared {
    /// Enters a published message; returns its sequence number.
    pub(super) fn publish(&self) -> u64 {
        self.ledger().publish()
    }

    /// Enters an arrival.
    pub(super) fn receive(&self, sequence: u64) -> Receipt {
        self.ledger().receive(sequence)
    }

    /// Enters the arrival of a foreign message.
    pub(super) fn receive_foreign(&self) {
        self.foreign.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> LedgerTotals {
        let mut totals = self.ledger().totals();
        totals.unknown += self.foreign.load(Ordering::Relaxed);
        totals
    }

    /// Enters why a worker's connection ended.
    pub(super) fn connection_ended(&self, reason: String) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).push(reason);
    }

    /// Reason of the first connection that ended.
    pub(super) fn first_end(&self) -> Option<String> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }

    /// Asks all participants to end.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops a run when its watcher is dropped, as after an interrupt.
pub(super) struct StopOnDrop<'a>(pub(super) &'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
