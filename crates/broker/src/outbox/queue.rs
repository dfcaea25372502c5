use std::collections::VecDeque;

use tenbin_session::Delivery;

use super::{Budget, OutboxLimits, WhenFull};

/// Two FIFOs that are emptied as one, by number: QoS 0 must go on when the send quota holds QoS 1 and 2 back
/// `[MQTT-4.9.0-3]`.
#[derive(Debug, Default)]
pub(super) struct Queue {
    unacknowledged: VecDeque<Numbered>,
    acknowledged: VecDeque<Numbered>,
    next_number: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    delivery: Delivery,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.unacknowledged.len() + self.acknowledged.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a receiver that was full may be given new work: half of both bounds is free, so that it does not
    /// flutter.
    pub(super) fn has_room(&self, limits: &OutboxLimits) -> bool {
        self.len() <= limits.messages / 2 && self.bytes <= limits.bytes / 2
    }

    /// Messages that were dropped for want of room: `delivery` or older ones.
    pub(super) fn push(&mut self, delivery: Delivery, limits: &OutboxLimits, budget: &Budget) -> u64 {
        let bytes = delivery.queued_bytes();
        let mut dropped = 0;
        while !self.fits(bytes, limits, budget) {
            let evict = !delivery.qos.is_acknowledged() && limits.when_full == WhenFull::DropOldest;
            let oldest = if evict { self.unacknowledged.pop_front() } else { None };
            dropped += 1;
            match oldest {
                Some(oldest) => self.account_out(&oldest.delivery, budget),
                None => return dropped,
            }
        }
        // A receiver that lags keeps what waits for it long: a slice of a read buffer would keep all of it.
        let delivery = if self.bytes > DETACH_FROM_BYTES { delivery.detach() } else { delivery };
        self.bytes += bytes;
        budget.take(bytes);
        let numbered = Numbered { number: self.next_number, delivery };
        self.next_number += 1;
        if numbered.delivery.qos.is_acknowledged() {
            self.acknowledged.push_back(numbered);
        } else {
            self.unacknowledged.push_back(numbered);
        }
        dropped
    }

    /// In front of everything: only for what was taken just before.
    pub(super) fn push_front(&mut self, delivery: Delivery, budget: &Budget) {
        let bytes = delivery.queued_bytes();
        self.bytes += bytes;
        budget.take(bytes);
        let queue = if delivery.qos.is_acknowledged() { &mut self.acknowledged } else { &mut self.unacknowledged };
        // Equal numbers are fine: what is put back is oldest in its own queue.
        let number = queue.front().map_or(0, |front| front.number.saturating_sub(1));
        queue.push_front(Numbered { number, delivery });
    }

    pub(super) fn take(&mut self, quota: usize, bytes: usize, into: &mut Vec<Delivery>, budget: &Budget) {
        let mut quota = quota;
        let mut taken = 0;
        while taken < bytes {
            let unacknowledged = self.unacknowledged.front().map(|front| front.number);
            let acknowledged = self.acknowledged.front().filter(|_| quota > 0).map(|front| front.number);
            let next = match (unacknowledged, acknowledged) {
                (Some(unacknowledged), Some(acknowledged)) if unacknowledged < acknowledged => {
                    self.unacknowledged.pop_front()
                }
                (_, Some(_)) => {
                    quota -= 1;
                    self.acknowledged.pop_front()
                }
                (Some(_), None) => self.unacknowledged.pop_front(),
                (None, None) => None,
            };
            let Some(next) = next else { break };
            taken += next.delivery.queued_bytes();
            into.push(next.delivery);
        }
        self.bytes -= taken;
        budget.give_back(taken);
    }

    /// Drops QoS 0 and detaches the rest from read buffers; how many were dropped.
    pub(super) fn drop_unacknowledged(&mut self, budget: &Budget) -> u64 {
        let dropped = std::mem::take(&mut self.unacknowledged);
        dropped.iter().for_each(|numbered| self.account_out(&numbered.delivery, budget));
        for numbered in &mut self.acknowledged {
            numbered.delivery = numbered.delivery.detach();
        }
        self.acknowledged.shrink_to_fit();
        dropped.len() as u64
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Delivery) -> bool, budget: &Budget) {
        let mut dropped = 0;
        for queue in [&mut self.unacknowledged, &mut self.acknowledged] {
            queue.retain(|numbered| {
                let kept = keep(&numbered.delivery);
                dropped += if kept { 0 } else { numbered.delivery.queued_bytes() };
                kept
            });
        }
        self.bytes -= dropped;
        budget.give_back(dropped);
    }

    pub(super) fn clear(&mut self, budget: &Budget) {
        budget.give_back(self.bytes);
        self.bytes = 0;
        self.unacknowledged = VecDeque::new();
        self.acknowledged = VecDeque::new();
    }

    fn fits(&self, bytes: usize, limits: &OutboxLimits, budget: &Budget) -> bool {
        self.len() < limits.messages && self.bytes + bytes <= limits.bytes && budget.has_room(bytes)
    }

    fn account_out(&mut self, delivery: &Delivery, budget: &Budget) {
        let bytes = delivery.queued_bytes();
        self.bytes -= bytes;
        budget.give_back(bytes);
    }
}

/// A queue with more than this lags.
const DETACH_FROM_BYTES: usize = 256 * 1024;
