use std::collections::VecDeque;

use tenbin_session::Delivery;

use super::buffer_pool::BufferPool;

/// One FIFO and its size in bytes.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) deliveries: VecDeque<Numbered>,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) delivery: Delivery,
}

impl Lane {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Delivery> + Clone {
        self.deliveries.iter().map(|numbered| &numbered.delivery)
    }

    pub(super) fn front_number(&self) -> Option<u64> {
        self.deliveries.front().map(|front| front.number)
    }

    pub(super) fn back_number(&self) -> Option<u64> {
        self.deliveries.back().map(|back| back.number)
    }

    /// Whether the front message's number is at most `number`.
    #[inline]
    pub(super) fn is_due(&self, number: u64) -> bool {
        self.deliveries.front().is_some_and(|front| front.number <= number)
    }

    pub(super) fn push_back(&mut self, numbered: Numbered) {
        self.bytes += numbered.delivery.queued_bytes();
        if self.deliveries.len() == self.deliveries.capacity() {
            self.grow();
        }
        self.deliveries.push_back(numbered);
    }

    pub(super) fn push_front(&mut self, delivery: Delivery) {
        self.bytes += delivery.queued_bytes();
        // Equal numbers are fine: a message that was put back is the oldest of its lane.
        let number = self.front_number().map_or(0, |front| front.saturating_sub(1));
        self.deliveries.push_front(Numbered { number, delivery });
    }

    /// Moves the front message to `into`; returns its bytes, 0 if there is none.
    pub(super) fn take_front(&mut self, into: &mut Vec<Delivery>) -> usize {
        let Some(Numbered { delivery, .. }) = self.deliveries.pop_front() else { return 0 };
        let bytes = delivery.queued_bytes();
        self.bytes -= bytes;
        into.push(delivery);
        bytes
    }

    pub(super) fn pop_front(&mut self) -> Option<Delivery> {
        let Numbered { delivery, .. } = self.deliveries.pop_front()?;
        self.bytes -= delivery.queued_bytes();
        Some(delivery)
    }

    pub(super) fn remove_where(&mut self, wanted: impl Fn(&Numbered) -> bool) -> VecDeque<Numbered> {
        if !self.deliveries.iter().any(&wanted) {
            return VecDeque::new();
        }
        let (removed, kept): (VecDeque<_>, _) = self.deliveries.drain(..).partition(wanted);
        self.deliveries = kept;
        self.bytes -= removed.iter().map(|numbered| numbered.delivery.queued_bytes()).sum::<usize>();
        removed
    }

    /// Reuses the buffer of an earlier burst, if there is one: it is warm, and saves growing step by step.
    #[cold]
    fn grow(&mut self) {
        let spare = POOL.with(BufferPool::take).filter(|spare| spare.capacity() > self.deliveries.capacity());
        if let Some(mut spare) = spare {
            spare.append(&mut self.deliveries);
            self.deliveries = spare;
        }
    }

    /// Gives the buffer of a finished burst to the pool, or frees it.
    pub(super) fn shrink(&mut self) {
        if self.deliveries.is_empty() && self.deliveries.capacity() > KEPT_CAPACITY {
            let burst = std::mem::take(&mut self.deliveries);
            if burst.capacity() <= SPARE_CAPACITY_MAX {
                POOL.with(|buffers| buffers.give(burst));
            }
        }
    }
}

thread_local! {
    /// Pool of empty lanes' buffers.
    static POOL: BufferPool<VecDeque<Numbered>> = const { BufferPool::new() };
}

/// Maximum capacity of a pooled buffer, in messages.
const SPARE_CAPACITY_MAX: usize = 2048;
/// Capacity that an empty queue keeps, in messages.
const KEPT_CAPACITY: usize = 256;
