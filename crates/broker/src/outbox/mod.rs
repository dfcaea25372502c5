//! The bounded queue of one session: filled by publishers' tasks, emptied by the task that owns the session's
//! connection.

mod backlogs;
mod blocked;
mod concerns;
mod connection;
mod consumer;
#[cfg(test)]
mod for_tests;
mod health;
mod hints;
mod pace;
mod push;
mod spill;
mod sync;
mod tail;
mod tally;
mod view;
mod withheld;

use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use rustc_hash::FxHashMap;
use tenbin_balancer::{Availability, MemberLoad};
use tenbin_codec::{ReasonCode, Text};
use tenbin_session::Delivery;

#[cfg(test)]
pub(crate) use backlogs::FORGOTTEN_AFTER;
pub(crate) use backlogs::Look;
pub(crate) use blocked::NumberSpan;
pub(crate) use concerns::{Concerns, Refusals};
pub(crate) use health::{Health, Pace, Sample, Transition};
pub(crate) use tally::Tally;

use backlogs::Backlogs;
use consumer::Consumer;
use hints::{Hint, Hints};
use sync::{AtomicU32, Mutex, MutexGuard};
use withheld::Withheld;

pub(crate) use crate::backlog::{Batch, Booked, Budget, Entry, Head, Limits, Reader, Run, Wire};
use crate::backlog::{DroppedNames, Spill};
use crate::durable::{Durable, StoredQueue};
use crate::hooks::{Events, HookSet};
use crate::memory::Account;
use crate::metrics::Metrics;
use crate::values::{Clock, WhenFull};

/// Bounded queue of messages for one client.
///
/// A publisher's batch costs one lock operation and at most one wake-up; the receiver takes whole batches. The lock is
/// held only to move messages, never across an await. No other lock is taken under it, except that of session numbers
/// when a queue on disk is made.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    common: Arc<OutboxCommon>,
    /// Availability of the client for share groups: offline, ready or full. `pick` passes over members that are not
    /// ready.
    load: Arc<MemberLoad>,
    /// The client's Maximum Packet Size in bytes. Written when a connection begins, read by publishers that choose
    /// among members. Relaxed: the connection checks the size again.
    packet_bytes_maximum: AtomicU32,
    hints: Hints,
    /// The session's queue on disk, if any: persistent or for transient spill, see `spill`. Changed without a
    /// connection or under the lock.
    stored: ArcSwapOption<StoredQueue>,
    /// Account for all memory of the client except its messages; `None` = not charged. Changed with the session's
    /// owner, before a connection begins.
    account: ArcSwapOption<Account>,
}

/// Values shared by all queues of a broker.
#[derive(Debug, Clone)]
pub(crate) struct OutboxCommon {
    /// Limits of each queue.
    pub(crate) limits: Limits,
    /// Bound of all queues together.
    pub(crate) budget: Arc<Budget>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) concerns: Arc<Concerns>,
    /// Disk for slow receivers' messages.
    pub(crate) durable: Option<Arc<Durable>>,
    pub(crate) hooks: Arc<HookSet>,
}

/// Request to the owner of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Another connection uses the same Client Identifier `[MQTT-3.1.4-3]`.
    TakenOver,
    /// The broker stops.
    ShuttingDown,
    /// The client takes messages more slowly than they come and is to be disconnected.
    TooSlow,
    /// The client is to use another node of the cluster. Any request but [`Control::Asked`] supersedes this one; the
    /// slow-consumer monitor asks again later.
    Moved,
    /// An operator ends the connection.
    Kicked(ReasonCode),
    /// Permissions have changed. Requests that end the connection supersede this one.
    RightsChanged,
    /// An operator asks for the session's figures. Any other request supersedes this one; its receiver has to answer, unless
    /// the connection ends.
    Asked,
}

impl Control {
    /// A request gives way to requests of the same rank and of higher ranks.
    fn rank(self) -> u8 {
        match self {
            Self::Asked => 0,
            Self::Moved => 1,
            Self::RightsChanged => 2,
            _ => 3,
        }
    }
}

/// Result of [`Outbox::poll_take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Messages are in the caller's batch.
    Deliveries,
    /// A request that takes precedence over everything else.
    Control(Control),
}

/// Back pressure on a publisher after a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// No back pressure.
    None,
    /// The receiver needs processor time.
    Lags,
}

