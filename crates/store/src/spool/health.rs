//! Health and statistics of a spool.

use std::time::{Duration, SystemTime};

/// Whether appended records become durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// Writing works.
    Writing,
    /// Writing fails: the disk is full, read-only or broken. Records stay in memory and are retried every few seconds.
    ///
    /// Reading still works.
    Failed {
        /// File and error of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
    /// Writing works while the space made ahead lasts: the disk is full, nearly full, or refuses new files.
    ///
    /// Callers should slow their intake, but go on to acknowledge, which lets space be reclaimed.
    /// [`Spool::is_congested`](super::Spool::is_congested) is true in this state.
    NoRoom {
        /// File and error of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
    /// Writing works, but a written record is damaged or unreadable, so no space is reclaimed from there on.
    ///
    /// The content in memory is right, but opening the spool again will fail. Ends when the segment is not needed any
    /// more, or is readable again.
    Damaged {
        /// File and offset.
        error: String,
    },
}

/// Formats a size for people.
pub(super) fn bytes_in_words(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// Statistics of a spool; counters start at its opening.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Appended messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub message_bytes: u64,
    /// Acknowledged messages, counted for each queue.
    pub acknowledged: u64,
    /// Successful commits.
    pub commits: u64,
    /// Written bytes, including headers and metadata.
    pub written_bytes: u64,
    /// The part of them that was copied to reclaim old segments.
    pub copied_bytes: u64,
    /// Total duration of `fdatasync`.
    pub sync_time: Duration,
    /// Failed writes and syncs.
    pub failures: u64,
    /// Present number of segments.
    pub segments: usize,
    /// Bytes of all their records.
    pub log_bytes: u64,
    /// Estimated living part, if all messages of a segment are of one size.
    pub live_bytes: u64,
    /// Bytes that are only in memory.
    pub pending_bytes: usize,
    /// Queues that have or had messages.
    pub queues: usize,
    /// Queued messages; a message in several queues counts once for each.
    pub waiting: u64,
}
