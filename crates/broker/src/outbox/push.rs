//! Adding messages to a queue.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_balancer::Availability;
use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::hints::Hint;
use super::{Booked, Budget, Control, Head, Limits, Outbox, Pressure, Reader, State, Tally, WhenFull};
use crate::backlog::{Batch, DiskWork, Dropped, Entry, Run, Spill, Wire};
use crate::durable::StoredQueue;
use crate::hooks::DropReason;
use crate::values::Bound;

impl Outbox {
    /// Adds a batch in order and wakes the receiver once.
    ///
    /// Messages without room are dropped as [`super::WhenFull`] says, and counted. QoS 0 messages are dropped if the
    /// client is not connected.
    ///
    /// Returns [`Pressure::Lags`] if the queue is long although the socket accepts data: the receiver needs processor
    /// time, and the publisher should yield.
    ///
    /// `returned` gets the messages that go back to their publishers or groups:
    /// - messages of share groups, if the client is not connected or has left the group since it was chosen;
    /// - messages of share groups chosen for an earlier `connection`, whose other messages went to other members;
    /// - QoS 1 and 2 messages of share groups, if the queue is full;
    /// - QoS 1 and 2 messages of no share group that find no room, and such messages of the batch behind them: their
    ///   publishers get a refusal.
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

    /// Like [`Outbox::push_batch`], for single messages.
    pub(crate) fn push(&self, deliveries: &mut Vec<Delivery>, returned: &mut Vec<Delivery>, now: Instant) -> Pressure {
        self.push_each(None, returned, now, |push| deliveries.drain(..).for_each(|delivery| push.single(delivery)))
    }

    /// `chosen`: the connection that share groups chose; `None` = any.
    fn push_each(
        &self,
        chosen: Option<u32>,
        returned: &mut Vec<Delivery>,
        now: Instant,
        put_in: impl FnOnce(&mut Push<'_>),
    ) -> Pressure {
        let mut guard = self.state();
        let State { queue, spill, groups, consumer, .. } = &mut *guard;
        let first_number = queue.next_number();
        let common = &self.common.limits;
        let slow = consumer.slow_limits(common);
        let is_attached = consumer.is_connected();
        let is_new = chosen.is_some();
        // In place: a move of the parts would copy them.
        let mut push = Push {
            target: Target {
                outbox: self,
                queue,
                is_behind: State::has_tail(spill.as_deref()),
                spill,
                disk: None,
                groups,
                is_attached,
                is_attached_for_groups: is_attached && chosen.is_none_or(|chosen| chosen == consumer.connection()),
                is_closed: consumer.is_closed(),
                wire: consumer.wire(),
                returned,
            },
            limits: PushLimits {
                usual: common,
                lower: slow.as_ref().unwrap_or(common),
                is_spooling: slow.is_some(),
                budget: &self.common.budget,
                now,
            },
            effects: Effects::default(),
        };
        put_in(&mut push);
        push.effects.count();
        self.hints.put(Hint::AT_REST, false);
        let Push { target: Target { disk, .. }, effects, .. } = push;
        let Effects { refused, refuses_own, is_too_slow, spooled, mut taken_back, disk_work, .. } = effects;
        let Effects { dropped_full, full_by, dropped_offline, .. } = effects;
        let state = &mut *guard;
        // Messages that come again have been here for an unknown time.
        if is_new && is_attached && self.common.metrics.timings().is_some() {
            let address = std::ptr::from_ref(self).addr() as u64;
            state.queue.measure(first_number, address / size_of::<Self>() as u64, now);
        }
        if refuses_own || spooled {
            state.is_stuffed |= refuses_own;
            self.publish(state);
        }
        if is_too_slow && is_attached && state.control.is_none_or(|pending| pending.rank() < Control::TooSlow.rank()) {
            state.control = Some(Control::TooSlow);
        }
        let expired = state.queue.take_expired();
        let names = state.queue.take_names();
        taken_back += expired.booked;
        // A member that refused a message reports room after its next take; until then its group keeps the backlog.
        let has_tail = state.spill.is_some();
        let is_nearly_full = self.common.limits.is_nearly_full(&state.queue);
        if is_nearly_full {
            self.tell_nearly_full(state);
        }
        let is_full = has_tail || is_nearly_full || (refused.is_some() && !state.queue.is_empty());
        if is_attached && is_full {
            self.load.set_availability(Availability::Full);
        }
        let blocked = state.consumer.blocked;
        let can_go = state.queue.has_unacknowledged() || (!state.queue.is_empty() && !blocked.quota);
        let goes_out = (can_go || (has_tail && !blocked.quota)) && !blocked.socket;
        // Otherwise wake it once for blocked shared messages, so that it offers them to other members.
        let is_wanted = goes_out || is_too_slow || (state.has_shared_work() && !self.keeps_back());
        let waker = if is_wanted { state.waker.take() } else { None };
        // A few bytes that go out at once are not worth a write to the shared budget.
        if waker.is_none() || !goes_out || !state.queue.is_nearly_settled() {
            state.queue.settle(&self.common.budget);
        }
        let lags = is_attached && !blocked.socket && state.queue.len() > self.common.limits.messages / 4;
        drop(guard);
        if let Some(waker) = waker {
            waker.wake();
        }
        if !disk_work.is_nothing() {
            self.do_disk_work(disk.flatten(), disk_work);
        }
        if !taken_back.is_nothing() {
            taken_back.take_back(&self.load, self.common.clock.nanos(now));
        }
        if let Some(bound) = full_by {
            self.count_dropped(dropped_full, bound, now);
        }
        self.common.metrics.dropped_offline.add(dropped_offline);
        self.common.metrics.dropped_expired.add(expired.messages);
        self.tell_dropped(names);
        if lags { Pressure::Lags } else { Pressure::None }
    }
}

impl Outbox {
    /// Alarms the slow-consumer monitor; without a disk, also reports to publishers that the queue is over limit.
    #[cold]
    fn tell_nearly_full(&self, state: &mut State) {
        let (is_attached, is_spooling) = (state.consumer.is_connected(), state.consumer.is_spooling());
        let is_expected = !is_attached || is_spooling;
        if !is_expected && !std::mem::replace(&mut state.is_alarmed, true) {
            self.common.concerns.alarm();
        }
        let will_have_room = is_attached && self.may_spool(is_spooling);
        let is_stuffed = !will_have_room && self.common.limits.memory_is_over(state.queue.usage());
        if is_stuffed && !state.is_stuffed && self.keeps_in().is_none() {
            state.is_stuffed = true;
            self.publish(state);
        }
    }
}

/// Adds one batch to a queue.
pub(super) struct Push<'a> {
    pub(super) target: Target<'a>,
    pub(super) limits: PushLimits<'a>,
    pub(super) effects: Effects<'a>,
}

