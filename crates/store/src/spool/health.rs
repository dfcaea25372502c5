//! How a spool is, in words and figures.

use std::time::{Duration, SystemTime};

/// Whether what is appended becomes durable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It does.
    Writing,
    /// It does not: the disk is full, read-only, or fails. Everything that was appended is kept in memory and is tried
    /// again every few seconds. Reading goes on.
    Failed {
        /// File and error of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
    /// It does, as long as what was made ahead has room: the disk is full, or nearly, or refuses new files. Less should be
    /// taken in, while what gives space back still can be written: acknowledgements. Until then
    /// [`Spool::is_congested`](super::Spool::is_congested) says so too.
    NoRoom {
        /// File and error of the last attempt.
        error: String,
        /// When the first attempt failed.
        since: SystemTime,
    },
    /// It does, but a record that was written is damaged or cannot be read, so that no space is given back from there
    /// on. What is in memory of it is right; opening the spool again will be refused. It is over when nothing of that
    /// segment is needed any more, or it can be read again.
    Damaged {
        /// File and offset.
        error: String,
    },
}

/// A size for people.
pub(super) fn bytes_in_words(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// Figures of a spool; counts begin when it was opened.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Messages that were appended.
    pub messages: u64,
    /// Bytes of their bodies.
    pub message_bytes: u64,
    /// Messages that were acknowledged, each for each queue.
    pub acknowledged: u64,
    /// Writes that were confirmed together.
    pub commits: u64,
    /// Bytes that were written, records and all.
    pub written_bytes: u64,
    /// Of these, bytes that were copied so that old segments could go.
    pub copied_bytes: u64,
    /// Time that the disk took to confirm.
    pub sync_time: Duration,
    /// Writes and confirmations that failed.
    pub failures: u64,
    /// Segments now.
    pub segments: usize,
    /// Bytes of all their records.
    pub log_bytes: u64,
    /// Of these, about so many are needed; it is taken that all messages of a segment are of one size.
    pub live_bytes: u64,
    /// Bytes that are only in memory.
    pub pending_bytes: usize,
    /// Queues that have or had messages.
    pub queues: usize,
    /// Messages that wait; one that is in several queues counts for each.
    pub waiting: u64,
}
