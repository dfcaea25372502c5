use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Instant;

use tenbin_session::Delivery;

use super::{Booked, Budget, OutboxLimits, WhenFull};

/// Two FIFOs that are emptied as one, by number: QoS 0 must go on when the send quota holds QoS 1 and 2 back
/// `[MQTT-4.9.0-3]`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    unacknowledged: Lane,
    acknowledged: Lane,
    next_number: u64,
    /// The earliest expiry of what has come in since the last purge.
    first_expiry: Option<Instant>,
    /// Dropped because their time was over, since the last [`Queue::take_expired`].
    expired: Dropped,
}

/// Messages that a queue gave up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) messages: u64,
    /// What share groups had booked for them.
    pub(crate) booked: Booked,
}

impl Dropped {
    fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.booked += Booked::of(delivery);
    }
}

impl<'a> FromIterator<&'a Delivery> for Dropped {
    fn from_iter<I: IntoIterator<Item = &'a Delivery>>(deliveries: I) -> Self {
        let mut dropped = Self::default();
        deliveries.into_iter().for_each(|delivery| dropped.add(delivery));
        dropped
    }
}

/// Whom the queue is for, as far as it matters to what may come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A connection empties the queue.
    Present,
    /// Nobody does now: messages stay long, and may not use up all queues' budget.
    Absent,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.unacknowledged.deliveries.len() + self.acknowledged.deliveries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether anything waits that needs no send quota.
    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.deliveries.is_empty()
    }

    /// The number of the oldest message.
    pub(super) fn head(&self) -> Option<u64> {
        self.unacknowledged.front_number().into_iter().chain(self.acknowledged.front_number()).min()
    }

    /// The number that the next message gets.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// QoS 1 and 2 messages.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.deliveries.len()
    }

    /// The share groups that messages are here for, one for each message.
    pub(super) fn shares(&self) -> impl Iterator<Item = NonZeroU64> {
        self.unacknowledged.iter().chain(self.acknowledged.iter()).filter_map(|delivery| delivery.share)
    }

    /// Whether the receiver should get no new work while others can: seven eighths of a bound are used.
    pub(super) fn is_nearly_full(&self, limits: &OutboxLimits) -> bool {
        self.len() > limits.messages / 8 * 7 || self.bytes() > limits.bytes / 8 * 7
    }

    /// Whether a receiver that was full may be given new work: half of both bounds is free, so that it does not
    /// flutter.
    pub(super) fn has_room(&self, limits: &OutboxLimits) -> bool {
        self.len() <= limits.messages / 2 && self.bytes() <= limits.bytes / 2
    }

    /// Makes room for `delivery` by dropping what has expired, `[MQTT-3.3.2-5]`; whether there is room then.
    pub(crate) fn fits(
        &mut self,
        delivery: &Delivery,
        reader: Reader,
        limits: &OutboxLimits,
        budget: &Budget,
        now: Instant,
    ) -> bool {
        let bytes = delivery.queued_bytes();
        self.has_place(bytes, reader, limits, budget)
            || (self.purge(now, budget) && self.has_place(bytes, reader, limits, budget))
    }

    /// Messages that were dropped because their time was over, since the last call: [`Queue::fits`] looks.
    pub(crate) fn take_expired(&mut self) -> Dropped {
        std::mem::take(&mut self.expired)
    }

    /// Messages that were dropped for want of room: `delivery` or older ones.
    pub(crate) fn push(
        &mut self,
        delivery: Delivery,
        reader: Reader,
        limits: &OutboxLimits,
        budget: &Budget,
        now: Instant,
    ) -> Dropped {
        let bytes = delivery.queued_bytes();
        let mut dropped = Dropped::default();
        if !self.fits(&delivery, reader, limits, budget, now) {
            let may_evict = !delivery.qos.is_acknowledged() && limits.when_full == WhenFull::DropOldest;
            // Nothing goes for a message that would find no place even then.
            let would_fit = self.acknowledged.deliveries.len() < limits.messages
                && self.acknowledged.bytes + bytes <= limits.bytes
                && budget.has_room(bytes.saturating_sub(self.unacknowledged.bytes));
            if !may_evict || !would_fit {
                dropped.add(&delivery);
                return dropped;
            }
            while !self.has_place(bytes, reader, limits, budget) {
                match self.unacknowledged.pop_front(budget) {
                    Some(oldest) => dropped.add(&oldest),
                    None => {
                        dropped.add(&delivery);
                        return dropped;
                    }
                }
            }
        }
        // What waits long must not keep all of the buffer alive that it was a part of.
        let lags = reader == Reader::Absent || self.bytes() > DETACH_FROM_BYTES;
        let delivery = if lags { delivery.detach() } else { delivery };
        if let Some(at) = delivery.expires_at {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        let numbered = Numbered { number: self.next_number, delivery };
        self.next_number += 1;
        self.lane(&numbered.delivery).push_back(numbered, budget);
        dropped
    }

    /// In front of everything: only for what was taken just before.
    pub(crate) fn push_front(&mut self, delivery: Delivery, budget: &Budget) {
        if let Some(at) = delivery.expires_at {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        self.lane(&delivery).push_front(delivery, budget);
    }

    /// Moves what may go to `into`, oldest first: QoS 0 always, QoS 1 and 2 as far as `quota` goes, until `bytes`
    /// are reached.
    pub(crate) fn take(&mut self, quota: usize, bytes: usize, into: &mut Vec<Delivery>, budget: &Budget) {
        let mut quota = quota;
        let mut taken = 0;
        while taken < bytes {
            let unacknowledged = self.unacknowledged.front_number();
            let acknowledged = self.acknowledged.front_number().filter(|_| quota > 0);
            let lane = match (unacknowledged, acknowledged) {
                (Some(unacknowledged), Some(acknowledged)) if unacknowledged < acknowledged => &mut self.unacknowledged,
                (_, Some(_)) => {
                    quota -= 1;
                    &mut self.acknowledged
                }
                (Some(_), None) => &mut self.unacknowledged,
                (None, None) => break,
            };
            let Some(delivery) = lane.pop_front(budget) else { break };
            taken += delivery.queued_bytes();
            into.push(delivery);
        }
        self.unacknowledged.shrink();
        self.acknowledged.shrink();
    }

    /// Takes out what share groups meant for this receiver, oldest first.
    pub(super) fn withdraw_shared(&mut self, budget: &Budget) -> Vec<Delivery> {
        self.withdraw(|delivery| delivery.share.is_some(), budget)
    }

    /// Takes out what is wanted elsewhere or not at all, oldest first.
    pub(super) fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool, budget: &Budget) -> Vec<Delivery> {
        self.withdraw_numbered(|numbered| wanted(&numbered.delivery), budget)
    }

    /// Takes out the newest messages of a share group, so many at most; the oldest of them first.
    pub(super) fn withdraw_newest(&mut self, group: NonZeroU64, count: usize, budget: &Budget) -> Vec<Delivery> {
        let is_of_group = |numbered: &Numbered| numbered.delivery.share == Some(group);
        let lanes = self.unacknowledged.deliveries.iter().chain(&self.acknowledged.deliveries);
        let mut numbers: Vec<_> =
            lanes.filter(|numbered| is_of_group(numbered)).map(|numbered| numbered.number).collect();
        numbers.sort_unstable();
        let Some(&first) = numbers[numbers.len() - count.min(numbers.len())..].first() else { return Vec::new() };
        self.withdraw_numbered(|numbered| is_of_group(numbered) && numbered.number >= first, budget)
    }

    fn withdraw_numbered(&mut self, is_wanted: impl Fn(&Numbered) -> bool, budget: &Budget) -> Vec<Delivery> {
        let mut taken = self.unacknowledged.remove_where(&is_wanted, budget);
        taken.extend(self.acknowledged.remove_where(&is_wanted, budget));
        taken.make_contiguous().sort_by_key(|numbered| numbered.number);
        taken.into_iter().map(|numbered| numbered.delivery).collect()
    }

    /// Drops QoS 0 and detaches the rest from read buffers; what was dropped.
    pub(super) fn drop_unacknowledged(&mut self, budget: &Budget) -> Dropped {
        let dropped = self.unacknowledged.iter().collect();
        self.unacknowledged.clear(budget);
        for numbered in &mut self.acknowledged.deliveries {
            numbered.delivery = numbered.delivery.detach();
        }
        self.acknowledged.deliveries.shrink_to_fit();
        dropped
    }

    /// Forgets everything; what that was.
    pub(crate) fn clear(&mut self, budget: &Budget) -> Dropped {
        let dropped = self.unacknowledged.iter().chain(self.acknowledged.iter()).collect();
        self.unacknowledged.clear(budget);
        self.acknowledged.clear(budget);
        dropped
    }

    fn lane(&mut self, delivery: &Delivery) -> &mut Lane {
        if delivery.qos.is_acknowledged() { &mut self.acknowledged } else { &mut self.unacknowledged }
    }

    fn bytes(&self) -> usize {
        self.unacknowledged.bytes + self.acknowledged.bytes
    }

    fn has_place(&self, bytes: usize, reader: Reader, limits: &OutboxLimits, budget: &Budget) -> bool {
        let in_budget = match reader {
            // Whoever reads can always get a little, however much others have left lying.
            Reader::Present => self.bytes() + bytes <= FLOOR_BYTES || budget.has_room(bytes),
            Reader::Absent => budget.has_room_for_absent(bytes),
        };
        in_budget && self.len() < limits.messages && self.bytes() + bytes <= limits.bytes
    }

    /// Drops what has expired; whether that was anything. Looks only if something has.
    fn purge(&mut self, now: Instant, budget: &Budget) -> bool {
        if self.first_expiry.is_none_or(|first| first > now) {
            return false;
        }
        let before = self.len();
        for lane in [&mut self.unacknowledged, &mut self.acknowledged] {
            let purged = lane.remove_where(|numbered| numbered.delivery.is_expired(now), budget);
            purged.iter().for_each(|numbered| self.expired.add(&numbered.delivery));
        }
        let deliveries = self.unacknowledged.iter().chain(self.acknowledged.iter());
        self.first_expiry = deliveries.filter_map(|delivery| delivery.expires_at).min();
        self.len() < before
    }
}

