//! What comes into a queue.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_balancer::Availability;
use tenbin_session::Delivery;

use super::batch::{Batch, Entry};
use super::queue::Dropped;
use super::runs::{Run, Wire};
use super::{Booked, Outbox, OutboxCommon, Pressure, Queue, Reader, State, Tally};

impl Outbox {
    /// Puts a batch in, in order, and wakes the receiver once. What finds no room is dropped as
    /// [`super::WhenFull`] says, and counted; QoS 0 does not wait for a client that is not connected.
    ///
    /// Tells whether the receiver lags though its socket takes what it writes: then it wants processor time, and
    /// a publisher that gives some is the better one.
    ///
    /// What a share group meant for this member and it cannot take goes to `returned`, for another member: all of
    /// it if the client is not connected or has left the group since it was chosen, QoS 1 and 2 if the queue is
    /// full.
    ///
    /// So does what was meant for an earlier `connection` than there is: that one's other messages are with others.
    pub(crate) fn push_batch(
        &self,
        batch: &mut Batch,
        connection: u32,
        returned: &mut Vec<Delivery>,
        now: Instant,
    ) -> Pressure {
        self.push_each(Some(connection), returned, now, |push| {
            batch.drain(|entry| match entry {
                Entry::Single(delivery) => push.single(delivery),
                Entry::Run(run, packets) => push.run(run, packets),
            });
        })
    }

    /// As [`Outbox::push_batch`], for single messages.
    pub(crate) fn push(&self, deliveries: &mut Vec<Delivery>, returned: &mut Vec<Delivery>, now: Instant) -> Pressure {
        self.push_each(None, returned, now, |push| deliveries.drain(..).for_each(|delivery| push.single(delivery)))
    }

    /// `chosen`: the connection that share groups chose; `None` = whichever there is.
    fn push_each(
        &self,
        chosen: Option<u32>,
        returned: &mut Vec<Delivery>,
        now: Instant,
        put_in: impl FnOnce(&mut Push<'_>),
    ) -> Pressure {
        let mut guard = self.state();
        let State { queue, groups, attached, closed, connection, wire, .. } = &mut *guard;
        let mut push = Push {
            outbox: self,
            queue,
            groups,
            is_attached: *attached,
            is_attached_for_groups: *attached && chosen.is_none_or(|chosen| chosen == *connection),
            is_closed: *closed,
            wire: *wire,
            now,
            returned,
            dropped_full: 0,
            dropped_offline: 0,
            taken_back: Booked::NOTHING,
            refused: None,
            joined: None,
            tally: None,
            given: 0,
        };
        put_in(&mut push);
        push.count();
        self.at_rest.store(false, Ordering::Relaxed);
        let Push { dropped_full, dropped_offline, mut taken_back, refused, .. } = push;
        let state = &mut *guard;
        let expired = state.queue.take_expired();
        taken_back += expired.booked;
        // Who refuses one, be it for the budget's sake, tells when it has taken something: the group keeps it until then.
        let is_full = state.queue.is_nearly_full(&self.common.limits) || (refused.is_some() && !state.queue.is_empty());
        if state.attached && is_full {
            self.load.set_availability(Availability::Full);
        }
        let can_go = state.queue.has_unacknowledged() || (!state.queue.is_empty() && !state.quota_blocked);
        let goes_out = can_go && !state.socket_blocked;
        // Else once, that the receiver looks after what others could do meanwhile.
        let is_wanted = goes_out || (state.has_shared_work() && !self.keeps_back());
        let waker = if is_wanted { state.waker.take() } else { None };
        // A little that goes out at once is not worth a write to what all threads share.
        if waker.is_none() || !goes_out || !state.queue.is_nearly_settled() {
            state.queue.settle(&self.common.budget);
        }
        let lags = state.attached && !state.socket_blocked && state.queue.len() > self.common.limits.messages / 4;
        drop(guard);
        if let Some(waker) = waker {
            waker.wake();
        }
        if !taken_back.is_nothing() {
            taken_back.take_back(&self.load, self.common.clock.nanos(now));
        }
        self.common.metrics.dropped_queue_full.add(dropped_full);
        self.common.metrics.dropped_offline.add(dropped_offline);
        self.common.metrics.dropped_expired.add(expired.messages);
        if lags { Pressure::Lags } else { Pressure::None }
    }
}

/// One batch on its way into the queue.
struct Push<'a> {
    outbox: &'a Outbox,
    queue: &'a mut Queue,
    groups: &'a FxHashMap<NonZeroU64, Arc<Tally>>,
    is_attached: bool,
    /// By the connection that share groups chose.
    is_attached_for_groups: bool,
    is_closed: bool,
    wire: Option<Wire>,
    now: Instant,
    returned: &'a mut Vec<Delivery>,
    dropped_full: u64,
    dropped_offline: u64,
    taken_back: Booked,
    /// The share group of which a message was refused last.
    refused: Option<NonZeroU64>,
    // Looked up, and counted, once for the messages of one group that follow each other.
    joined: Option<NonZeroU64>,
    tally: Option<&'a Tally>,
    given: u64,
}