#[derive(Debug, Default)]
struct State {
    queue: Head,
    /// On-disk backlog. Boxed because most clients have none.
    spill: Option<Box<Spill>>,
    /// Messages that the connected receiver may not get at present. Boxed as above.
    withheld: Option<Box<Withheld>>,
    consumer: Consumer,
    /// Share groups of the client, by the number in [`Delivery::share`], with the messages that each gave it.
    groups: FxHashMap<NonZeroU64, Arc<Tally>>,
    /// Those of them that may have a backlog; boxed, since most clients have none.
    backlogs: Option<Box<Backlogs>>,
    /// Send quota that the queued QoS 1 and 2 messages left over at the receiver's last take.
    quota_left: u32,
    control: Option<Control>,
    waker: Option<Waker>,
    /// QoS 1 and 2 messages that are not stored found no room: the queue is over limit.
    is_stuffed: bool,
    /// The slow-consumer monitor knows that the queue is nearly full.
    is_alarmed: bool,
    /// Bytes not yet written to the socket when it became full.
    unsent_bytes: usize,
    /// Bytes in flight to a disconnected client, as reported to the budget.
    under_way_bytes: usize,
}

impl Outbox {
    pub(crate) fn new(common: Arc<OutboxCommon>, load: Arc<MemberLoad>) -> Self {
        load.set_availability(Availability::Offline);
        Self {
            state: Mutex::default(),
            common,
            load,
            packet_bytes_maximum: AtomicU32::new(u32::MAX),
            hints: Hints::default(),
            stored: ArcSwapOption::empty(),
            account: ArcSwapOption::empty(),
        }
    }

    /// Names the client for hooks, if these ask for dropped messages.
    #[must_use]
    pub(crate) fn of_client(self, client_id: &Text) -> Self {
        if self.common.hooks.has(Events::DROPPED) {
            self.state().queue.name_dropped(DroppedNames::of_client(client_id.clone()));
        }
        self
    }

    /// Tells hooks of dropped messages. Call it without the lock.
    #[inline]
    fn tell_dropped(&self, names: Option<Box<DroppedNames>>) {
        if let Some(names) = names {
            names.tell(&self.common.hooks);
        }
    }

    /// Account for all memory of the client except its messages.
    pub(crate) fn account(&self) -> Option<Arc<Account>> {
        self.account.load_full()
    }

    /// Charges memory for the client to `account` from now on.
    pub(crate) fn charge_to(&self, account: &Arc<Account>) {
        self.account.store(Some(Arc::clone(account)));
        if let Some(spill) = &mut self.state().spill {
            spill.entries.move_to(account);
        }
    }

    /// Receiver: records whether its socket is full, so that publishers do not wait for it, and how many bytes are
    /// unsent.
    pub(crate) fn set_socket_blocked(&self, blocked: bool, unsent_bytes: usize) {
        let mut state = self.state();
        state.consumer.blocked.socket = blocked;
        state.unsent_bytes = if blocked { unsent_bytes } else { 0 };
    }

