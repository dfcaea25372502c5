use std::sync::atomic::{AtomicU64, Ordering};

/// A client's share in a group: the number of messages that it has received into its queue since it joined, and whether it
/// knows of the group's backlog.
///
/// Written only under the lock of the member's outbox, so no update is lost between load and store. Read by any thread.
/// Relaxed: it guards no other memory, and the group orders its look at the backlog's bit with a fence.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

/// Lowest bit: the client knows of the group's backlog. The count stands above it.
const KNOWS_BACKLOG: u64 = 1;

impl Tally {
    /// Adds to the count, once for consecutive messages of a group in a batch.
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + (count << 1), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> 1
    }

    pub(crate) fn knows_backlog(&self) -> bool {
        self.0.load(Ordering::Relaxed) & KNOWS_BACKLOG != 0
    }

    /// Returns whether the client did not know of it.
    pub(super) fn note_backlog(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word | KNOWS_BACKLOG, Ordering::Relaxed);
        word & KNOWS_BACKLOG == 0
    }

    pub(super) fn forget_backlog(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !KNOWS_BACKLOG, Ordering::Relaxed);
    }
}
