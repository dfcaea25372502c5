//! The bounded queue of one session: filled by publishers' tasks, emptied by the task that owns the session's
//! connection.

mod booked;
mod budget;
mod kept_back;
mod queue;
mod tally;
mod when_full;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_balancer::{Availability, MemberLoad};
use tenbin_session::Delivery;

pub(crate) use booked::Booked;
pub(crate) use budget::Budget;
pub(crate) use kept_back::Line;
pub(crate) use queue::{Queue, Reader};
pub(crate) use tally::Tally;
pub use when_full::WhenFull;

use crate::clock::Clock;
use crate::metrics::Metrics;

/// Messages that wait for one client.
///
/// One lock operation and at most one wake-up for each batch that a publisher pushes; the receiver takes whole
/// batches. The lock is held for moving messages only, never across a wait, and no other lock is taken under it.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    limits: OutboxLimits,
    /// Told when the queue is full, has room again, and who is online: `pick` passes over who is not ready.
    load: Arc<MemberLoad>,
    budget: Arc<Budget>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// The client's Maximum Packet Size in bytes. Written when a connection begins, read by publishers who choose
    /// among members; relaxed, for the connection judges by itself again.
    packet_bytes_maximum: AtomicU32,
    /// The queue was full and has room since the last [`Outbox::take_room_again`]. Written and read by the receiver's
    /// task alone; relaxed.
    has_room_again: AtomicBool,
    /// Something waits for a member of share groups, who cannot be sent it now. Written by the receiver's task, read by
    /// it and by publishers, both under the lock or for a hint; relaxed.
    keeps_back: AtomicBool,
}

/// Bounds of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboxLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) when_full: WhenFull,
}

/// What the owner of the connection is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Another connection of the same client id is there `[MQTT-3.1.4-3]`.
    TakenOver,
    /// The broker stops.
    ShuttingDown,
    /// Rights have changed; void where something else is asked for.
    RightsChanged,
}

/// What [`Outbox::poll_take`] took out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Messages are in the caller's vector.
    Deliveries,
    /// To be obeyed before anything else.
    Control(Control),
}

/// What a publisher learns from a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// Go on.
    None,
    /// The receiver needs to run.
    Lags,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    attached: bool,
    /// The session is over: nobody will ever read.
    closed: bool,
    /// Share groups that the client is a member of, by the number that [`Delivery::share`] names, and what it has got
    /// of them.
    groups: FxHashMap<NonZeroU64, Arc<Tally>>,
    /// The receiver's socket takes no more; it is woken by the socket.
    socket_blocked: bool,
    /// The receiver has no send quota left; it is woken by an acknowledgement.
    quota_blocked: bool,
    /// QoS 1 and 2 messages that could be sent to it besides those that wait, when it looked last.
    quota_left: usize,
    control: Option<Control>,
    waker: Option<Waker>,
}

impl Outbox {
    pub(crate) fn new(
        limits: OutboxLimits,
        load: Arc<MemberLoad>,
        budget: Arc<Budget>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        load.set_availability(Availability::Offline);
        let packet_bytes_maximum = AtomicU32::new(u32::MAX);
        let (has_room_again, keeps_back) = (AtomicBool::new(false), AtomicBool::new(false));
        let state = Mutex::default();
        Self { state, limits, load, budget, metrics, clock, packet_bytes_maximum, has_room_again, keeps_back }
    }

