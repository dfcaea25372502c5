use std::num::NonZeroU64;
use std::ops::AddAssign;
use std::time::Instant;

use tenbin_session::Delivery;

use super::budget::Usage;
use super::lane::{Lane, Numbered};
use super::runs::{Run, Runs};
use super::{Batch, Booked, Budget, OutboxLimits, WhenFull};

/// FIFOs that are emptied as one, by number: QoS 0 must go on when the send quota holds QoS 1 and 2 back
/// `[MQTT-4.9.0-3]`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    unacknowledged: Lane,
    /// QoS 0 too, where nothing needs to be known of single messages.
    runs: Runs,
    acknowledged: Lane,
    next_number: u64,
    /// The earliest expiry of what has come in since the last purge.
    first_expiry: Option<Instant>,
    /// Dropped because their time was over, since the last [`Queue::take_expired`].
    expired: Dropped,
    /// What the budget knows of this queue.
    settled: Usage,
    /// Bytes that were taken out by [`Queue::take`].
    taken_bytes: u64,
}

/// Messages that a queue gave up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) messages: u64,
    /// What share groups had booked for them.
    pub(crate) booked: Booked,
}

impl Dropped {
    pub(super) fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.booked += Booked::of(delivery);
    }

    pub(super) fn add_run(&mut self, run: &Run) {
        self.messages += u64::from(run.messages);
        self.booked += run.booked();
    }
}

