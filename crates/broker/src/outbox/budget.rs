use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all queues together may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    maximum: usize,
    /// Written by whoever moves messages into or out of a queue, read before a message goes in. Relaxed: it
    /// guards no other memory, and a race lets at most one message per thread too many in.
    used: AtomicUsize,
    /// Messages in all queues: written once per batch. Relaxed, and wrong for moments only.
    messages: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(maximum: usize) -> Self {
        Self { maximum, used: AtomicUsize::new(0), messages: AtomicUsize::new(0) }
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.maximum
    }

    /// As [`Budget::has_room`] for a queue that nobody reads: such queues leave a quarter to those that are read.
    pub(crate) fn has_room_for_absent(&self, bytes: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(bytes) <= self.maximum / 4 * 3
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// A queue has grown or shrunk.
    pub(crate) fn count_messages(&self, before: usize, after: usize) {
        if before != after {
            self.messages.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Messages in all queues.
    pub(crate) fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    /// Bytes in all queues.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}