    /// Puts `deliveries` in, in order, and wakes the receiver once. What finds no room is dropped as
    /// [`WhenFull`] says, and counted; QoS 0 does not wait for a client that is not connected.
    ///
    /// Tells whether the receiver lags though its socket takes what it writes: then it wants processor time, and
    /// a publisher that gives some is the better one.
    ///
    /// What a share group meant for this member and it cannot take goes to `returned`, for another member: all of
    /// it if the client is not connected or has left the group since it was chosen, QoS 1 and 2 if the queue is
    /// full.
    pub(crate) fn push(&self, deliveries: &mut Vec<Delivery>, returned: &mut Vec<Delivery>, now: Instant) -> Pressure {
        let mut guard = self.state();
        let state = &mut *guard;
        let reader = if state.attached { Reader::Present } else { Reader::Absent };
        let mut dropped_full = 0;
        let mut dropped_offline = 0;
        let mut taken_back = Booked::NOTHING;
        let mut has_refused = false;
        // Looked up, and counted, once for the messages of one group that follow each other.
        let mut joined = None;
        let mut tally: Option<&Tally> = None;
        let mut given = 0;
        for delivery in deliveries.drain(..) {
            let acknowledged = delivery.qos.is_acknowledged();
            if joined != delivery.share {
                count(tally.take(), &mut given);
                let group = delivery.share.filter(|_| state.attached);
                tally = group.and_then(|group| state.groups.get(&group)).map(|tally| &**tally);
                joined = group.filter(|_| tally.is_some());
            }
            if joined != delivery.share {
                taken_back += Booked::of(&delivery);
                returned.push(delivery); // [MQTT-3.10.4-2]
            } else if state.closed || (!state.attached && !acknowledged) {
                taken_back += Booked::of(&delivery);
                dropped_offline += 1;
            } else if state.queue.fits(&delivery, reader, &self.limits, &self.budget, now) {
                given += 1;
                state.queue.append(delivery, reader);
            } else if acknowledged && delivery.share.is_some() {
                has_refused = true;
                taken_back += Booked::of(&delivery);
                returned.push(delivery);
            } else {
                given += 1;
                let dropped = state.queue.push(delivery, reader, &self.limits, &self.budget, now);
                dropped_full += dropped.messages;
                taken_back += dropped.booked;
            }
        }
        count(tally, &mut given);
        let expired = state.queue.take_expired();
        taken_back += expired.booked;
        state.queue.settle(&self.budget);
        // Who refuses one, be it for the budget's sake, tells when it has taken something: the group keeps it until then.
        let is_full = state.queue.is_nearly_full(&self.limits) || (has_refused && !state.queue.is_empty());
        if state.attached && is_full {
            self.load.set_availability(Availability::Full);
        }
        let can_go = state.queue.has_unacknowledged() || (!state.queue.is_empty() && !state.quota_blocked);
        let goes_out = can_go && !state.socket_blocked;
        // Else once, that the receiver looks after what others could do meanwhile.
        let is_wanted = goes_out || (state.has_shared_work() && !self.keeps_back());
        let waker = if is_wanted { state.waker.take() } else { None };
        let lags = state.attached && !state.socket_blocked && state.queue.len() > self.limits.messages / 4;
        drop(guard);
        if let Some(waker) = waker {
            waker.wake();
        }
        if !taken_back.is_nothing() {
            taken_back.take_back(&self.load, self.clock.nanos(now));
        }
        self.metrics.dropped_queue_full.add(dropped_full);
        self.metrics.dropped_offline.add(dropped_offline);
        self.metrics.dropped_expired.add(expired.messages);
        if lags { Pressure::Lags } else { Pressure::None }
    }

    /// Receiver: tells whether its socket takes no more, so that nobody waits for it.
    pub(crate) fn set_socket_blocked(&self, blocked: bool) {
        self.state().socket_blocked = blocked;
    }