impl AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.booked += other.booked;
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
        self.unacknowledged.deliveries.len() + self.runs.messages() + self.acknowledged.deliveries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether anything waits that needs no send quota.
    pub(super) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.deliveries.is_empty() || self.runs.messages() > 0
    }

    /// The number of the oldest message.
    pub(super) fn head(&self) -> Option<u64> {
        let lanes = [self.unacknowledged.front_number(), self.runs.front_number(), self.acknowledged.front_number()];
        lanes.into_iter().flatten().min()
    }

    /// The number that the next message gets.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// QoS 1 and 2 messages.
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged.deliveries.len()
    }

    /// They, and their bytes.
    pub(super) fn acknowledged_usage(&self) -> (usize, usize) {
        (self.acknowledged.deliveries.len(), self.acknowledged.bytes)
    }

    /// QoS 0 messages that are stored or came one by one, and their bytes.
    pub(super) fn single_unacknowledged_usage(&self) -> (usize, usize) {
        (self.unacknowledged.deliveries.len(), self.unacknowledged.bytes)
    }

    /// All bytes that were taken by whoever reads.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Everything that waits but for runs, QoS 0 first: see [`Queue::split_runs`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> + Clone {
        self.unacknowledged.iter().chain(self.acknowledged.iter())
    }

    /// The share groups that messages are here for, and how many each time.
    pub(super) fn shares(&self) -> impl Iterator<Item = (NonZeroU64, usize)> {
        self.iter().filter_map(|delivery| Some((delivery.share?, 1))).chain(self.runs.shares())
    }

    /// Makes single messages of runs, for whoever looks at each.
    pub(super) fn split_runs(&mut self) {
        if self.runs.messages() == 0 {
            return;
        }
        for (number, delivery) in self.runs.take_single() {
            self.unacknowledged.push_back(Numbered { number, delivery });
        }
        self.unacknowledged.deliveries.make_contiguous().sort_by_key(|numbered| numbered.number);
    }

    /// Whether the receiver should get no new work while others can: seven eighths of a bound are used.
    pub(super) fn is_nearly_full(&self, limits: &OutboxLimits) -> bool {
        self.len() > limits.messages / 8 * 7 || self.bytes() > limits.bytes / 8 * 7
    }

    /// Whether so little waits that it may as well be in memory.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.bytes() < HEAD_BYTES
    }

    /// Whether a receiver that was full may be given new work: half of both bounds is free, so that it does not
    /// flutter.
    pub(super) fn has_room(&self, limits: &OutboxLimits) -> bool {
        self.len() <= limits.messages / 2 && self.bytes() <= limits.bytes / 2
    }

    /// Makes room for `delivery` by dropping what has expired, `[MQTT-3.3.2-5]`; whether there is room then.
    #[inline]
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
            || (self.purge(now) && self.has_place(bytes, reader, limits, budget))
    }

    /// Drops what has expired; what that was.
    pub(crate) fn drop_expired(&mut self, now: Instant, budget: &Budget) -> Dropped {
        self.purge(now);
        self.settle(budget);
        self.take_expired()
    }

    /// Messages that were dropped because their time was over, since the last call: [`Queue::fits`] looks.
    pub(crate) fn take_expired(&mut self) -> Dropped {
        std::mem::take(&mut self.expired)
    }

    /// Puts a message in that [`Queue::fits`]. The budget knows of it after [`Queue::settle`], once for a batch.
    #[inline(always)] // called once for each message: a call would move it once more
    pub(crate) fn append(&mut self, mut delivery: Delivery, reader: Reader) {
        // What waits long must not keep all of the buffer alive that it was a part of.
        if reader == Reader::Absent || self.bytes() > DETACH_FROM_BYTES {
            delivery = delivery.detach();
        }
        // Of what is stored the log has to be told: that is looked at when it is sent.
        if let Some(at) = delivery.expires_at.filter(|_| delivery.stored.is_none()) {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.lane(&delivery).push_back(Numbered { number, delivery });
    }

    /// Whether there is room for a run as a whole.
    #[inline]
    pub(super) fn fits_run(&self, run: &Run, reader: Reader, limits: &OutboxLimits, budget: &Budget) -> bool {
        self.has_places(run.messages as usize, run.queued_bytes(), reader, limits, budget)
    }

    /// Puts a run in that [`Queue::fits_run`], as [`Queue::append`] does a message.
    pub(super) fn append_run(&mut self, run: Run, packets: &[u8]) {
        let number = self.next_number;
        self.next_number += u64::from(run.messages);
        self.runs.push_back(number, run, packets);
    }

    /// Messages that were dropped for want of room: `delivery` or older ones. To be followed by [`Queue::settle`], as
    /// [`Queue::append`].
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
                && budget.has_room(self.settled, self.acknowledged.bytes + bytes);
            if !may_evict || !would_fit {
                dropped.add(&delivery);
                return dropped;
            }
            while !self.has_place(bytes, reader, limits, budget) {
                if !self.drop_oldest_unacknowledged(&mut dropped) {
                    dropped.add(&delivery);
                    return dropped;
                }
            }
        }
        self.append(delivery, reader);
        dropped
    }

    /// In front of everything: only for what was taken just before.
    pub(crate) fn push_front(&mut self, delivery: Delivery, budget: &Budget) {
        if let Some(at) = delivery.expires_at.filter(|_| delivery.stored.is_none()) {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        self.lane(&delivery).push_front(delivery);
        self.settle(budget);
    }

    /// Moves what may go to `into`, oldest first: QoS 0 always, QoS 1 and 2 as far as `quota` goes, until `bytes`
    /// are reached.
    pub(crate) fn take(&mut self, quota: usize, bytes: usize, into: &mut Batch, budget: &Budget) {
        if self.is_empty() {
            return;
        }
        let mut quota = quota;
        let mut taken = 0;
        while taken < bytes {
            let number = |front: Option<u64>| front.unwrap_or(u64::MAX);
            let single = number(self.unacknowledged.front_number());
            let run = number(self.runs.front_number());
            let acknowledged = number(self.acknowledged.front_number().filter(|_| quota > 0));
            // As long as one lane has the oldest. Of equal numbers the one of the message that needs an acknowledgement
            // goes first: it was put back.
            if acknowledged != u64::MAX && acknowledged <= single.min(run) {
                let others = single.min(run);
                while taken < bytes && quota > 0 && self.acknowledged.is_due(others) {
                    quota -= 1;
                    taken += self.acknowledged.take_front(into.singles());
                }
            } else if single != u64::MAX && single <= run {
                let others = run.min(acknowledged).saturating_sub(1);
                while taken < bytes && self.unacknowledged.is_due(others.max(single)) {
                    taken += self.unacknowledged.take_front(into.singles());
                }
            } else {
                let Some(run) = into.add_run(|packets| self.runs.take_front(packets)) else { break };
                taken += run.queued_bytes();
            }
        }
        self.taken_bytes += taken as u64;
        self.unacknowledged.shrink();
        self.acknowledged.shrink();
        self.settle(budget);
    }

    /// Takes out what share groups meant for this receiver, oldest first. Runs of no group are dropped: a queue full of them
    /// takes long to split.
    pub(super) fn withdraw_shared(&mut self, budget: &Budget) -> (Vec<Delivery>, Dropped) {
        let mut dropped = Dropped::default();
        self.runs.drop_unshared(&mut dropped);
        (self.withdraw(|delivery| delivery.share.is_some(), budget), dropped)
    }

    /// Takes out what is wanted elsewhere or not at all, oldest first.
    pub(super) fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool, budget: &Budget) -> Vec<Delivery> {
        self.withdraw_numbered(|numbered| wanted(&numbered.delivery), budget)
    }

    /// Takes out the newest messages of a share group, so many at most; the oldest of them first.
    pub(super) fn withdraw_newest(&mut self, group: NonZeroU64, count: usize, budget: &Budget) -> Vec<Delivery> {
        self.split_runs();
        let is_of_group = |numbered: &Numbered| numbered.delivery.share == Some(group);
        let lanes = self.unacknowledged.deliveries.iter().chain(&self.acknowledged.deliveries);
        let mut numbers: Vec<_> =
            lanes.filter(|numbered| is_of_group(numbered)).map(|numbered| numbered.number).collect();
        numbers.sort_unstable();
        let Some(&first) = numbers[numbers.len() - count.min(numbers.len())..].first() else { return Vec::new() };
        self.withdraw_numbered(|numbered| is_of_group(numbered) && numbered.number >= first, budget)
    }

    /// Takes out what is wanted elsewhere behind the first `bytes`; the oldest first.
    pub(super) fn withdraw_behind(
        &mut self,
        bytes: usize,
        wanted: impl Fn(&Delivery) -> bool,
        budget: &Budget,
    ) -> Vec<Delivery> {
        self.split_runs();
        let lanes = [&self.unacknowledged, &self.acknowledged];
        let all = lanes.into_iter().flat_map(|lane| &lane.deliveries);
        let wanted = |numbered: &Numbered| wanted(&numbered.delivery);
        let of_wanted = all.filter(|numbered| wanted(numbered));
        let mut sizes: Vec<_> = of_wanted.map(|numbered| (numbered.number, numbered.delivery.queued_bytes())).collect();
        sizes.sort_unstable();
        let mut kept = 0;
        let first = sizes.into_iter().find(|(_, size)| {
            kept += size;
            kept > bytes
        });
        let Some((first, _)) = first else { return Vec::new() };
        self.withdraw_numbered(|numbered| wanted(numbered) && numbered.number >= first, budget)
    }

    fn withdraw_numbered(&mut self, is_wanted: impl Fn(&Numbered) -> bool, budget: &Budget) -> Vec<Delivery> {
        self.split_runs();
        let mut taken = self.unacknowledged.remove_where(&is_wanted);
        taken.extend(self.acknowledged.remove_where(&is_wanted));
        self.settle(budget);
        taken.make_contiguous().sort_by_key(|numbered| numbered.number);
        taken.into_iter().map(|numbered| numbered.delivery).collect()
    }

    /// Drops QoS 0 and detaches the rest from read buffers; what was dropped.
    pub(super) fn drop_unacknowledged(&mut self, budget: &Budget) -> Dropped {
        let mut dropped: Dropped = self.unacknowledged.iter().collect();
        self.runs.clear(&mut dropped);
        self.unacknowledged = Lane::default();
        self.settle(budget);
        for numbered in &mut self.acknowledged.deliveries {
            numbered.delivery = numbered.delivery.detach();
        }
        self.acknowledged.deliveries.shrink_to_fit();
        dropped
    }

    /// Forgets everything; what that was.
    pub(crate) fn clear(&mut self, budget: &Budget) -> Dropped {
        let mut dropped: Dropped = self.iter().collect();
        self.runs.clear(&mut dropped);
        self.unacknowledged = Lane::default();
        self.acknowledged = Lane::default();
        self.settle(budget);
        dropped
    }

    /// Tells the budget what has come in or gone since it was told last.
    pub(crate) fn settle(&mut self, budget: &Budget) {
        let usage = Usage { bytes: self.bytes(), messages: self.len() };
        budget.change(self.settled, usage);
        self.settled = usage;
    }

    /// Whether the budget knows of nearly all that is here.
    pub(crate) fn is_nearly_settled(&self) -> bool {
        self.bytes().abs_diff(self.settled.bytes) < IN_TRANSIT_BYTES
    }

    fn lane(&mut self, delivery: &Delivery) -> &mut Lane {
        if delivery.qos.is_acknowledged() { &mut self.acknowledged } else { &mut self.unacknowledged }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.unacknowledged.bytes + self.runs.bytes() + self.acknowledged.bytes
    }

    fn has_place(&self, bytes: usize, reader: Reader, limits: &OutboxLimits, budget: &Budget) -> bool {
        self.has_places(1, bytes, reader, limits, budget)
    }

    fn has_places(
        &self,
        messages: usize,
        bytes: usize,
        reader: Reader,
        limits: &OutboxLimits,
        budget: &Budget,
    ) -> bool {
        let bytes = self.bytes() + bytes;
        let in_budget = match reader {
            // Whoever reads can always get a little, however much others have left lying.
            Reader::Present => bytes <= FLOOR_BYTES || budget.has_room(self.settled, bytes),
            Reader::Absent => budget.has_room_for_absent(self.settled, bytes),
        };
        in_budget && self.len() + messages <= limits.messages && bytes <= limits.bytes
    }

    /// Drops the oldest QoS 0 message; whether there was one.
    fn drop_oldest_unacknowledged(&mut self, dropped: &mut Dropped) -> bool {
        match (self.unacknowledged.front_number(), self.runs.front_number()) {
            (Some(single), Some(run)) if run < single => self.runs.drop_front(dropped),
            (None, Some(_)) => self.runs.drop_front(dropped),
            _ => self.unacknowledged.drop_front(dropped),
        }
    }

    /// Drops what has expired; whether that was anything. Looks only if something has.
    fn purge(&mut self, now: Instant) -> bool {
        if self.first_expiry.is_none_or(|first| first > now) {
            return false;
        }
        let before = self.len();
        for lane in [&mut self.unacknowledged, &mut self.acknowledged] {
            let purged =
                lane.remove_where(|Numbered { delivery, .. }| delivery.stored.is_none() && delivery.is_expired(now));
            purged.iter().for_each(|numbered| self.expired.add(&numbered.delivery));
        }
        let not_stored = self.iter().filter(|delivery| delivery.stored.is_none());
        self.first_expiry = not_stored.filter_map(|delivery| delivery.expires_at).min();
        self.len() < before
    }
}

/// A queue with more than this lags.
const DETACH_FROM_BYTES: usize = 256 * 1024;
/// What a connected client's queue may hold whatever the budget says.
const FLOOR_BYTES: usize = 64 * 1024;
/// What may be on its way through a connected client's queue before the budget is told.
const IN_TRANSIT_BYTES: usize = 4 * 1024;
/// Up to here what waits with a share group, or for a slow receiver, is in memory too, where it is on disk.
pub(super) const HEAD_BYTES: usize = 64 * 1024;
