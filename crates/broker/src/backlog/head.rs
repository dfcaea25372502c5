mod probe;

use std::num::NonZeroU64;
use std::ops::AddAssign;
use std::time::Instant;

use tenbin_codec::TopicName;
use tenbin_session::Delivery;

use super::budget::Usage;
use super::lane::{Lane, Numbered};
use super::runs::{Run, Runs};
use super::{Batch, Booked, Budget, DroppedNames, Limits};
use crate::hooks::DropReason;
use crate::values::WhenFull;
use probe::Probe;

/// The in-memory messages of one backlog: three FIFOs, drained in the order of their message numbers.
///
/// QoS 0 has separate FIFOs, to go on while the send quota blocks QoS 1 and 2 `[MQTT-4.9.0-3]`.
#[derive(Debug, Default)]
pub(crate) struct Head {
    unacknowledged: Lane,
    /// QoS 0 messages that need no handling one by one.
    runs: Runs,
    acknowledged: Lane,
    next_number: u64,
    /// Earliest expiry among messages added since the last purge.
    first_expiry: Option<Instant>,
    /// Messages dropped as expired since the last [`Head::take_expired`].
    expired: Dropped,
    /// Usage that the budget knows of.
    settled: Usage,
    /// Bytes taken by [`Head::take`] so far.
    taken_bytes: u64,
    /// Dropped messages, for hooks; `None` = no hook asks for them. Runs are missing: while a hook asks, there are none.
    names: Option<Box<DroppedNames>>,
    /// Message whose stay is measured; `None` = there is none. One that leaves in another way than to its receiver is
    /// measured no more.
    probe: Option<Box<Probe>>,
}

/// Messages that a queue dropped.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) messages: u64,
    /// Bookings of share groups for these messages.
    pub(crate) booked: Booked,
}

impl Dropped {
    pub(crate) fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.booked += Booked::of(delivery);
    }

    pub(crate) fn add_run(&mut self, run: &Run) {
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

/// Whether a connection drains the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A connection drains the queue.
    Present,
    /// No connection: messages stay long, so the queue may use only a part of the common budget.
    Absent,
}

impl Head {
    /// Collects the names of dropped messages from now on.
    pub(crate) fn name_dropped(&mut self, names: DroppedNames) {
        self.names = Some(Box::new(names));
    }

    /// Notes a message that is dropped.
    #[inline]
    pub(crate) fn note_dropped(&mut self, delivery: &Delivery, reason: DropReason) {
        if let Some(names) = &mut self.names {
            names.note(delivery, reason);
        }
    }

    /// Takes the names of messages dropped since the last call.
    #[inline]
    pub(crate) fn take_names(&mut self) -> Option<Box<DroppedNames>> {
        self.names.as_mut()?.take()
    }

    /// The name of a message that was dropped before it reached the queue.
    pub(crate) fn name_of(&mut self, topic: &TopicName, reason: DropReason) -> Option<Box<DroppedNames>> {
        Some(Box::new(self.names.as_ref()?.one(topic, reason)))
    }

    fn note_all_dropped(&mut self, is_acknowledged_too: bool) {
        if let Some(names) = &mut self.names {
            let acknowledged = self.acknowledged.iter().filter(|_| is_acknowledged_too);
            self.unacknowledged
                .iter()
                .chain(acknowledged)
                .for_each(|delivery| names.note(delivery, DropReason::Offline));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.unacknowledged.deliveries.len() + self.runs.messages() + self.acknowledged.deliveries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the queue has messages that need no send quota.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.deliveries.is_empty() || self.runs.messages() > 0
    }

    /// Number of the oldest message.
    pub(crate) fn head(&self) -> Option<u64> {
        let lanes = [self.unacknowledged.front_number(), self.runs.front_number(), self.acknowledged.front_number()];
        lanes.into_iter().flatten().min()
    }

    /// Number that the next message gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Number of QoS 1 and 2 messages.
    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.deliveries.len()
    }

    /// Number and bytes of QoS 1 and 2 messages.
    pub(crate) fn acknowledged_usage(&self) -> (usize, usize) {
        (self.acknowledged.deliveries.len(), self.acknowledged.bytes)
    }

    /// Number and bytes of QoS 0 messages outside runs.
    pub(crate) fn single_unacknowledged_usage(&self) -> (usize, usize) {
        (self.unacknowledged.deliveries.len(), self.unacknowledged.bytes)
    }