    /// Receiver: takes about `bytes` of messages, oldest first: QoS 0 always, QoS 1 and 2 up to `quota`.
    ///
    /// Returns `Pending` if no message can be sent, and wakes the task when one can.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        quota: usize,
        bytes: usize,
        into: &mut Batch,
    ) -> Poll<Taken> {
        self.poll_take_unless(context, quota, bytes, into, |_| false)
    }

    /// As [`Outbox::poll_take`], but takes nothing and returns [`Control::RightsChanged`] if `are_rights_other`, which
    /// gets whether messages are withheld. Withheld messages may be allowed again, and must precede newer ones.
    #[inline(always)] // once for each lap; an inbox of the program is the only other caller
    pub(crate) fn poll_take_unless(
        &self,
        context: &mut Context<'_>,
        quota: usize,
        bytes: usize,
        into: &mut Batch,
        are_rights_other: impl FnOnce(bool) -> bool,
    ) -> Poll<Taken> {
        let mut state = self.state();
        // Under the lock: newer messages that the changed rights allow join the queue after the change.
        let changed = |state: &State| are_rights_other(state.withheld.is_some()).then_some(Control::RightsChanged);
        if let Some(control) = state.control.take().or_else(|| changed(&state)) {
            return Poll::Ready(Taken::Control(control));
        }
        state.consumer.blocked.quota = quota == 0;
        let acknowledged = state.queue.acknowledged();
        state.queue.take(quota, bytes, into, &self.common.budget);
        state.quota_left = quota.saturating_sub(acknowledged) as u32; // a session's quota has 16 bits
        self.hints.put(Hint::KEEPS_BACK, state.has_shared_work());
        if state.queue.bytes() > LAGS_FROM_BYTES {
            self.hints.put(Hint::LAGS, true);
        }
        if (self.load.availability() == Availability::Full || state.is_stuffed)
            && self.common.limits.has_room_again(&state.queue)
            && state.spill.is_none()
        {
            self.has_room(&mut state);
        }
        if into.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                waker => *waker = Some(context.waker().clone()),
            }
            self.hints.put(Hint::AT_REST, state.queue.is_empty());
            return Poll::Pending;
        }
        Poll::Ready(Taken::Deliveries)
    }

    /// Makes the receiver available again after its queue was full.
    #[cold]
    fn has_room(&self, state: &mut State) {
        if std::mem::take(&mut state.is_stuffed) {
            self.publish(state);
        }
        if self.load.availability() == Availability::Full && state.consumer.keeps_up() {
            self.load.set_availability(Availability::Ready);
            self.look_at_backlogs(state);
        }
    }

    /// Lets the receiver's task look at the backlogs of all its share groups.
    fn look_at_backlogs(&self, state: &mut State) {
        if let Some(backlogs) = &mut state.backlogs {
            backlogs.begin_round();
        }
        self.hints.set(Hint::HAS_ROOM_AGAIN);
    }

    /// Receiver: whether [`Outbox::poll_take`] would return `Pending` again, with a registered waker.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.hints.is_at_rest()
    }

    /// Receiver: like [`Outbox::poll_take`], but neither registers a waker nor takes a [`Control`].
    pub(crate) fn take_now(&self, quota: usize, bytes: usize, into: &mut Batch) {
        self.state().queue.take(quota, bytes, into, &self.common.budget);
    }

    /// Receiver: whether it has to look at backlogs of its share groups ([`Outbox::next_backlog`]), for example because a
    /// full queue has got room.
    pub(crate) fn take_room_again(&self) -> bool {
        self.hints.has(Hint::HAS_ROOM_AGAIN) && self.hints.clear(Hint::HAS_ROOM_AGAIN)
    }

    /// Puts back messages that were taken and could not be sent, at the front of the queue.
    pub(crate) fn put_back(&self, deliveries: impl DoubleEndedIterator<Item = Delivery>) {
        let mut state = self.state();
        deliveries.rev().for_each(|delivery| state.queue.push_front(delivery, &self.common.budget));
        self.hints.put(Hint::AT_REST, false);
    }

    /// Sends a request to the connection's owner.
    pub(crate) fn control(&self, control: Control) {
        self.control_in(self.state(), control);
    }

    /// Sends a request to the owner of this connection; a later one gets none.
    pub(crate) fn control_connection(&self, connection: u32, control: Control) {
        let state = self.state();
        if state.consumer.connection() == connection {
            self.control_in(state, control);
        }
    }

    fn control_in(&self, mut state: MutexGuard<'_, State>, control: Control) {
        if state.control.is_none_or(|pending| pending.rank() <= control.rank()) {
            state.control = Some(control);
        }
        self.wake(state);
    }

    /// Wakes the connection's task, so that it looks at the state of the broker.
    pub(crate) fn wake_receiver(&self) {
        self.wake(self.state());
    }

    /// Wakes the receiver's task, which has something to do.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        self.hints.put(Hint::AT_REST, false);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds the client to a share group, which counts the client's messages in `tally`.
    ///
    /// To be called before the group can choose the client.
    pub(crate) fn join_group(&self, group: NonZeroU64, tally: Arc<Tally>) {
        self.state().groups.insert(group, tally);
    }

    /// Returns whether the client is a member of share groups.
    pub(crate) fn is_in_groups(&self) -> bool {
        !self.state().groups.is_empty()
    }

    /// Number of messages in memory.
    pub(crate) fn queued_messages(&self) -> usize {
        self.state().queue.len()
    }

    /// Share groups of the client.
    pub(crate) fn groups(&self) -> Vec<NonZeroU64> {
        self.state().groups.keys().copied().collect()
    }

    /// Removes the client from a share group. Later messages from the group are returned; queued messages stay.
    pub(crate) fn leave_group(&self, group: NonZeroU64) {
        let mut state = self.state();
        state.groups.remove(&group);
        self.remove_backlog(&mut state, group);
    }

    /// Removes the messages for which `unwanted` holds.
    pub(crate) fn withdraw(&self, unwanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        self.withdraw_by(|_| unwanted)
    }

    /// Removes the messages that the result of `judge` selects. `judge` sees the whole queue, which is locked
    /// during the call.
    pub(crate) fn withdraw_by<W: Fn(&Delivery) -> bool>(&self, judge: impl FnOnce(&Head) -> W) -> Vec<Delivery> {
        let withdrawn = {
            let mut state = self.state();
            state.queue.split_runs();
            let unwanted = judge(&state.queue);
            state.queue.withdraw(unwanted, &self.common.budget)
        };
        self.take_back(withdrawn.iter().map(Booked::of).sum());
        withdrawn
    }

    /// Removes the messages for which `wanted` holds, to be sent before all others of the queue. Their bookings stay.
    pub(crate) fn take_first(&self, wanted: impl Fn(&Delivery) -> bool) -> Vec<Delivery> {
        self.state().queue.withdraw(wanted, &self.common.budget)
    }

    /// Ends the bookings of shared messages that will not be sent to this member.
    fn take_back(&self, booked: Booked) {
        if !booked.is_nothing() {
            booked.take_back(&self.load, self.common.clock.nanos(Instant::now()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock loses one message at worst; the queue itself stays consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queue size after a take from which on the receiver counts as lagging.
const LAGS_FROM_BYTES: usize = 32 * 1024;

impl Drop for Outbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
