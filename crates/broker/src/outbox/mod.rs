//! The bounded queue of one session: filled by publishers' tasks, emptied by the task that owns the session's
//! connection.

mod batch;
mod booked;
mod budget;
mod concerns;
mod connection;
#[cfg(test)]
mod for_tests;
mod health;
mod kept_back;
mod lane;
mod pace;
mod passing;
mod push;
mod queue;
mod runs;
mod spares;
mod tail;
mod tally;
mod when_full;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use rustc_hash::FxHashMap;
use tenbin_balancer::{Availability, MemberLoad};
use tenbin_session::Delivery;

pub(crate) use batch::{Batch, Entry};
pub(crate) use booked::Booked;
pub(crate) use budget::Budget;
pub(crate) use concerns::{Concerns, NotRetained};
pub(crate) use health::{Health, Pace, Sample, Transition};
pub(crate) use kept_back::Line;
pub(crate) use queue::{Queue, Reader};
pub(crate) use runs::{Run, Wire};
pub(crate) use tally::Tally;
pub use when_full::WhenFull;

use pace::Behaviour;

use crate::clock::Clock;
use crate::durable::{Durable, StoredQueue, Tail};
use crate::memory::Account;
use crate::metrics::Metrics;

/// Messages that wait for one client.
///
/// One lock operation and at most one wake-up for each batch that a publisher pushes; the receiver takes whole
/// batches. The lock is held for moving messages only, never across a wait, and no other lock is taken under it, but that
/// of session numbers where a queue on disk is made.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    common: Arc<OutboxCommon>,
    /// Told when the queue is full, has room again, and who is online: `pick` passes over who is not ready.
    load: Arc<MemberLoad>,
    /// The client's Maximum Packet Size in bytes. Written when a connection begins, read by publishers who choose
    /// among members; relaxed, for the connection judges by itself again.
    packet_bytes_maximum: AtomicU32,
    /// Which connection there is, or was last, and in what form it takes packets as they are, if it does:
    /// [`Outbox::connection`], [`Outbox::wire`]. Written under the lock, read by publishers for a hint: what they made of it
    /// is checked under the lock. Release and acquire: who knows of the connection knows its Maximum Packet Size, by which
    /// nobody else judges packets.
    wire: AtomicU64,
    /// The queue was full and has room since the last [`Outbox::take_room_again`]. Written and read by the receiver's
    /// task alone; relaxed.
    has_room_again: AtomicBool,
    /// Something waits for a member of share groups, who cannot be sent it now. Written by the receiver's task, read by
    /// it and by publishers, both under the lock or for a hint; relaxed.
    keeps_back: AtomicBool,
    /// Nothing waits, nothing is asked of the receiver, and its task is woken where that changes. Written under the lock,
    /// read by the receiver's task, which needs no lock then. Relaxed: who writes `false` wakes the task, which orders the
    /// two, or need not, since nothing can go; then the task sees it when that changes, by the lock of
    /// [`Outbox::set_socket_blocked`], or looks anyway, since its quota is another.
    at_rest: AtomicBool,
    /// Where messages for the session are on disk, if they are: kept, or passing through: see `passing`. Changed while there is
    /// no connection, or under the lock.
    stored: ArcSwapOption<StoredQueue>,
    /// Of all that is kept for the client beside its messages; `None` = of nobody. Changed with the session's owner, before a
    /// connection begins.
    account: ArcSwapOption<Account>,
    /// Something waits on disk alone. Written under the lock, read by anybody for a hint; relaxed.
    has_tail: AtomicBool,
    /// More waits, there or in memory, than may: QoS 1 and 2 messages are to be refused. Written and read as `has_tail`.
    is_over_quota: AtomicBool,
    /// QoS 0 messages are stored too: the receiver is slow, and has to get them in order. Written and read as `has_tail`.
    keeps_unacknowledged: AtomicBool,
    /// Whoever looks after slow receivers looks after this one. Written by the receiver's task and by who looks; the latter
    /// clears it under the lock. Relaxed.
    is_watched: AtomicBool,
    /// Much was left in the queue when the receiver had taken from it. Written and read as `is_watched`.
    lags: AtomicBool,
    /// Who looks after slow receivers was told that the queue is nearly full. Written under the lock; relaxed.
    is_alarmed: AtomicBool,
}

