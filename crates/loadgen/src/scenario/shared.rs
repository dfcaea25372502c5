use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ledger::{Ledger, LedgerTotals, Receipt};

/// What the publisher, the workers and the one who watches them share in a run.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Entered by the publisher before a message leaves, by a worker when it takes one. A few hundred times a
    /// second, so that a lock is no hindrance.
    ledger: Mutex<Ledger>,
    /// Messages of somebody else, counted by the workers.
    foreign: AtomicU64,
    /// Why workers' connections ended.
    ends: Mutex<Vec<String>>,
    /// Set once, by the watcher. Guards no other memory: relaxed.
    stopped: AtomicBool,
}

impl Shared {
    /// Enters one more published message; returns its sequence number.
    pub(super) fn publish(&self) -> u64 {
        self.ledger().publish()
    }

    /// Enters an arrival.
    pub(super) fn receive(&self, sequence: u64) -> Receipt {
        self.ledger().receive(sequence)
    }

    /// Enters an arrival that is none of ours.
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

    /// Why the first connection ended that did.
    pub(super) fn first_end(&self) -> Option<String> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }

    /// Asks everybody to come to an end.
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

/// Stops a run when its watcher is gone, as after an interrupt.
pub(super) struct StopOnDrop<'a>(pub(super) &'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
