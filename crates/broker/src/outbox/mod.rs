//! The bounded queue of one session: filled by publishers' tasks, emptied by the task that owns the session's
//! connection.

mod budget;
mod queue;
mod when_full;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenbin_balancer::{Availability, MemberLoad};
use tenbin_session::Delivery;

pub(crate) use budget::Budget;
use queue::Queue;
pub use when_full::WhenFull;

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
    socket_blocked: bool,
    control: Option<Control>,
    waker: Option<Waker>,
}

impl Outbox {
    pub(crate) fn new(limits: OutboxLimits, load: Arc<MemberLoad>, budget: Arc<Budget>, metrics: Arc<Metrics>) -> Self {
        load.set_availability(Availability::Offline);
        Self { state: Mutex::default(), limits, load, budget, metrics }
    }

    /// Puts `deliveries` in, in order, and wakes the receiver once. What finds no room is dropped as
    /// [`WhenFull`] says, and counted; QoS 0 does not wait for a client that is not connected.
    ///
    /// Tells whether the receiver lags though its socket takes what it writes: then it wants processor time, and
    /// a publisher that gives some is the better one.
    pub(crate) fn push(&self, deliveries: &mut Vec<Delivery>) -> Pressure {
        let mut state = self.state();
        let mut dropped_full = 0;
        let mut dropped_offline = 0;
        for delivery in deliveries.drain(..) {
            if !state.attached && !delivery.qos.is_acknowledged() {
                dropped_offline += 1;
                continue;
            }
            dropped_full += state.queue.push(delivery, &self.limits, &self.budget);
        }
        if dropped_full > 0 && state.attached {
            self.load.set_availability(Availability::Full);
        }
        // One whose socket takes no more is woken by the socket.
        let wakes = !state.queue.is_empty() && !state.socket_blocked;
        let waker = if wakes { state.waker.take() } else { None };
        let lags = state.attached && !state.socket_blocked && state.queue.len() > self.limits.messages / 4;
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.metrics.dropped_queue_full.add(dropped_full);
        self.metrics.dropped_offline.add(dropped_offline);
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
        state.queue.take(quota, bytes, into, &self.budget);
        if into.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                waker => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        if self.load.availability() == Availability::Full && state.queue.has_room(&self.limits) {
            self.load.set_availability(Availability::Ready);
        }
        Poll::Ready(Taken::Deliveries)
    }

    /// Receiver: as [`Outbox::poll_take`], without waiting and without heed of what it is asked for.
    pub(crate) fn take_now(&self, quota: usize, bytes: usize, into: &mut Vec<Delivery>) {
        self.state().queue.take(quota, bytes, into, &self.budget);
    }

    /// Puts back what was taken and could not be sent, in front of the queue.
    pub(crate) fn put_back(&self, deliveries: impl DoubleEndedIterator<Item = Delivery>) {
        let mut state = self.state();
        deliveries.rev().for_each(|delivery| state.queue.push_front(delivery, &self.budget));
    }

    /// Asks the connection's owner for something.
    pub(crate) fn control(&self, control: Control) {
        let mut state = self.state();
        state.control = Some(control);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A connection begins; what was asked of an earlier one is void.
    pub(crate) fn attach(&self) {
        let mut state = self.state();
        state.attached = true;
        state.socket_blocked = false;
        state.control = None;
        self.load.set_availability(Availability::Ready);
    }

    /// The connection is over. QoS 0 messages go, the others wait for the next connection and no longer keep
    /// read buffers alive.
    pub(crate) fn detach(&self) {
        let mut state = self.state();
        state.attached = false;
        state.control = None;
        state.waker = None;
        let dropped = state.queue.drop_unacknowledged(&self.budget);
        self.load.set_availability(Availability::Offline);
        drop(state);
        self.metrics.dropped_offline.add(dropped);
    }

    /// Forgets everything that waits: the session is over.
    pub(crate) fn clear(&self) {
        self.state().queue.clear(&self.budget);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves at worst a message out; the queue itself stays sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
