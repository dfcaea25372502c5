//! On-disk backlog of a client: messages that are on disk only, behind all stored messages of its queue in memory.
//!
//! ```text
//!   newest                                                        oldest
//!   appended ──► │ tail: offsets on disk │ ──read──► │ head: Queue │ ──► connection
//! ```
//!
//! While there is a backlog, new stored messages join it. When the connection ends and the session continues, all
//! stored messages do. The connection reads the first page of the backlog whenever the head runs out. Transient spill
//! has further rules: see `passing`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tenbin_balancer::Availability;
use tenbin_session::Delivery;

use super::spill::Spilled;
use super::{Outbox, Reader, State, WhenFull, Wire};
use crate::durable::{Durable, Page, PageOf, Stored, StoredQueue, Tail};

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

    /// Whether [`Outbox::keeps_in`] has a queue.
    #[inline]
    pub(crate) fn is_stored(&self) -> bool {
        self.stored.load().as_ref().is_some_and(|queue| !queue.is_over() && !queue.is_temporary())
    }

    /// Whether QoS 0 messages spill to disk at the moment; a hint.
    #[inline]
    pub(crate) fn keeps_unacknowledged(&self) -> bool {
        self.keeps_unacknowledged.load(Ordering::Relaxed)
    }

    /// Sets the queue on disk from now on. To be called without a connection and before the session subscribes to
    /// anything.
    pub(crate) fn store_in(&self, queue: Option<Arc<StoredQueue>>) {
        self.stored.store(queue);
    }

    /// Restores the queue and backlog of a session after a restart of the broker.
    pub(crate) fn restore(&self, queue: Arc<StoredQueue>, tail: Tail) {
        self.stored.store(Some(queue));
        self.change_tail(&mut self.state(), |known| *known = tail);
    }

    /// Whether there is an on-disk backlog; a hint.
    #[inline]
    pub(crate) fn has_tail(&self) -> bool {
        self.has_tail.load(Ordering::Relaxed)
    }

    /// Whether another QoS 1 or 2 message has no room, on disk or, without a queue there, in memory.
    #[inline]
    pub(crate) fn is_over_quota(&self, now: Instant) -> bool {
        self.is_over_quota.load(Ordering::Relaxed) && self.is_still_over_quota(now)
    }

    /// Drops expired messages before it looks again.
    #[cold]
    fn is_still_over_quota(&self, now: Instant) -> bool {
        let mut state = self.state();
        let expired = state.queue.drop_expired(now, &self.common.budget);
        if state.is_stuffed && expired.messages > 0 {
            state.is_stuffed = false;
        }
        let is_over = self.tell_quota(&state);
        drop(state);
        self.common.metrics.dropped_expired.add(expired.messages);
        self.take_back(expired.booked);
        is_over
    }

    /// Counts a refused QoS 1 or 2 message for this client.
    #[cold]
    pub(crate) fn refuse(&self, client: u64) {
        self.common.metrics.refused_over_quota.add(1);
        self.common.concerns.refuse(client);
    }

    /// Counts a QoS 0 message that was dropped before it reached the queue.
    pub(crate) fn drop_newest(&self) {
        self.common.metrics.dropped_queue_full.add(1);
    }

    /// Updates the publishers' hint whether the queue is over limit, and returns it.
    pub(super) fn tell_quota(&self, state: &State) -> bool {
        // An empty backlog is within any limit, even zero.
        let is_used_up = |tail: &Tail| {
            let bytes = tail.disk_bytes();
            (bytes > 0 && bytes >= self.common.limits.stored_bytes) || tail.is_over_limit()
        };
        let is_over = state.is_stuffed || state.tail.as_deref().is_some_and(is_used_up);
        self.is_over_quota.store(is_over, Ordering::Relaxed);
        is_over
    }

    /// Updates the publishers' hint in which form the receiver takes QoS 0 messages.
    pub(super) fn tell_form(&self, state: &State) {
        let keeps = self.tell_passing(state);
        if keeps != self.keeps_unacknowledged() {
            self.keeps_unacknowledged.store(keeps, Ordering::Relaxed);
            let plain = state.wire.filter(|_| !keeps).map(|wire| wire.version);
            self.wire.store(Wire::to_bits(state.connection, plain), Ordering::Release);
        }
    }

    /// Receiver: the page to read now, if the in-memory head runs out.
    ///
    /// There is no other page until [`Outbox::refill`] or [`Outbox::detach`].
    pub(crate) fn next_page(&self) -> Option<PageOf> {
        let mut state = self.state();
        let (mut messages, mut bytes) = state.queue.acknowledged_usage();
        if self.common.limits.when_full == WhenFull::Spool {
            let unacknowledged = state.queue.single_unacknowledged_usage();
            (messages, bytes) = (messages + unacknowledged.0, bytes + unacknowledged.1);
        }
        let runs_out = messages < REFILL_BELOW && bytes < REFILL_BELOW_BYTES;
        let may_read = |tail: &&mut Box<Tail>| runs_out && !tail.is_being_read() && tail.unwritten == 0;
        let tail = state.tail.as_mut().filter(may_read)?;
        Durable::first_page(&*self.stored.load_full()?, tail, PAGE_BYTES)
    }

    /// Receiver: adds a page from disk to the queue. Returns entries to be completed unsent: expired or not
    /// deliverable.
    pub(crate) fn refill(&self, page: Page) -> Vec<Stored> {
        let mut guard = self.state();
        let State { queue, tail, attached, .. } = &mut *guard;
        let disk = self.disk();
        let mut passed = disk.clone().map(Spilled::of).unwrap_or_default();
        let Some(known) = tail.as_mut().filter(|tail| *attached && tail.is_being_read()) else { return Vec::new() };
        let over = known.take_page(page, |mut delivery| {
            if let Some(stored) =
                delivery.stored.filter(|_| disk.as_ref().is_some_and(|disk| self.passes(disk, &delivery)))
            {
                delivery.stored = None;
                passed.leave(Stored::of(stored).sequence());
            }
            queue.append(delivery, Reader::Present);
        });
        if disk.as_ref().is_some_and(|disk| disk.is_temporary()) {
            over.iter().for_each(|&sequence| passed.leave(sequence));
        }
        known.before = 0..0; // void, since memory now has messages from the backlog
        queue.settle(&self.common.budget);
        self.change_tail(&mut guard, |_| {});
        self.at_rest.store(false, Ordering::Relaxed);
        drop(guard);
        if !passed.is_nothing() {
            self.write_passed(passed);
        }
        over.into_iter().map(|sequence| Stored::new(sequence, false)).collect()
    }

    /// Changes the backlog and updates what other threads see of it.
    pub(super) fn change_tail<R>(&self, state: &mut State, change: impl FnOnce(&mut Tail) -> R) -> R {
        let tail = state.tail.get_or_insert_default();
        let result = change(tail);
        tail.charge_to(|| self.account());
        self.has_tail.store(!tail.is_empty(), Ordering::Relaxed);
        if tail.is_empty() && !tail.is_being_read() && tail.unwritten == 0 {
            state.tail = None;
        } else if state.attached {
            self.load.set_availability(Availability::Full);
        }
        self.tell_quota(state);
        self.tell_form(state);
        result
    }
}