/// One FIFO and what it weighs.
#[derive(Debug, Default)]
struct Lane {
    deliveries: VecDeque<Numbered>,
    bytes: usize,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    delivery: Delivery,
}

impl Lane {
    fn iter(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.iter().map(|numbered| &numbered.delivery)
    }

    fn front_number(&self) -> Option<u64> {
        self.deliveries.front().map(|front| front.number)
    }

    fn push_back(&mut self, numbered: Numbered, budget: &Budget) {
        let bytes = numbered.delivery.queued_bytes();
        self.bytes += bytes;
        budget.take(bytes);
        self.deliveries.push_back(numbered);
    }

    fn push_front(&mut self, delivery: Delivery, budget: &Budget) {
        let bytes = delivery.queued_bytes();
        self.bytes += bytes;
        budget.take(bytes);
        // Equal numbers are fine: what is put back is oldest in its own lane.
        let number = self.front_number().map_or(0, |front| front.saturating_sub(1));
        self.deliveries.push_front(Numbered { number, delivery });
    }

    fn pop_front(&mut self, budget: &Budget) -> Option<Delivery> {
        let delivery = self.deliveries.pop_front()?.delivery;
        let bytes = delivery.queued_bytes();
        self.bytes -= bytes;
        budget.give_back(bytes);
        Some(delivery)
    }

    fn remove_where(&mut self, wanted: impl Fn(&Numbered) -> bool, budget: &Budget) -> VecDeque<Numbered> {
        if !self.deliveries.iter().any(&wanted) {
            return VecDeque::new();
        }
        let (removed, kept): (VecDeque<_>, _) = self.deliveries.drain(..).partition(wanted);
        self.deliveries = kept;
        let bytes = removed.iter().map(|numbered| numbered.delivery.queued_bytes()).sum::<usize>();
        self.bytes -= bytes;
        budget.give_back(bytes);
        removed
    }

    /// Gives the memory of a burst back once it is over.
    fn shrink(&mut self) {
        if self.deliveries.is_empty() && self.deliveries.capacity() > KEPT_CAPACITY {
            self.deliveries = VecDeque::new();
        }
    }

    fn clear(&mut self, budget: &Budget) {
        budget.give_back(self.bytes);
        *self = Self::default();
    }
}

/// A queue with more than this lags.
const DETACH_FROM_BYTES: usize = 256 * 1024;
/// What a connected client's queue may hold whatever the budget says.
const FLOOR_BYTES: usize = 64 * 1024;
/// Places for messages that an empty queue keeps.
const KEPT_CAPACITY: usize = 256;
