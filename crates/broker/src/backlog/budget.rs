use std::sync::atomic::{AtomicUsize, Ordering};

use super::Reader;

/// Bound on the bytes of all queues together, and the current totals.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Limit in bytes.
    maximum: usize,
    /// Bytes in all queues, except for small batches that go out at once. Written once a batch by the task that moves
    /// messages into or out of a queue, read before a message goes in. Relaxed: it guards no other memory. Omissions
    /// and races amount to a few KiB for each connected client, less than the floor that each may use anyway.
    used: AtomicUsize,
    /// Messages in all queues, written like `used`. Relaxed: briefly inaccurate at most.
    messages: AtomicUsize,
}

/// Usage of one queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

impl Budget {
    pub(crate) fn new(maximum: usize) -> Self {
        Self { maximum, used: AtomicUsize::new(0), messages: AtomicUsize::new(0) }
    }

    /// Whether a queue with reported usage `counted` may hold `bytes`. Queues without connection leave a quarter of the
    /// budget to connected clients.
    pub(crate) fn has_room(&self, reader: Reader, counted: Usage, bytes: usize) -> bool {
        let maximum = match reader {
            Reader::Present => self.maximum,
            Reader::Absent => self.maximum / 4 * 3,
        };
        self.used().saturating_sub(counted.bytes).saturating_add(bytes) <= maximum
    }

    /// Reports that a queue has grown or shrunk.
    pub(crate) fn change(&self, before: Usage, after: Usage) {
        if before.bytes != after.bytes {
            self.used.fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        }
        if before.messages != after.messages {
            self.messages.fetch_add(after.messages.wrapping_sub(before.messages), Ordering::Relaxed);
        }
    }

    /// Number of messages in all queues.
    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    /// Bytes that the budget has left.
    pub(crate) fn free(&self) -> usize {
        self.maximum.saturating_sub(self.used())
    }

    /// Bytes in all queues.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}
