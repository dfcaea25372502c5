use std::time::{Duration, SystemTime};

/// Whether changes become durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Writing works.
    Writing,
    /// Writing fails: the disk is full, read-only or broken. Changes stay in memory and are retried.
    Failed {
        /// Error of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
}

/// Statistics of a state; counters start at its opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of changes.
    pub changes: u64,
    /// Keys written. Several changes of one key within a batch count as one.
    pub written: u64,
    /// Durable batches.
    pub commits: u64,
    /// Failed attempts to write a batch.
    pub failures: u64,
    /// Total duration of successful commits.
    pub commit_time: Duration,
    /// Bytes that are only in memory.
    pub pending_bytes: usize,
}