    /// Bytes taken by the receiver so far.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// All messages outside runs, QoS 0 first; see [`Head::split_runs`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Delivery> + Clone {
        self.unacknowledged.iter().chain(self.acknowledged.iter())
    }

    /// Share groups of the queued messages, with message counts; a group may occur more than once.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (NonZeroU64, usize)> {
        self.iter().filter_map(|delivery| Some((delivery.share?, 1))).chain(self.runs.shares())
    }

    /// Converts runs into single messages, for callers that inspect each message.
    pub(crate) fn split_runs(&mut self) {
        if self.runs.messages() == 0 {
            return;
        }
        for (number, delivery) in self.runs.take_single() {
            self.unacknowledged.push_back(Numbered { number, delivery });
        }
        self.unacknowledged.deliveries.make_contiguous().sort_by_key(|numbered| numbered.number);
    }

    /// Whether the queue is shorter than the in-memory head may be.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.bytes() < HEAD_BYTES
    }

    /// Whether `delivery` fits; drops expired messages to make room, `[MQTT-3.3.2-5]`.
    #[inline]
    pub(crate) fn fits(
        &mut self,
        delivery: &Delivery,
        reader: Reader,
        limits: &Limits,
        budget: &Budget,
        now: Instant,
    ) -> bool {
        let bytes = delivery.queued_bytes();
        self.has_places(1, bytes, reader, limits, budget)
            || (self.purge(now) && self.has_places(1, bytes, reader, limits, budget))
    }

    /// Drops expired messages and returns their totals.
    pub(crate) fn drop_expired(&mut self, now: Instant, budget: &Budget) -> Dropped {
        self.purge(now);
        self.settle(budget);
        self.take_expired()
    }

    /// Returns totals of messages that [`Head::fits`] dropped as expired since the last call.
    pub(crate) fn take_expired(&mut self) -> Dropped {
        std::mem::take(&mut self.expired)
    }

    /// Adds a message after a successful [`Head::fits`].
    ///
    /// The budget learns of it at the next [`Head::settle`], once for a batch.
    #[inline(always)] // called once for each message: a call would move it once more
    pub(crate) fn append(&mut self, mut delivery: Delivery, reader: Reader) {
        // A message that may stay long must not keep its whole read buffer alive.
        if reader == Reader::Absent || self.bytes() > DETACH_FROM_BYTES {
            delivery = delivery.detach();
        }
        // The log needs an update when a stored message expires, so the sender checks the expiry of stored messages.
        if let Some(at) = delivery.expires_at.filter(|_| delivery.stored.is_none()) {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.lane(&delivery).push_back(Numbered { number, delivery });
    }

    /// Whether the whole run fits.
    #[inline]
    pub(crate) fn fits_run(&self, run: &Run, reader: Reader, limits: &Limits, budget: &Budget) -> bool {
        self.has_places(run.messages as usize, run.queued_bytes(), reader, limits, budget)
    }

    /// Adds a run after a successful [`Head::fits_run`]. Like [`Head::append`], needs [`Head::settle`] afterwards.
    pub(crate) fn append_run(&mut self, run: Run, packets: &[u8]) {
        let number = self.next_number;
        self.next_number += u64::from(run.messages);
        self.runs.push_back(number, run, packets);
    }

    /// Adds `delivery` and returns the messages dropped for want of room: `delivery` itself or older ones.
    ///
    /// Like [`Head::append`], needs [`Head::settle`] afterwards.
    pub(crate) fn push(
        &mut self,
        delivery: Delivery,
        reader: Reader,
        limits: &Limits,
        budget: &Budget,
        now: Instant,
    ) -> Dropped {
        let bytes = delivery.queued_bytes();
        let mut dropped = Dropped::default();
        if !self.fits(&delivery, reader, limits, budget, now) {
            let may_evict = !delivery.qos.is_acknowledged() && limits.when_full == WhenFull::DropOldest;
            // Drop nothing for a message that would not fit even then.
            let would_fit = self.acknowledged.deliveries.len() < limits.messages
                && self.acknowledged.bytes + bytes <= limits.bytes
                && budget.has_room(Reader::Present, self.settled, self.acknowledged.bytes + bytes);
            if !may_evict || !would_fit {
                dropped.add(&delivery);
                self.note_dropped(&delivery, DropReason::QueueFull);
                return dropped;
            }
            while !self.has_places(1, bytes, reader, limits, budget) {
                if !self.drop_oldest_unacknowledged(&mut dropped) {
                    dropped.add(&delivery);
                    self.note_dropped(&delivery, DropReason::QueueFull);
                    return dropped;
                }
            }
        }
        self.append(delivery, reader);
        dropped
    }

    /// Puts a message just taken back at the front.
    pub(crate) fn push_front(&mut self, delivery: Delivery, budget: &Budget) {
        if let Some(at) = delivery.expires_at.filter(|_| delivery.stored.is_none()) {
            self.first_expiry = Some(self.first_expiry.map_or(at, |first| first.min(at)));
        }
        self.lane(&delivery).push_front(delivery);
        self.settle(budget);
    }

    /// Moves messages into `into`, oldest first, until `bytes` are reached.
    ///
    /// QoS 0 always goes, QoS 1 and 2 up to `quota`.
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
            // Drain one lane while it has the oldest message. Of equal numbers the QoS 1 or 2 message goes first: it
            // was put back.
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
        if self.probe.is_some() {
            into.measure(self.end_probe());
        }
        self.unacknowledged.shrink();
        self.acknowledged.shrink();
        self.settle(budget);
    }

    /// Takes the oldest QoS 1 or 2 message.
    pub(crate) fn pop(&mut self, budget: &Budget) -> Option<Delivery> {
        let delivery = self.acknowledged.pop_front()?;
        self.acknowledged.shrink();
        self.settle(budget);
        Some(delivery)
    }

    /// Removes messages that share groups gave to this receiver, oldest first.
    ///
    /// Drops runs without a group, because splitting a queue full of them takes long.
    pub(crate) fn withdraw_shared(&mut self, budget: &Budget) -> (Vec<Delivery>, Dropped) {
        let mut dropped = Dropped::default();
        self.runs.drop_unshared(&mut dropped);
        (self.withdraw(|delivery| delivery.share.is_some(), budget), dropped)
    }

    /// Removes the messages for which `wanted` holds, oldest first.
    pub(crate) fn withdraw(&mut self, wanted: impl Fn(&Delivery) -> bool, budget: &Budget) -> Vec<Delivery> {
        self.withdraw_from(0, wanted, budget)
    }

    /// Removes at most `count` of the newest messages of a share group; returns the oldest of them first.
    pub(crate) fn withdraw_newest(&mut self, group: NonZeroU64, count: usize, budget: &Budget) -> Vec<Delivery> {
        let is_of_group = |delivery: &Delivery| delivery.share == Some(group);
        let sizes = self.sizes(is_of_group);
        let newest = &sizes[sizes.len().saturating_sub(count)..];
        newest.first().map_or_else(Vec::new, |&(first, _)| self.withdraw_from(first, is_of_group, budget))
    }

    /// Removes the messages for which `wanted` holds, except the first `bytes` of them; returns the oldest first.
    pub(crate) fn withdraw_behind(
        &mut self,
        bytes: usize,
        wanted: impl Fn(&Delivery) -> bool,
        budget: &Budget,
    ) -> Vec<Delivery> {
        let mut kept = 0;
        let first = self.sizes(&wanted).into_iter().find(|(_, size)| {
            kept += size;
            kept > bytes
        });
        first.map_or_else(Vec::new, |(first, _)| self.withdraw_from(first, wanted, budget))
    }

    /// Numbers and bytes of the messages for which `wanted` holds, oldest first.
    fn sizes(&mut self, wanted: impl Fn(&Delivery) -> bool) -> Vec<(u64, usize)> {
        self.split_runs();
        let all = self.unacknowledged.deliveries.iter().chain(&self.acknowledged.deliveries);
        let wanted = all.filter(|numbered| wanted(&numbered.delivery));
        let mut sizes: Vec<_> = wanted.map(|numbered| (numbered.number, numbered.delivery.queued_bytes())).collect();
        sizes.sort_unstable();
        sizes
    }

    /// Removes the messages from number `first` on for which `wanted` holds, oldest first.
    fn withdraw_from(&mut self, first: u64, wanted: impl Fn(&Delivery) -> bool, budget: &Budget) -> Vec<Delivery> {
        self.split_runs();
        let is_wanted = |numbered: &Numbered| numbered.number >= first && wanted(&numbered.delivery);
        let mut taken = self.unacknowledged.remove_where(is_wanted);
        taken.extend(self.acknowledged.remove_where(is_wanted));
        self.probe = None;
        self.settle(budget);
        taken.make_contiguous().sort_by_key(|numbered| numbered.number);
        taken.into_iter().map(|numbered| numbered.delivery).collect()
    }

    /// Drops QoS 0 messages and detaches the rest from read buffers; returns the totals dropped.
    pub(crate) fn drop_unacknowledged(&mut self, budget: &Budget) -> Dropped {
        let mut dropped: Dropped = self.unacknowledged.iter().collect();
        self.note_all_dropped(false);
        self.runs.clear(&mut dropped);
        self.unacknowledged = Lane::default();
        self.probe = None;
        self.settle(budget);
        for numbered in &mut self.acknowledged.deliveries {
            numbered.delivery = numbered.delivery.detach();
        }
        self.acknowledged.deliveries.shrink_to_fit();
        dropped
    }

    /// Drops all messages and returns their totals.
    pub(crate) fn clear(&mut self, budget: &Budget) -> Dropped {
        let mut dropped: Dropped = self.iter().collect();
        self.note_all_dropped(true);
        self.runs.clear(&mut dropped);
        self.unacknowledged = Lane::default();
        self.acknowledged = Lane::default();
        self.probe = None;
        self.settle(budget);
        dropped
    }

    /// Reports changes since the last call to the budget.
    pub(crate) fn settle(&mut self, budget: &Budget) {
        let usage = self.usage();
        budget.change(self.settled, usage);
        self.settled = usage;
    }

    /// Whether the budget knows of nearly all messages of this queue.
    pub(crate) fn is_nearly_settled(&self) -> bool {
        self.bytes().abs_diff(self.settled.bytes) < IN_TRANSIT_BYTES
    }

    fn lane(&mut self, delivery: &Delivery) -> &mut Lane {
        if delivery.qos.is_acknowledged() { &mut self.acknowledged } else { &mut self.unacknowledged }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { bytes: self.bytes(), messages: self.len() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.unacknowledged.bytes + self.runs.bytes() + self.acknowledged.bytes
    }

    fn has_places(&self, messages: usize, bytes: usize, reader: Reader, limits: &Limits, budget: &Budget) -> bool {
        let usage = Usage { bytes: self.bytes() + bytes, messages: self.len() + messages };
        limits.permit(usage, self.settled, reader, budget)
    }

    /// Drops the oldest QoS 0 message; returns whether there was one.
    fn drop_oldest_unacknowledged(&mut self, dropped: &mut Dropped) -> bool {
        self.probe = None;
        match (self.unacknowledged.front_number(), self.runs.front_number()) {
            (Some(single), Some(run)) if run < single => self.runs.drop_front(dropped),
            (None, Some(_)) => self.runs.drop_front(dropped),
            _ => {
                let Some(oldest) = self.unacknowledged.pop_front() else { return false };
                dropped.add(&oldest);
                self.note_dropped(&oldest, DropReason::QueueFull);
                true
            }
        }
    }

    /// Drops expired messages, if the earliest expiry is due; returns whether it dropped any.
    fn purge(&mut self, now: Instant) -> bool {
        if self.first_expiry.is_none_or(|first| first > now) {
            return false;
        }
        let before = self.len();
        self.probe = None;
        for lane in [&mut self.unacknowledged, &mut self.acknowledged] {
            let purged =
                lane.remove_where(|Numbered { delivery, .. }| delivery.stored.is_none() && delivery.is_expired(now));
            for Numbered { delivery, .. } in &purged {
                self.expired.add(delivery);
                if let Some(names) = &mut self.names {
                    names.note(delivery, DropReason::Expired);
                }
            }
        }
        let not_stored = self.iter().filter(|delivery| delivery.stored.is_none());
        self.first_expiry = not_stored.filter_map(|delivery| delivery.expires_at).min();
        self.len() < before
    }
}

/// Queue size from which on new messages are detached from their read buffers.
const DETACH_FROM_BYTES: usize = 256 * 1024;
/// Bytes that may pass through a connected client's queue without a report to the budget.
const IN_TRANSIT_BYTES: usize = 4 * 1024;
/// Bytes of the in-memory head of a backlog on disk, for a slow receiver or a share group.
pub(crate) const HEAD_BYTES: usize = 64 * 1024;