impl State {
    /// Whether stored messages have to join the backlog, because it has messages or a page is being read.
    #[inline]
    pub(super) fn has_tail(tail: Option<&Tail>) -> bool {
        tail.is_some_and(|tail| !tail.is_empty() || tail.is_being_read())
    }
}

/// Size of a delivery in the accounting of the backlog.
pub(super) fn weight(delivery: &Delivery) -> usize {
    delivery.template.len()
}

/// Bytes of message bodies per page.
const PAGE_BYTES: usize = 64 * 1024;
/// Messages and bytes in the head from which on it needs no refill.
const REFILL_BELOW: usize = 64;
const REFILL_BELOW_BYTES: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::{Bytes, BytesMut};
    use tenbin_balancer::{MemberLoad, Nanos};
    use tenbin_codec::{QoS, TopicName};
    use tenbin_session::Publication;
    use tenbin_store::spool::Sequence;

    use super::super::{Batch, Budget, OutboxCommon, OutboxLimits, WhenFull};
    use super::*;

    fn outbox(messages: usize) -> Outbox {
        outbox_with(messages, 1000)
    }

    fn outbox_with(messages: usize, stored_bytes: u64) -> Outbox {
        let limits =
            OutboxLimits { stored_bytes, has_store: true, ..OutboxLimits::for_tests(messages, WhenFull::DropOldest) };
        let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(1 << 20)));
        let outbox = Outbox::new(Arc::new(common), Arc::new(MemberLoad::new(Nanos(0))));
        outbox.store_in(Some(StoredQueue::nowhere()));
        outbox
    }

    fn delivery(number: u64) -> Delivery {
        let publication = Publication::new(TopicName::try_from("t").unwrap(), Bytes::from(number.to_string()));
        let stored = Some(Stored::InOwn(Sequence(number)).to_number());
        Delivery { stored, ..Delivery::new(publication.template(&mut BytesMut::new()), QoS::AtLeastOnce, false) }
    }

    fn push(outbox: &Outbox, numbers: impl IntoIterator<Item = u64>) {
        let mut returned = Vec::new();
        outbox.push(&mut numbers.into_iter().map(delivery).collect(), &mut returned, Instant::now());
        assert_eq!(returned.len(), 0);
    }

    fn page(numbers: impl IntoIterator<Item = u64>) -> Page {
        let messages = numbers.into_iter().map(|number| (Sequence(number), Some(delivery(number)))).collect();
        Page { messages, is_broken: false }
    }

    /// Takes all messages in memory.
    fn taken(outbox: &Outbox) -> Vec<String> {
        let mut batch = Batch::default();
        outbox.take_now(1000, 1 << 20, &mut batch);
        let payload = |delivery: &Delivery| String::from_utf8_lossy(delivery.template.payload()).into_owned();
        batch.into_singles().iter().map(payload).collect()
    }

    fn from(outbox: &Outbox) -> Option<u64> {
        outbox.next_page().map(|page| page.from.0)
    }

    #[test]
    fn stored_messages_of_absent_client_are_read_back_in_order() {
        let outbox = outbox(100);
        push(&outbox, 1..=4);
        assert!(outbox.has_tail() && taken(&outbox).is_empty());
        outbox.attach(u32::MAX, None);
        assert_eq!((from(&outbox), from(&outbox)), (Some(1), None), "one page at a time");
        // A page may already contain messages that arrive during the read.
        push(&outbox, [5]);
        outbox.refill(page([1, 2]));
        push(&outbox, [6]);
        assert_eq!(taken(&outbox), ["1", "2"]);
        assert_eq!(from(&outbox), Some(3));
        outbox.refill(page([3, 4, 5, 6]));
        assert!(!outbox.has_tail());
        push(&outbox, [7]);
        assert_eq!(taken(&outbox), ["3", "4", "5", "6", "7"]);
        assert_eq!(from(&outbox), None);
    }

    #[test]
    fn messages_without_room_stay_on_disk_in_order() {
        let outbox = outbox(2);
        outbox.attach(u32::MAX, None);
        push(&outbox, 1..=3);
        assert_eq!(taken(&outbox), ["1", "2"]);
        push(&outbox, [4]);
        assert_eq!((taken(&outbox), from(&outbox)), (vec![], Some(3)));
        outbox.refill(page([3, 4]));
        assert_eq!(taken(&outbox), ["3", "4"]);
    }

    #[test]
    fn detach_moves_head_to_backlog_and_voids_pending_page() {
        let outbox = outbox(100);
        outbox.attach(u32::MAX, None);
        push(&outbox, 1..=2);
        assert_eq!(taken(&outbox), ["1", "2"], "under way");
        push(&outbox, 3..=4);
        assert_eq!(outbox.detach_all().len(), 0);
        push(&outbox, [5]);
        outbox.attach(u32::MAX, None);
        assert_eq!(from(&outbox), Some(3));
        outbox.detach_all();
        outbox.refill(page([3, 4, 5]));
        outbox.attach(u32::MAX, None);
        assert!(taken(&outbox).is_empty());
        assert_eq!(from(&outbox), Some(3));
        // In-flight messages are not queued again.
        outbox.refill(page([1, 2, 3, 4, 5]));
        assert_eq!(taken(&outbox), ["3", "4", "5"]);
    }

    #[test]
    fn expired_or_missing_entries_do_not_block_the_backlog() {
        let outbox = outbox(100);
        push(&outbox, 1..=3);
        outbox.attach(u32::MAX, None);
        assert_eq!(from(&outbox), Some(1));
        let over = outbox.refill(Page { messages: vec![(Sequence(2), None)], is_broken: false });
        assert_eq!(over, [Stored::InOwn(Sequence(2))]);
        assert_eq!(from(&outbox), Some(3));
        outbox.refill(Page { is_broken: true, ..Page::default() });
        assert_eq!(from(&outbox), Some(3), "nobody knows what is there");
        outbox.refill(Page::default());
        assert_eq!((from(&outbox), outbox.has_tail()), (None, false));
    }

    #[test]
    fn empty_backlog_is_never_over_quota() {
        let outbox = outbox_with(100, 0);
        let with_tail = |tail| {
            outbox.change_tail(&mut outbox.state(), |known| *known = tail);
            outbox.is_over_quota(Instant::now())
        };
        // A message is being written.
        let mut tail = Tail::default();
        tail.unwritten = 1;
        assert!(!with_tail(tail));
        let mut tail = Tail::default();
        tail.add(Sequence(1), 1);
        assert!(with_tail(tail));
    }

    #[test]
    fn session_disk_quota_is_enforced_and_freed() {
        let outbox = outbox_with(100, 20_000); // about 73 for each message
        push(&outbox, 1..=100);
        assert!(!outbox.is_over_quota(Instant::now()));
        push(&outbox, 101..=400);
        assert!(outbox.is_over_quota(Instant::now()));
        outbox.clear();
        assert!(!outbox.is_over_quota(Instant::now()) && !outbox.has_tail());
    }
}
