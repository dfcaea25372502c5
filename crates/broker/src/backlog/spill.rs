//! The on-disk end of a backlog.

use std::ops::Range;
use std::time::Instant;

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::{DiskWork, Entries, NextPage, Refill, Refilled};
use crate::durable::{Location, Page, StoredQueue};

/// The on-disk end of a backlog: messages that are on disk only, behind the in-memory head.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    pub(crate) entries: Entries,
    pub(crate) refill: Refill,
    /// Messages of `entries` that are not in the log yet. None is read until all are.
    placing: usize,
    /// Offsets below `entries`, reserved for messages that were in memory when the spill began. Void once a page was
    /// read, since memory then has messages from here.
    reserved: Range<u64>,
}

impl Spill {
    /// Whether new messages have to join it: it has messages, or a page is being read.
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        !self.entries.is_empty() || self.refill.is_reading()
    }

    /// Whether it has nothing more to do.
    pub(crate) fn is_gone(&self) -> bool {
        !self.holds_back() && self.placing == 0
    }

    /// Begins for want of room in memory, whose messages are older: should they spill later, they need lower offsets.
    pub(crate) fn begin(&mut self, queue: &StoredQueue, in_memory: usize) {
        self.reserved = queue.leave_room(in_memory);
    }

    /// Adds a message that is on disk at this offset.
    pub(crate) fn add(&mut self, sequence: Sequence, delivery: &Delivery) {
        self.entries.add(sequence, delivery.template.whole_len());
    }

    /// Adds a message at a new offset. Its disk space must be booked.
    pub(crate) fn place(&mut self, sequence: Sequence, delivery: &mut Delivery, work: &mut DiskWork) {
        delivery.stored = Some(Location::Transient(sequence.0).to_stored());
        self.add(sequence, delivery);
        self.placing += 1;
        self.refill.cancel(); // the page being read would skip it
        work.placed.push(delivery.clone());
    }

    /// Whether there are offsets for this number of messages that leave memory and have none.
    pub(crate) fn has_offsets_for(&self, messages: usize) -> bool {
        !self.holds_back() || self.reserved.end - self.reserved.start >= messages as u64
    }

    /// Adds messages that leave memory, which are older than all others here. Those that are on disk keep their offset,
    /// the others get one: see [`Spill::has_offsets_for`].
    pub(crate) fn place_older(&mut self, queue: &StoredQueue, deliveries: &mut [Delivery], work: &mut DiskWork) {
        let count = deliveries.iter().filter(|delivery| delivery.stored.is_none()).count();
        let reserved = std::mem::take(&mut self.reserved);
        let mut offsets = if self.holds_back() { reserved } else { queue.leave_room(count) };
        self.refill.cancel(); // the page being read lies behind these
        for delivery in deliveries {
            if let Some(Location::Own(sequence)) = delivery.location() {
                self.add(Sequence(sequence), delivery);
            } else if let Some(offset) = offsets.next() {
                self.place(Sequence(offset), delivery, work);
            } else {
                debug_assert!(false, "as many offsets as messages without");
            }
        }
    }

    /// Takes note that messages of [`Spill::place`] are in the log.
    pub(crate) fn written(&mut self, messages: usize) {
        self.placing = self.placing.saturating_sub(messages);
    }

    /// Begins to read the first page. No other page is read until [`Refill::finish`] or [`Refill::cancel`].
    pub(crate) fn next_page(&mut self, queue: &StoredQueue, bytes: usize, now: Instant) -> NextPage {
        if self.placing > 0 { NextPage::None } else { self.refill.begin(&self.entries, queue, bytes, now) }
    }

    /// Takes a page that was read: see [`Refill::finish`].
    pub(crate) fn refill(&mut self, page: Page, now: Instant, put: impl FnMut(Delivery)) -> Option<Refilled> {
        let refilled = self.refill.finish(&mut self.entries, page, now, put)?;
        self.reserved = 0..0;
        Some(refilled)
    }

    /// Drops all messages, and makes a page that is being read void.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.refill.reset();
        self.placing = 0; // no later call will count it down
    }
}