/// What all queues of a broker have in common.
#[derive(Debug)]
pub(crate) struct OutboxCommon {
    /// Of each queue.
    pub(crate) limits: OutboxLimits,
    /// Of all together.
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) concerns: Arc<Concerns>,
    /// Where messages for slow receivers go.
    pub(crate) durable: Option<Arc<Durable>>,
}

/// Bounds of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboxLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) when_full: WhenFull,
    /// On disk.
    pub(crate) stored_bytes: u64,
    /// There is a disk for what waits for slow receivers.
    pub(crate) has_store: bool,
}

/// What the owner of the connection is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Another connection of the same client id is there `[MQTT-3.1.4-3]`.
    TakenOver,
    /// The broker stops.
    ShuttingDown,
    /// The client takes messages more slowly than they come, and is to be disconnected for that.
    TooSlow,
    /// Rights have changed; void where something else is asked for.
    RightsChanged,
}

/// What [`Outbox::poll_take`] took out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Messages are in the caller's batch.
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
    /// What waits on disk alone. Boxed, as whatever most clients have nothing of.
    tail: Option<Box<Tail>>,
    attached: bool,
    /// Connections so far.
    connection: u32,
    wire: Option<Wire>,
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
    /// How the receiver keeps up.
    behaviour: Behaviour,
    /// QoS 1 and 2 messages that are not stored have found no room.
    is_stuffed: bool,
    /// Bytes that were not in the socket when it was blocked.
    unsent_bytes: usize,
    /// Bytes under way to a client that is away, as the budget knows them.
    under_way_bytes: usize,
}

impl Outbox {
    pub(crate) fn new(common: Arc<OutboxCommon>, load: Arc<MemberLoad>) -> Self {
        load.set_availability(Availability::Offline);
        let packet_bytes_maximum = AtomicU32::new(u32::MAX);
        let [has_room_again, keeps_back, at_rest, has_tail, is_over_quota] =
            std::array::from_fn(|_| AtomicBool::new(false));
        let [keeps_unacknowledged, is_watched, lags, is_alarmed] = std::array::from_fn(|_| AtomicBool::new(false));
        let (state, stored) = (Mutex::default(), ArcSwapOption::empty());
        let wire = AtomicU64::new(0);
        Self {
            state,
            common,
            load,
            packet_bytes_maximum,
            wire,
            has_room_again,
            keeps_back,
            at_rest,
            stored,
            account: ArcSwapOption::empty(),
            has_tail,
            is_over_quota,
            keeps_unacknowledged,
            is_watched,
            lags,
            is_alarmed,
        }
    }

    /// The account of all that is kept for the client.
    pub(crate) fn account(&self) -> Option<Arc<Account>> {
        self.account.load_full()
    }

    /// What is kept for the client is charged there from now on.
    pub(crate) fn charge_to(&self, account: &Arc<Account>) {
        self.account.store(Some(Arc::clone(account)));
        self.state().tail.iter_mut().for_each(|tail| tail.move_to(account));
    }

    /// Receiver: tells whether its socket takes no more, so that nobody waits for it, and how many bytes are not in it.
    pub(crate) fn set_socket_blocked(&self, blocked: bool, unsent_bytes: usize) {
        let mut state = self.state();
        state.socket_blocked = blocked;
        state.unsent_bytes = if blocked { unsent_bytes } else { 0 };
    }