/// The queue that gets the batch, in memory and on disk; its receiver; and the list of refused messages.
pub(super) struct Target<'a> {
    pub(super) outbox: &'a Outbox,
    pub(super) queue: &'a mut Head,
    pub(super) spill: &'a mut Option<Box<Spill>>,
    /// There is an on-disk backlog.
    pub(super) is_behind: bool,
    /// The queue on disk; the outer `None` means not looked up yet.
    pub(super) disk: Option<Option<Arc<StoredQueue>>>,
    groups: &'a FxHashMap<NonZeroU64, Arc<Tally>>,
    pub(super) is_attached: bool,
    /// Attached by the connection that share groups chose.
    is_attached_for_groups: bool,
    pub(super) is_closed: bool,
    wire: Option<Wire>,
    /// Messages that go back to their publishers or groups.
    returned: &'a mut Vec<Delivery>,
}

/// How much the queue may hold.
pub(super) struct PushLimits<'a> {
    usual: &'a Limits,
    /// Limits for messages that are not stored; lower for a slow receiver.
    lower: &'a Limits,
    /// The receiver is slow.
    pub(super) is_spooling: bool,
    budget: &'a Budget,
    now: Instant,
}

/// What the batch causes beside its messages in the queue.
#[derive(Default)]
pub(super) struct Effects<'a> {
    /// Share group of the last refused shared message.
    refused: Option<NonZeroU64>,
    // Looked up and counted once for consecutive messages of one group.
    joined: Option<NonZeroU64>,
    tally: Option<&'a Tally>,
    given: u64,
    /// It added to the on-disk backlog.
    pub(super) spooled: bool,
    /// A QoS 1 or 2 message of no share group found no room, and was refused.
    pub(super) refuses_own: bool,
    /// The receiver is to be disconnected.
    is_too_slow: bool,
    /// Highest offset assigned on arrival to one of its messages.
    pub(super) placed_at: Option<Sequence>,
    pub(super) disk_work: DiskWork,
    pub(super) dropped_full: u64,
    /// The last bound by which such a message found no room.
    pub(super) full_by: Option<Bound>,
    dropped_offline: u64,
    taken_back: Booked,
}