    /// Receiver: takes what waits, oldest first: QoS 0 always, QoS 1 and 2 as far as `quota` goes, in all about
    /// `bytes`. `Pending` when there is nothing that may go; the task is woken when there is.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        quota: usize,
        bytes: usize,
        into: &mut Vec<Delivery>,
    ) -> Poll<Taken> {
        let mut state = self.state();
        if let Some(control) = state.control.take() {
            return Poll::Ready(Taken::Control(control));
        }
        state.quota_blocked = quota == 0;
        let acknowledged = state.queue.acknowledged();
        state.queue.take(quota, bytes, into, &self.budget);
        state.quota_left = quota.saturating_sub(acknowledged);
        self.set_keeps_back(state.has_shared_work());
        if self.load.availability() == Availability::Full && state.queue.has_room(&self.limits) {
            self.load.set_availability(Availability::Ready);
            self.has_room_again.store(true, Ordering::Relaxed);
        }
        if into.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                waker => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(Taken::Deliveries)
    }

    /// Receiver: as [`Outbox::poll_take`], without waiting and without heed of what it is asked for.
    pub(crate) fn take_now(&self, quota: usize, bytes: usize, into: &mut Vec<Delivery>) {
        self.state().queue.take(quota, bytes, into, &self.budget);
    }

    /// Receiver: whether the queue was full and has got room: share groups may have kept messages meanwhile.
    pub(crate) fn take_room_again(&self) -> bool {
        self.has_room_again.load(Ordering::Relaxed) && self.has_room_again.swap(false, Ordering::Relaxed)
    }

    /// Puts back what was taken and could not be sent, in front of the queue.
    pub(crate) fn put_back(&self, deliveries: impl DoubleEndedIterator<Item = Delivery>) {
        let mut state = self.state();
        deliveries.rev().for_each(|delivery| state.queue.push_front(delivery, &self.budget));
    }

    /// Asks the connection's owner for something.
    pub(crate) fn control(&self, control: Control) {
        let mut state = self.state();
        if control != Control::RightsChanged || state.control.is_none() {
            state.control = Some(control);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A connection begins; what was asked of an earlier one is void.
    pub(crate) fn attach(&self, packet_bytes_maximum: u32) {
        self.packet_bytes_maximum.store(packet_bytes_maximum, Ordering::Relaxed);
        let mut state = self.state();
        state.attached = true;
        state.socket_blocked = false;
        state.quota_blocked = false;
        state.quota_left = 0;
        state.control = None;
        let is_full = state.queue.is_nearly_full(&self.limits);
        self.load.set_availability(if is_full { Availability::Full } else { Availability::Ready });
    }

    /// Whether the client takes a packet of so many bytes.
    pub(crate) fn takes(&self, packet_bytes: usize) -> bool {
        let maximum = self.packet_bytes_maximum.load(Ordering::Relaxed);
        maximum == u32::MAX || packet_bytes <= maximum as usize
    }

    /// The client becomes a member of a share group, which counts what it gets with `tally`. To be called before it can
    /// be chosen.
    pub(crate) fn join_group(&self, group: NonZeroU64, tally: Arc<Tally>) {
        self.state().groups.insert(group, tally);
    }

    /// The share groups that the client is a member of.
    pub(crate) fn groups(&self) -> Vec<NonZeroU64> {
        self.state().groups.keys().copied().collect()
    }

    /// The client has left a share group: whoever chose it before gets the message back. What waits already stays.
    pub(crate) fn leave_group(&self, group: NonZeroU64) {
        self.state().groups.remove(&group);
    }

    /// The connection is over. What share groups meant for this member is given back, for others. Of the rest,
    /// QoS 0 messages go, and QoS 1 and 2 wait for the next connection and no longer keep read buffers alive.
    pub(crate) fn detach(&self) -> Vec<Delivery> {
        let mut state = self.state();
        state.attached = false;
        state.control = None;
        state.waker = None;
        let shared = state.queue.withdraw_shared(&self.budget);
        let dropped = state.queue.drop_unacknowledged(&self.budget);
        self.load.set_availability(Availability::Offline);
        drop(state);
        self.metrics.dropped_offline.add(dropped.messages);
        self.take_back(shared.iter().map(Booked::of).sum::<Booked>() + dropped.booked);
        shared
    }

    /// Takes the messages out that `unwanted` names.
    pub(crate) fn withdraw(&self, unwanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        self.withdraw_by(|_| unwanted)
    }

    /// Takes the messages out that are named by what `judge` says, which looks at all that wait; none comes in or goes
    /// out meanwhile.
    pub(crate) fn withdraw_by<W: Fn(&Delivery) -> bool>(&self, judge: impl FnOnce(&Queue) -> W) -> Vec<Delivery> {
        let withdrawn = {
            let mut state = self.state();
            let unwanted = judge(&state.queue);
            state.queue.withdraw(unwanted, &self.budget)
        };
        self.take_back(withdrawn.iter().map(Booked::of).sum());
        withdrawn
    }

    /// Forgets everything that waits: the session begins anew.
    pub(crate) fn clear(&self) {
        let dropped = self.state().queue.clear(&self.budget);
        self.metrics.dropped_offline.add(dropped.messages);
        self.take_back(dropped.booked);
    }

    /// The session is over: what waits is dropped, and so is what still comes from publishers that chose it before.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.clear();
    }

    /// What share groups gave to this member and will not be sent to it.
    fn take_back(&self, booked: Booked) {
        if !booked.is_nothing() {
            booked.take_back(&self.load, self.clock.nanos(Instant::now()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves at worst a message out; the queue itself stays sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what was given, if to a member.
fn count(tally: Option<&Tally>, given: &mut u64) {
    let given = std::mem::take(given);
    if let Some(tally) = tally {
        tally.add(given);
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
