use std::time::{Duration, SystemTime};

/// Whether changes become durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// They do.
    Writing,
    /// They do not: the disk is full, read-only, or fails. They are kept in memory and tried again.
    Failed {
        /// Of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
}

/// Figures of a state; counts begin when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Changes that were made.
    pub changes: u64,
    /// Keys that were written: of several changes of one key within a batch the last one is.
    pub written: u64,
    /// Batches that are durable.
    pub commits: u64,
    /// Batches that failed, each time that they did.
    pub failures: u64,
    /// Time that batches took which did not fail.
    pub commit_time: Duration,
    /// Bytes that are only in memory.
    pub pending_bytes: usize,
}
