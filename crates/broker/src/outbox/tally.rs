use std::sync::atomic::{AtomicU64, Ordering};

/// Messages that a member of a share group has got into its queue, since it joined.
///
/// Written under the lock of the member's outbox alone, once for the messages of a group that follow each other in a
/// batch; read by anybody. Relaxed: it is a count of its own.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// To be called under the lock, which is why nothing is lost between the two steps.
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
