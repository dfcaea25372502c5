//! On-disk backlog of a client: messages that are on disk only, behind all stored messages of its queue in memory.
//!
//! ```text
//!   newest                                                        oldest
//!   appended ──► │ tail: offsets on disk │ ──read──► │ head: Queue │ ──► connection
//! ```
//!
//! While there is a backlog, new stored messages join it. When the connection ends and the session continues, all
//! stored messages do. The connection reads the first page of the backlog whenever the head runs out. Transient spill
//! has further rules: see `spill`.

use std::sync::Arc;
use std::time::Instant;

use tenbin_balancer::Availability;
use tenbin_codec::TopicName;
use tenbin_session::Delivery;

use super::hints::{Guarded, Hint};
use super::{Limits, Outbox, Reader, State, WhenFull};
use crate::backlog::{DiskWork, NextPage, Refilled, Spill};
use crate::durable::{Ended, Location, Page, Sequence, StoredQueue, WaitingEntries};
use crate::hooks::{DropReason, Events};
use crate::values::Bound;

impl Outbox {
    /// Persistent queue of the session's QoS 1 and 2 messages; `None` if the session ends with its connection.
    #[inline]
    pub(crate) fn stored(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full().filter(|queue| !queue.is_temporary())
    }

    /// The client's latest queue on disk, of any kind. Its offsets are never assigned again.
    pub(crate) fn any_queue(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full()
    }

    /// Like [`Outbox::stored`], but `None` if that session is over and the next one has no queue.
    #[inline]
    pub(crate) fn keeps_in(&self) -> Option<Arc<StoredQueue>> {
        self.stored().filter(|queue| !queue.is_over())
    }

    /// Whether QoS 0 messages spill to disk at the moment; a hint.
    #[inline]
    pub(crate) fn keeps_unacknowledged(&self) -> bool {
        self.hints.has(Hint::KEEPS_UNACKNOWLEDGED)
    }

    /// Sets the queue on disk from now on. To be called without a connection and before the session subscribes to
    /// anything.
    pub(crate) fn store_in(&self, queue: Option<Arc<StoredQueue>>) {
        self.stored.store(queue);
    }

    /// Restores the queue and backlog of a session after a restart of the broker.
    pub(crate) fn restore(&self, queue: Arc<StoredQueue>, waiting: WaitingEntries) {
        self.stored.store(Some(queue));
        let mut state = self.state();
        state.spill.get_or_insert_default().entries = waiting.into();
        self.publish(&mut state);
    }

    /// Whether there is an on-disk backlog; a hint.
    #[inline]
    pub(crate) fn has_tail(&self) -> bool {
        self.hints.has(Hint::HAS_TAIL)
    }

    /// Whether another QoS 1 or 2 message has no room, on disk or, without a queue there, in memory.
    #[inline]
    pub(crate) fn is_over_quota(&self, now: Instant) -> bool {
        self.over_quota(now).is_some()
    }

    /// The bound by which another QoS 1 or 2 message has no room, as [`Outbox::is_over_quota`] says.
    #[inline]
    pub(crate) fn over_quota(&self, now: Instant) -> Option<Bound> {
        if self.hints.has(Hint::IS_OVER_QUOTA) { self.still_over_quota(now) } else { None }
    }

    /// Drops expired messages before it looks again.
    #[cold]
    fn still_over_quota(&self, now: Instant) -> Option<Bound> {
        let mut state = self.state();
        let expired = state.queue.drop_expired(now, &self.common.budget);
        state.is_stuffed &= expired.messages == 0;
        let is_over = self.publish(&mut state);
        let bound = is_over.then(|| state.full_bound(&self.common.limits));
        let names = state.queue.take_names();
        drop(state);
        self.tell_dropped(names);
        self.common.metrics.dropped_expired.add(expired.messages);
        self.take_back(expired.booked);
        bound
    }

    /// Counts a refused QoS 1 or 2 message for this client.
    #[cold]
    pub(crate) fn refuse(&self, client: u64) {
        let bound = self.state().full_bound(&self.common.limits);
        self.common.metrics.refused_over_quota.add(1);
        self.common.metrics.bounds.hit(bound, 1, Instant::now());
        self.common.concerns.refuse(client, bound);
    }

    /// Counts a QoS 0 message that `bound` has dropped before it reached the queue. Takes the lock only for hooks.
    #[cold]
    pub(crate) fn drop_newest(&self, topic: &TopicName, bound: Bound, now: Instant) {
        self.count_dropped(1, bound, now);
        if self.common.hooks.has(Events::DROPPED) {
            let names = self.state().queue.name_of(topic, DropReason::QueueFull);
            self.tell_dropped(names);
        }
    }

