use std::sync::atomic::{AtomicU64, Ordering};

/// Number of messages that a member of a share group has received into its queue since it joined.
///
/// Written only under the lock of the member's outbox, once for consecutive messages of a group in a batch; read by any
/// thread. Relaxed: the counter guards no other memory.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Adds to the count. The caller holds the lock, so no update is lost between load and store.
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