impl Push<'_> {
    #[inline]
    fn single(&mut self, delivery: Delivery) {
        let acknowledged = delivery.qos.is_acknowledged();
        if !self.is_member(delivery.share) {
            self.give_back(delivery); // [MQTT-3.10.4-2]
        } else if self.target.is_closed || (!self.target.is_attached && !acknowledged) {
            self.effects.taken_back += Booked::of(&delivery);
            self.effects.dropped_offline += 1;
            self.target.queue.note_dropped(&delivery, DropReason::Offline);
            if delivery.stored.is_some() {
                self.complete_entry(&delivery);
            }
        } else if delivery.stored.is_some() || self.target.is_behind || self.limits.is_spooling {
            if let Some(delivery) = self.on_disk(delivery) {
                self.in_memory(delivery);
            }
        } else {
            self.in_memory(delivery);
        }
    }

    #[inline]
    fn in_memory(&mut self, delivery: Delivery) {
        let acknowledged = delivery.qos.is_acknowledged();
        if acknowledged && self.effects.refused.is_some() && self.effects.refused == delivery.share {
            self.refuse(delivery); // a smaller message could fit and overtake its predecessor
        } else if acknowledged && self.effects.refuses_own && delivery.share.is_none() {
            self.target.returned.push(delivery); // as above
        } else if self.limits.fit(&mut self.target, &delivery) {
            self.effects.given += 1;
            self.target.queue.append(delivery, self.target.reader());
        } else if acknowledged && delivery.share.is_some() {
            self.refuse(delivery);
        } else if let Some(delivery) = self.overflow(delivery) {
            if acknowledged {
                return self.refuse_own(delivery);
            }
            self.push_full(delivery);
        }
    }

    /// Adds a message of QoS 0 to a full queue, or drops it or others.
    #[cold]
    fn push_full(&mut self, delivery: Delivery) {
        let Self { target, limits, effects } = self;
        effects.given += 1;
        effects.is_too_slow |= limits.lower.when_full == WhenFull::Disconnect;
        let usual = limits.of(target.queue, &delivery);
        // A receiver that cannot spill keeps at least the newest messages.
        let when_full = match usual.when_full {
            WhenFull::Spool => WhenFull::DropOldest,
            when_full => when_full,
        };
        let full_by = usual.memory_bound(target.queue.usage(), delivery.queued_bytes());
        let full = Limits { when_full, ..*usual };
        let Dropped { messages, booked } =
            target.queue.push(delivery, target.reader(), &full, limits.budget, limits.now);
        effects.dropped_full += messages;
        if messages > 0 {
            effects.full_by = Some(full_by);
        }
        effects.taken_back += booked;
    }

    /// Whether a message that is or can be stored stays on disk for now.
    pub(super) fn goes_to_tail(&mut self, delivery: &Delivery) -> bool {
        let Self { target, limits, .. } = self;
        State::has_tail(target.spill.as_deref())
            || !target.is_attached
            || (limits.is_spooling && !target.queue.is_short())
            || !limits.fit(target, delivery)
    }

    fn give_back(&mut self, delivery: Delivery) {
        self.effects.taken_back += Booked::of(&delivery);
        self.target.returned.push(delivery);
    }

    #[cold]
    fn refuse(&mut self, delivery: Delivery) {
        self.effects.refused = delivery.share;
        self.give_back(delivery);
    }

    /// Returns a QoS 1 or 2 message of no share group to its publisher; those behind it will follow.
    #[cold]
    pub(super) fn refuse_own(&mut self, delivery: Delivery) {
        self.effects.refuses_own = true;
        self.target.returned.push(delivery);
    }

    /// Adds a run as a whole or as single messages.
    fn run(&mut self, run: Run, packets: &[u8]) {
        let Self { target, limits, .. } = self;
        // Packets for another connection are decoded again, and so are messages that have to follow an on-disk backlog.
        let is_apart = (limits.is_spooling || target.is_behind) && limits.lower.when_full == WhenFull::Spool;
        let is_for_us = target.wire == Some(run.wire) && target.is_attached && !target.is_closed && !is_apart;
        if is_for_us && self.is_member(run.share) && self.limits.fit_run(&self.target, &run) {
            self.effects.given += u64::from(run.messages);
            self.target.queue.append_run(run, packets);
        } else {
            run.deliveries(packets).for_each(|delivery| self.single(delivery));
        }
    }

    /// Whether the receiver is still a member of the group that chose it, if one did.
    #[inline]
    fn is_member(&mut self, share: Option<NonZeroU64>) -> bool {
        let Self { target, effects, .. } = self;
        if effects.joined != share {
            effects.count();
            let group = share.filter(|_| target.is_attached_for_groups);
            effects.tally = group.and_then(|group| target.groups.get(&group)).map(|tally| &**tally);
            effects.joined = group.filter(|_| effects.tally.is_some());
        }
        effects.joined == share
    }
}

impl Target<'_> {
    fn reader(&self) -> Reader {
        if self.is_attached { Reader::Present } else { Reader::Absent }
    }
}

impl<'a> PushLimits<'a> {
    #[inline]
    fn fit(&self, target: &mut Target<'_>, delivery: &Delivery) -> bool {
        let limits = self.of(target.queue, delivery);
        target.queue.fits(delivery, target.reader(), limits, self.budget, self.now)
    }

    fn fit_run(&self, target: &Target<'_>, run: &Run) -> bool {
        target.queue.fits_run(run, target.reader(), self.lower, self.budget)
    }

    /// Limits for a message.
    ///
    /// A slow receiver has less room for QoS 0, but always for one message. It also has less for shared messages, as
    /// other members can take them.
    #[inline]
    fn of(&self, queue: &Head, delivery: &Delivery) -> &'a Limits {
        if !self.is_spooling || usual_limits_hold(queue, delivery) { self.usual } else { self.lower }
    }
}

#[cold]
fn usual_limits_hold(queue: &Head, delivery: &Delivery) -> bool {
    delivery.share.is_none() && (delivery.qos.is_acknowledged() || !queue.has_unacknowledged())
}

impl Effects<'_> {
    /// Adds the messages given since the last call to the member's tally.
    fn count(&mut self) {
        let given = std::mem::take(&mut self.given);
        if let Some(tally) = self.tally.take() {
            tally.add(given);
        }
    }
}