    /// Counts QoS 0 messages that found no room by this bound.
    #[cold]
    pub(super) fn count_dropped(&self, messages: u64, bound: Bound, now: Instant) {
        self.common.metrics.dropped_queue_full.add(messages);
        self.common.metrics.bounds.hit(bound, messages, now);
        self.common.concerns.drop_by(bound, messages);
    }

    /// Receiver: the page to read now, if the in-memory head runs out.
    ///
    /// There is no other page until [`Outbox::refill`] or [`Outbox::detach`].
    pub(crate) fn next_page(&self, now: Instant) -> NextPage {
        let mut state = self.state();
        let (mut messages, mut bytes) = state.queue.acknowledged_usage();
        if self.common.limits.when_full == WhenFull::Spool {
            let unacknowledged = state.queue.single_unacknowledged_usage();
            (messages, bytes) = (messages + unacknowledged.0, bytes + unacknowledged.1);
        }
        let runs_out = messages < REFILL_BELOW && bytes < REFILL_BELOW_BYTES;
        match state.spill.as_mut().filter(|_| runs_out).zip(self.stored.load().as_ref()) {
            Some((spill, queue)) => spill.next_page(queue, PAGE_BYTES, now),
            None => NextPage::None,
        }
    }

    /// Receiver: adds a page from disk to the queue, and completes the entries that are done. Messages for which
    /// `is_forbidden` holds are withheld.
    pub(crate) fn refill(&self, page: Page, now: Instant, is_forbidden: impl Fn(&Delivery) -> bool) -> Refilled {
        let mut guard = self.state();
        let State { queue, spill, consumer, withheld, .. } = &mut *guard;
        let Some(spill) = spill.as_deref_mut().filter(|_| consumer.is_connected()) else {
            return Refilled::default();
        };
        let (disk, mut work) = (self.disk(), DiskWork::default());
        let refilled = spill.refill(page, now, |mut delivery| {
            let is_forbidden = is_forbidden(&delivery);
            if is_forbidden && delivery.qos.is_acknowledged() {
                return self.withhold_read(withheld, delivery);
            }
            if let Some(Location::Transient(sequence)) = delivery.location() {
                delivery.stored = None;
                work.end(Ended::InMemory, [Sequence(sequence)]);
            }
            if !is_forbidden {
                queue.append(delivery, Reader::Present);
            }
        });
        let Some(refilled) = refilled else { return Refilled::default() };
        work.end(Ended::Expired, refilled.done.iter().copied());
        queue.settle(&self.common.budget);
        self.publish(&mut guard);
        self.hints.put(Hint::AT_REST, false);
        drop(guard);
        self.common.metrics.dropped_expired.add(refilled.done.len() as u64);
        self.do_disk_work(disk, work);
        refilled
    }

    /// Updates the view of other threads, after the on-disk backlog, the receiver or the limit has changed. Returns whether
    /// another QoS 1 or 2 message has no room.
    pub(super) fn publish(&self, state: &mut State) -> bool {
        if let Some(spill) = &mut state.spill {
            spill.entries.charge_to(|| self.account());
            if spill.is_gone() {
                state.spill = None;
            } else if state.consumer.is_connected() {
                self.load.set_availability(Availability::Full);
            }
        }
        if let Some(withheld) = &mut state.withheld {
            withheld.entries.charge_to(|| self.account());
        }
        let entries = state.spill.as_ref().map(|spill| &spill.entries);
        let withheld = state.withheld.as_ref().map(|withheld| &withheld.entries);
        let limits = &self.common.limits;
        let is_over =
            state.is_stuffed || entries.into_iter().chain(withheld).any(|entries| limits.disk_is_over(entries));
        let has_tail = entries.is_some_and(|entries| !entries.is_empty());
        let keeps_unacknowledged = self.switch_passing(state);
        self.hints.publish(Guarded {
            has_tail,
            is_over_quota: is_over,
            keeps_unacknowledged,
            connection: state.consumer.connection(),
            plain: state.consumer.plain().filter(|_| !keeps_unacknowledged),
        });
        is_over
    }
}

impl State {
    /// Whether stored messages have to join the backlog, because it has messages or a page is being read.
    #[inline]
    pub(super) fn has_tail(spill: Option<&Spill>) -> bool {
        spill.is_some_and(Spill::holds_back)
    }

    /// The bound by which a QoS 1 or 2 message has no room.
    fn full_bound(&self, limits: &Limits) -> Bound {
        let spill = self.spill.iter().map(|spill| &spill.entries);
        let entries = spill.chain(self.withheld.iter().map(|withheld| &withheld.entries));
        limits.full_bound(self.queue.usage(), entries, limits.has_store)
    }
}

/// Bytes of message bodies per page.
const PAGE_BYTES: usize = 64 * 1024;
/// Messages and bytes in the head from which on it needs no refill.
const REFILL_BELOW: usize = 64;
const REFILL_BELOW_BYTES: usize = 32 * 1024;