    /// Receiver: takes what waits, oldest first: QoS 0 always, QoS 1 and 2 as far as `quota` goes, in all about
    /// `bytes`. `Pending` when there is nothing that may go; the task is woken when there is.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        quota: usize,
        bytes: usize,
        into: &mut Batch,
    ) -> Poll<Taken> {
        let mut state = self.state();
        if let Some(control) = state.control.take() {
            return Poll::Ready(Taken::Control(control));
        }
        state.quota_blocked = quota == 0;
        let acknowledged = state.queue.acknowledged();
        state.queue.take(quota, bytes, into, &self.common.budget);
        state.quota_left = quota.saturating_sub(acknowledged);
        self.set_keeps_back(state.has_shared_work());
        if state.queue.bytes() > LAGS_FROM_BYTES {
            self.lags.store(true, Ordering::Relaxed);
        }
        if (self.load.availability() == Availability::Full || state.is_stuffed)
            && state.queue.has_room(&self.common.limits)
            && state.tail.is_none()
        {
            self.has_room(&mut state);
        }
        if into.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                waker => *waker = Some(context.waker().clone()),
            }
            self.at_rest.store(state.queue.is_empty(), Ordering::Relaxed);
            return Poll::Pending;
        }
        Poll::Ready(Taken::Deliveries)
    }

    /// There is room again.
    #[cold]
    fn has_room(&self, state: &mut State) {
        if std::mem::take(&mut state.is_stuffed) {
            self.tell_quota(state);
        }
        if self.load.availability() == Availability::Full && state.behaviour.pace == Pace::Normal {
            self.load.set_availability(Availability::Ready);
            self.has_room_again.store(true, Ordering::Relaxed);
        }
    }

    /// Receiver: whether [`Outbox::poll_take`] would find nothing, as it has the last time, and the same task is to be
    /// woken.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed) && !self.has_tail()
    }

    /// Receiver: as [`Outbox::poll_take`], without waiting and without heed of what it is asked for.
    pub(crate) fn take_now(&self, quota: usize, bytes: usize, into: &mut Batch) {
        self.state().queue.take(quota, bytes, into, &self.common.budget);
    }

    /// Receiver: whether the queue was full and has got room: share groups may have kept messages meanwhile.
    pub(crate) fn take_room_again(&self) -> bool {
        self.has_room_again.load(Ordering::Relaxed) && self.has_room_again.swap(false, Ordering::Relaxed)
    }

    /// Puts back what was taken and could not be sent, in front of the queue.
    pub(crate) fn put_back(&self, deliveries: impl DoubleEndedIterator<Item = Delivery>) {
        let mut state = self.state();
        deliveries.rev().for_each(|delivery| state.queue.push_front(delivery, &self.common.budget));
        self.at_rest.store(false, Ordering::Relaxed);
    }

    /// Asks the connection's owner for something.
    pub(crate) fn control(&self, control: Control) {
        let mut state = self.state();
        if control != Control::RightsChanged || state.control.is_none() {
            state.control = Some(control);
        }
        self.at_rest.store(false, Ordering::Relaxed);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
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

    /// Takes the messages out that `unwanted` names.
    pub(crate) fn withdraw(&self, unwanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        self.withdraw_by(|_| unwanted)
    }

    /// Takes the messages out that are named by what `judge` says, which looks at all that wait; none comes in or goes
    /// out meanwhile.
    pub(crate) fn withdraw_by<W: Fn(&Delivery) -> bool>(&self, judge: impl FnOnce(&Queue) -> W) -> Vec<Delivery> {
        let withdrawn = {
            let mut state = self.state();
            state.queue.split_runs();
            let unwanted = judge(&state.queue);
            state.queue.withdraw(unwanted, &self.common.budget)
        };
        self.take_back(withdrawn.iter().map(Booked::of).sum());
        withdrawn
    }

    /// What share groups gave to this member and will not be sent to it.
    fn take_back(&self, booked: Booked) {
        if !booked.is_nothing() {
            booked.take_back(&self.load, self.common.clock.nanos(Instant::now()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves at worst a message out; the queue itself stays sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A receiver that leaves more than this in its queue lags.
const LAGS_FROM_BYTES: usize = 32 * 1024;

impl Drop for Outbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
