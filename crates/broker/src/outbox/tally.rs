use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A client's share in a group: the number of messages that it has received into its queue since it joined, and whether it
/// knows of the group's backlog.
///
/// Relaxed: neither guards other memory.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Written only under the lock of the member's outbox, once for consecutive messages of a group in a batch; read by
    /// any thread.
    given: AtomicU64,
    /// Written only under the lock of the member's outbox; read by the group, which orders it with a fence.
    knows_backlog: AtomicBool,
}

impl Tally {
    /// Adds to the count. The caller holds the lock, so no update is lost between load and store.
    pub(super) fn add(&self, count: u64) {
        self.given.store(self.given.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    pub(crate) fn knows_backlog(&self) -> bool {
        self.knows_backlog.load(Ordering::Relaxed)
    }

    /// Returns whether the client did not know of it.
    pub(super) fn note_backlog(&self) -> bool {
        !self.knows_backlog.swap(true, Ordering::Relaxed)
    }

    pub(super) fn forget_backlog(&self) {
        self.knows_backlog.store(false, Ordering::Relaxed);
    }
}