impl Push<'_> {
    #[inline]
    fn single(&mut self, delivery: Delivery) {
        let outbox = self.outbox;
        let acknowledged = delivery.qos.is_acknowledged();
        if !self.is_member(delivery.share) {
            self.taken_back += Booked::of(&delivery);
            self.returned.push(delivery); // [MQTT-3.10.4-2]
        } else if self.is_closed || (!self.is_attached && !acknowledged) {
            self.taken_back += Booked::of(&delivery);
            self.dropped_offline += 1;
        } else if acknowledged && self.refused.is_some() && self.refused == delivery.share {
            self.refuse(delivery); // a smaller one would fit, and go before its predecessor
        } else if self.queue.fits(&delivery, self.reader(), &outbox.common.limits, &outbox.common.budget, self.now) {
            self.given += 1;
            self.queue.append(delivery, self.reader());
        } else if acknowledged && delivery.share.is_some() {
            self.refuse(delivery);
        } else {
            self.given += 1;
            let Dropped { messages, booked } =
                self.queue.push(delivery, self.reader(), &outbox.common.limits, &outbox.common.budget, self.now);
            self.dropped_full += messages;
            self.taken_back += booked;
        }
    }

    #[cold]
    fn refuse(&mut self, delivery: Delivery) {
        self.refused = delivery.share;
        self.taken_back += Booked::of(&delivery);
        self.returned.push(delivery);
    }

    /// A run goes in as a whole, or as single messages.
    fn run(&mut self, run: Run, packets: &[u8]) {
        let OutboxCommon { limits, budget, .. } = &*self.outbox.common;
        // Else they were made for an earlier connection, or for none.
        let is_for_us = self.wire == Some(run.wire) && self.is_attached && !self.is_closed;
        if is_for_us && self.is_member(run.share) && self.queue.fits_run(&run, self.reader(), limits, budget) {
            self.given += u64::from(run.messages);
            self.queue.append_run(run, packets);
        } else {
            run.deliveries(packets).for_each(|delivery| self.single(delivery));
        }
    }

    /// Whether the receiver is still a member of the group that chose it, if one did.
    #[inline]
    fn is_member(&mut self, share: Option<NonZeroU64>) -> bool {
        if self.joined != share {
            self.count();
            let group = share.filter(|_| self.is_attached_for_groups);
            self.tally = group.and_then(|group| self.groups.get(&group)).map(|tally| &**tally);
            self.joined = group.filter(|_| self.tally.is_some());
        }
        self.joined == share
    }

    /// Adds what was given, if to a member.
    fn count(&mut self) {
        let given = std::mem::take(&mut self.given);
        if let Some(tally) = self.tally.take() {
            tally.add(given);
        }
    }

    fn reader(&self) -> Reader {
        if self.is_attached { Reader::Present } else { Reader::Absent }
    }
}
