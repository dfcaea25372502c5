//! Limits of one backlog, and the formulas that compare it with them.

use super::{Budget, Entries, Head, Reader, Usage};
use crate::values::{Bound, WhenFull};

/// Limits of one backlog.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Messages in memory.
    pub(crate) messages: usize,
    /// Bytes in memory.
    pub(crate) bytes: usize,
    pub(crate) when_full: WhenFull,
    /// Bytes on disk.
    pub(crate) stored_bytes: u64,
    /// Whether slow receivers' messages can spill to disk.
    pub(crate) has_store: bool,
}

impl Limits {
    /// Whether a queue may grow to `usage`. `settled`: its usage that the budget knows of.
    #[inline]
    pub(super) fn permit(&self, usage: Usage, settled: Usage, reader: Reader, budget: &Budget) -> bool {
        // A connected client always gets a little, even if other queues use up the budget.
        let is_little = reader == Reader::Present && usage.bytes <= FLOOR_BYTES;
        let in_budget = is_little || budget.has_room(reader, settled, usage.bytes);
        in_budget && usage.messages <= self.messages && usage.bytes <= self.bytes
    }

    /// Whether seven eighths of a bound in memory are used: share groups should prefer other members.
    pub(crate) fn is_nearly_full(&self, head: &Head) -> bool {
        head.len() > self.messages / 8 * 7 || head.bytes() > self.bytes / 8 * 7
    }

    /// Whether half of both bounds in memory is free, so that share groups may choose a receiver again that was full.
    ///
    /// The distance to [`Limits::is_nearly_full`] keeps its availability from flapping.
    pub(crate) fn has_room_again(&self, head: &Head) -> bool {
        head.len() <= self.messages / 2 && head.bytes() <= self.bytes / 2
    }

    /// Whether memory has no room for another QoS 1 or 2 message. By bytes, that is so a little early: the size of the
    /// next message is unknown.
    pub(crate) fn memory_is_over(&self, usage: Usage) -> bool {
        let Usage { bytes, messages } = self.memory();
        usage.messages >= messages || usage.bytes > bytes
    }

    /// Usage of memory at which it has no room for another message.
    pub(crate) fn memory(&self) -> Usage {
        Usage { bytes: self.bytes / 8 * 7, messages: self.messages }
    }

    /// Whether the disk, or the account that pays for the entries, has no room for another message. A backlog without
    /// messages there is within any limit, even zero.
    pub(crate) fn disk_is_over(&self, entries: &Entries) -> bool {
        self.disk_bound(entries).is_some()
    }

    fn disk_bound(&self, entries: &Entries) -> Option<Bound> {
        let bytes = entries.disk_bytes();
        let is_over = bytes > 0 && bytes >= self.stored_bytes;
        if is_over { Some(Bound::StoredQueueBytes) } else { entries.over_limit() }
    }

    /// The bound by which a QoS 1 or 2 message has no room; `is_stored`: the backlog can go to disk.
    pub(crate) fn full_bound<'a>(
        &self,
        usage: Usage,
        entries: impl IntoIterator<Item = &'a Entries>,
        is_stored: bool,
    ) -> Bound {
        let on_disk = entries.into_iter().find_map(|entries| self.disk_bound(entries));
        let of_memory = || if is_stored { Bound::StoreBytes } else { self.memory_bound(usage, self.bytes / 8) };
        on_disk.unwrap_or_else(of_memory)
    }

    /// The bound by which `bytes` more have no room in memory.
    pub(crate) fn memory_bound(&self, usage: Usage, bytes: usize) -> Bound {
        if usage.messages >= self.messages {
            Bound::QueueMessages
        } else if usage.bytes + bytes > self.bytes {
            Bound::QueueBytes
        } else {
            Bound::QueuesTotal
        }
    }
}

/// Bytes that a connected client's queue may hold even if the budget is used up.
const FLOOR_BYTES: usize = 64 * 1024;
