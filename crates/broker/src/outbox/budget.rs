use std::sync::atomic::{AtomicUsize, Ordering};

/// What all queues together may hold, and what they do hold.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes.
    maximum: usize,
    /// Bytes in all queues, but for small batches that go out at once. Written once per batch by whoever moves messages
    /// into or out of a queue, read before a message goes in. Relaxed: it guards no other memory. What is left out, and what
    /// a race lets in, is a few KiB for each connected client: less than each of them may have whatever the budget says.
    used: AtomicUsize,
    /// Messages in all queues, written as `used`. Relaxed, and wrong for moments only.
    messages: AtomicUsize,
}

/// What one queue holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

impl Budget {
    pub(crate) fn new(maximum: usize) -> Self {
        Self { maximum, used: AtomicUsize::new(0), messages: AtomicUsize::new(0) }
    }

    /// Whether a queue that `counted` is known of may hold `bytes`.
    pub(super) fn has_room(&self, counted: Usage, bytes: usize) -> bool {
        self.used_beside(counted).saturating_add(bytes) <= self.maximum
    }

    /// As [`Budget::has_room`] for a queue that nobody reads: such queues leave a quarter to those that are read.
    pub(super) fn has_room_for_absent(&self, counted: Usage, bytes: usize) -> bool {
        self.used_beside(counted).saturating_add(bytes) <= self.maximum / 4 * 3
    }

    /// A queue has grown or shrunk.
    pub(super) fn change(&self, before: Usage, after: Usage) {
        if before.bytes != after.bytes {
            self.used.fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        }
        if before.messages != after.messages {
            self.messages.fetch_add(after.messages.wrapping_sub(before.messages), Ordering::Relaxed);
        }
    }

    /// Messages in all queues.
    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    /// Bytes that all queues together have left.
    pub(crate) fn free(&self) -> usize {
        self.maximum.saturating_sub(self.used())
    }

    /// Bytes in all queues.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn used_beside(&self, counted: Usage) -> usize {
        self.used().saturating_sub(counted.bytes)
    }
}
