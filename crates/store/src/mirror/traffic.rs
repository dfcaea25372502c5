//! Counters of the operations that a leader sends to its copy, and of the waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one connection to a copy, from copy to copy. Relaxed: they are figures.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    operations: AtomicU64,
    bytes: AtomicU64,
    /// Waits by upper bound; the last one has no bound.
    waits: [AtomicU64; WAIT_BOUNDS.len() + 1],
    wait_nanos: AtomicU64,
}

/// Figures of one connection to a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// Operations sent.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Commits that had to have the copy's confirmation, by how long they waited for it after their own disk had them:
    /// the upper bounds are [`WAIT_BOUNDS`], and the last number is that of longer waits.
    pub waits: [u64; WAIT_BOUNDS.len() + 1],
    /// Sum of these waits.
    pub waited: Duration,
}

/// Upper bounds of waits for a copy.
pub const WAIT_BOUNDS: [Duration; 12] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

impl Traffic {
    pub(super) fn sent_operation(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sent_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a commit that has waited for the copy.
    pub(super) fn waited(&self, time: Duration) {
        let at = WAIT_BOUNDS.partition_point(|bound| *bound < time);
        self.waits[at].fetch_add(1, Ordering::Relaxed);
        self.wait_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> TrafficStats {
        TrafficStats {
            operations: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            waits: self.waits.each_ref().map(|count| count.load(Ordering::Relaxed)),
            waited: Duration::from_nanos(self.wait_nanos.load(Ordering::Relaxed)),
        }
    }
}
