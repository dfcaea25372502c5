//! The in-memory head of a group backlog.

use std::time::Instant;

use tenbin_balancer::FairQueue;
use tenbin_session::Delivery;

use super::budget::Usage;
use super::head::{HEAD_BYTES, Reader};
use super::{Budget, Limits};

/// The in-memory head of a group backlog: messages of QoS 1 and 2 in flows, which take turns.
///
/// Its owner reports other changes than [`FairHead::pop`] to the budget with [`FairHead::settle`].
#[derive(Debug, Default)]
pub(crate) struct FairHead {
    queue: FairQueue<Numbered>,
    /// Number of the next message.
    next_number: u64,
    /// Number of the message taken last.
    taken: u64,
    usage: Usage,
    /// Earliest expiry among the messages that are not stored, or earlier.
    first_expiry: Option<Instant>,
    /// Usage that the budget knows of.
    settled: Usage,
}

/// Bytes of memory by which the allocations of a message exceed its size, measured with many short backlogs.
const ALLOCATIONS_BYTES: usize = 96;

/// A message with its number in the order of arrival.
#[derive(Debug)]
struct Numbered {
    number: u64,
    delivery: Delivery,
}

impl FairHead {
    pub(crate) fn len(&self) -> usize {
        self.usage.messages
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Whether the queue is shorter than the in-memory head may be.
    pub(crate) fn is_short(&self) -> bool {
        self.usage.bytes < HEAD_BYTES
    }

    /// All messages, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.queue.iter().map(|numbered| &numbered.delivery)
    }

    /// All messages, each with its number, in any order.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u64, &Delivery)> {
        self.queue.iter().map(|numbered| (numbered.number, &numbered.delivery))
    }

    /// Returns the number of the next message, see [`remove_where`](Self::remove_where).
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Whether `delivery` fits. No connection drains the queue.
    pub(crate) fn fits(&self, delivery: &Delivery, limits: &Limits, budget: &Budget) -> bool {
        let Usage { bytes, messages } = self.usage;
        let usage = Usage { bytes: bytes + delivery.queued_bytes(), messages: messages + 1 };
        limits.permit(usage, self.settled, Reader::Absent, budget)
    }

    /// Adds a message behind the others of its flow. It must own its memory, or share it with the messages around it.
    pub(crate) fn append(&mut self, delivery: Delivery, flow: u64) {
        let numbered = self.number(delivery);
        self.queue.push(flow, numbered);
    }

    /// Puts the message back that was taken last, see [`FairQueue::put_back`].
    pub(crate) fn put_back(&mut self, delivery: Delivery) {
        self.added(&delivery);
        self.queue.put_back(Numbered { number: self.taken, delivery });
    }

    /// Adds a message that is older than all others, although its number is the highest: its age is unknown.
    pub(crate) fn push_front(&mut self, delivery: Delivery) {
        let numbered = self.number(delivery);
        self.queue.push_front(numbered);
    }

    /// Takes the next message. The budget learns of it at once, as the message goes to another queue.
    pub(crate) fn pop(&mut self, budget: &Budget) -> Option<Delivery> {
        let Numbered { number, delivery } = self.queue.pop()?;
        self.taken = number;
        self.removed(&delivery);
        self.settle(budget);
        Some(delivery)
    }

    /// Assigns the messages to flows anew, see [`FairQueue::regroup`].
    pub(crate) fn regroup(&mut self, flow: impl Fn(&Delivery) -> u64) {
        self.queue.regroup(|numbered| flow(&numbered.delivery));
    }

    /// Drops expired messages to make room, `[MQTT-3.3.2-5]`, and returns their number. Stored ones stay until their
    /// turn, since the log needs an update then.
    pub(crate) fn drop_expired(&mut self, now: Instant) -> u64 {
        if self.first_expiry.is_none_or(|first| first > now) {
            return 0;
        }
        let dropped = self.remove_where(|_, delivery| delivery.stored.is_none() && delivery.is_expired(now));
        let not_stored = self.iter().filter(|delivery| delivery.stored.is_none());
        self.first_expiry = not_stored.filter_map(|delivery| delivery.expires_at).min();
        dropped.len() as u64
    }

    /// Removes the messages for which `is_removed` holds, by number and message.
    pub(crate) fn remove_where(&mut self, is_removed: impl Fn(u64, &Delivery) -> bool) -> Vec<Delivery> {
        let removed = self.queue.remove_where(|numbered| is_removed(numbered.number, &numbered.delivery));
        let removed: Vec<_> = removed.into_iter().map(|numbered| numbered.delivery).collect();
        removed.iter().for_each(|delivery| self.removed(delivery));
        removed
    }

    /// Drops all messages, and returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = self.len() as u64;
        (self.queue, self.usage, self.first_expiry) = (FairQueue::new(), Usage::default(), None);
        dropped
    }

    /// Reports changes since the last call to the budget.
    pub(crate) fn settle(&mut self, budget: &Budget) {
        let usage = Usage { bytes: self.memory_bytes(), ..self.usage };
        budget.change(self.settled, usage);
        self.settled = usage;
    }

    /// Bytes of memory of the messages, the queue itself and the allocator's overhead.
    fn memory_bytes(&self) -> usize {
        match self.usage.messages {
            0 => 0,
            messages => {
                let of_queue = self.queue.bytes().saturating_sub(messages * size_of::<Delivery>());
                self.usage.bytes + of_queue + messages * ALLOCATIONS_BYTES
            }
        }
    }

    fn number(&mut self, delivery: Delivery) -> Numbered {
        self.added(&delivery);
        self.next_number += 1;
        Numbered { number: self.next_number - 1, delivery }
    }

    fn added(&mut self, delivery: &Delivery) {
        self.usage.bytes += delivery.queued_bytes();
        self.usage.messages += 1;
        if let Some(at) = delivery.expires_at.filter(|_| delivery.stored.is_none()) {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
    }

    fn removed(&mut self, delivery: &Delivery) {
        self.usage.bytes -= delivery.queued_bytes();
        self.usage.messages -= 1;
    }
}
