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
use std::sync::atomic::Ordering;
use std::time::Instant;

use tenbin_balancer::Availability;

use super::{Outbox, Reader, State, WhenFull, Wire};
use crate::backlog::{DiskWork, NextPage, Refilled, Spill};
use crate::durable::{Location, Page, StoredQueue, WaitingEntries};

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
    pub(crate) fn restore(&self, queue: Arc<StoredQueue>, waiting: WaitingEntries) {
        self.stored.store(Some(queue));
        self.change_spill(&mut self.state(), |spill| spill.entries = waiting.into());
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
        let limits = &self.common.limits;
        let is_over =
            state.is_stuffed || state.spill.as_deref().is_some_and(|spill| limits.disk_is_over(&spill.entries));
        self.is_over_quota.store(is_over, Ordering::Relaxed);
        is_over
    }

    /// Updates the publishers' hint in which form the receiver takes QoS 0 messages.
    pub(super) fn tell_form(&self, state: &State) {
        let keeps = self.tell_passing(state);
        if keeps != self.keeps_unacknowledged() {
            self.keeps_unacknowledged.store(keeps, Ordering::Relaxed);
            let plain = state.consumer.plain().filter(|_| !keeps);
            self.wire.store(Wire::to_bits(state.consumer.connection(), plain), Ordering::Release);
        }
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

    /// Receiver: adds a page from disk to the queue. Entries that are done have to be completed if the session outlives
    /// its connection.
    pub(crate) fn refill(&self, page: Page, now: Instant) -> Refilled {
        let mut guard = self.state();
        let State { queue, spill, consumer, .. } = &mut *guard;
        let Some(spill) = spill.as_deref_mut().filter(|_| consumer.is_connected()) else {
            return Refilled::default();
        };
        let (disk, mut work) = (self.disk(), DiskWork::default());
        let refilled = spill.refill(page, now, |mut delivery| {
            if let Location::Transient(sequence) = Location::of(delivery.stored) {
                delivery.stored = None;
                work.end([sequence]);
            }
            queue.append(delivery, Reader::Present);
        });
        let Some(refilled) = refilled else { return Refilled::default() };
        if disk.as_ref().is_some_and(|disk| disk.is_temporary()) {
            work.end(refilled.done.iter().copied());
        }
        queue.settle(&self.common.budget);
        self.change_spill(&mut guard, |_| {});
        self.at_rest.store(false, Ordering::Relaxed);
        drop(guard);
        if !work.is_nothing() {
            self.do_disk_work(disk, work);
        }
        refilled
    }

    /// Changes the backlog and updates what other threads see of it.
    pub(super) fn change_spill<R>(&self, state: &mut State, change: impl FnOnce(&mut Spill) -> R) -> R {
        let spill = state.spill.get_or_insert_default();
        let result = change(spill);
        spill.entries.charge_to(|| self.account());
        self.has_tail.store(!spill.entries.is_empty(), Ordering::Relaxed);
        if spill.is_gone() {
            state.spill = None;
        } else if state.consumer.is_connected() {
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
    pub(super) fn has_tail(spill: Option<&Spill>) -> bool {
        spill.is_some_and(Spill::holds_back)
    }
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
    use tenbin_session::{Delivery, Publication};
    use tenbin_store::spool::Sequence;

    use super::super::{Batch, Budget, Limits, OutboxCommon, WhenFull};
    use super::*;
    use crate::durable::{EntryRanges, Stored};

    fn outbox(messages: usize) -> Outbox {
        outbox_with(messages, 1000)
    }

    fn outbox_with(messages: usize, stored_bytes: u64) -> Outbox {
        let limits = Limits { stored_bytes, has_store: true, ..Limits::for_tests(messages, WhenFull::DropOldest) };
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

    fn page(ranges: &EntryRanges, numbers: impl IntoIterator<Item = u64>) -> Page {
        let messages = numbers.into_iter().map(|number| (Sequence(number), Some(delivery(number)))).collect();
        Page { ranges: Arc::clone(ranges), messages, is_broken: false }
    }

    /// Takes all messages in memory.
    fn taken(outbox: &Outbox) -> Vec<String> {
        let mut batch = Batch::default();
        outbox.take_now(1000, 1 << 20, &mut batch);
        let payload = |delivery: &Delivery| String::from_utf8_lossy(delivery.template.payload()).into_owned();
        batch.into_singles().iter().map(payload).collect()
    }

    fn next(outbox: &Outbox) -> Option<EntryRanges> {
        match outbox.next_page(Instant::now()) {
            NextPage::Read(page) => Some(page.ranges),
            NextPage::None | NextPage::At(_) => None,
        }
    }

    /// Begins to read a page whose first entry is `first`.
    fn read_from(outbox: &Outbox, first: u64) -> EntryRanges {
        let ranges = next(outbox).expect("a page");
        assert_eq!(*ranges[0].start(), Sequence(first));
        ranges
    }

    fn refill(outbox: &Outbox, page: Page) -> Vec<Sequence> {
        outbox.refill(page, Instant::now()).done
    }

    #[test]
    fn stored_messages_of_absent_client_are_read_back_in_order() {
        let outbox = outbox(100);
        push(&outbox, 1..=4);
        assert!(outbox.has_tail() && taken(&outbox).is_empty());
        outbox.attach(u32::MAX, None);
        let ranges = read_from(&outbox, 1);
        assert!(next(&outbox).is_none(), "one page at a time");
        push(&outbox, [5]);
        refill(&outbox, page(&ranges, [1, 2]));
        push(&outbox, [6]);
        assert_eq!(taken(&outbox), ["1", "2"]);
        refill(&outbox, page(&read_from(&outbox, 3), [3, 4, 5, 6]));
        assert!(!outbox.has_tail());
        push(&outbox, [7]);
        assert_eq!(taken(&outbox), ["3", "4", "5", "6", "7"]);
        assert!(next(&outbox).is_none());
    }

    #[test]
    fn messages_without_room_stay_on_disk_in_order() {
        let outbox = outbox(2);
        outbox.attach(u32::MAX, None);
        push(&outbox, 1..=3);
        assert_eq!(taken(&outbox), ["1", "2"]);
        push(&outbox, [4]);
        assert!(taken(&outbox).is_empty());
        refill(&outbox, page(&read_from(&outbox, 3), [3, 4]));
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
        let ranges = read_from(&outbox, 3);
        outbox.detach_all();
        refill(&outbox, page(&ranges, [3, 4, 5]));
        outbox.attach(u32::MAX, None);
        let next = read_from(&outbox, 3);
        refill(&outbox, page(&ranges, [3, 4, 5]));
        assert!(taken(&outbox).is_empty());
        // In-flight messages are not queued again.
        refill(&outbox, page(&next, [1, 2, 3, 4, 5]));
        assert_eq!(taken(&outbox), ["3", "4", "5"]);
    }

    #[test]
    fn expired_or_missing_entries_do_not_block_the_backlog() {
        let outbox = outbox(100);
        push(&outbox, 1..=3);
        outbox.attach(u32::MAX, None);
        let ranges = read_from(&outbox, 1);
        let over = refill(&outbox, Page { ranges, messages: vec![(Sequence(2), None)], is_broken: false });
        assert_eq!(over, [Sequence(2)]);
        let ranges = read_from(&outbox, 3);
        let broken = outbox.refill(Page { ranges, is_broken: true, ..Page::default() }, Instant::now());
        assert!(next(&outbox).is_none(), "it rests");
        let NextPage::Read(of) = outbox.next_page(broken.failed.unwrap().retry_at) else { panic!("nobody knows") };
        refill(&outbox, Page { ranges: of.ranges, ..Page::default() });
        assert!(next(&outbox).is_none() && !outbox.has_tail());
    }

    #[test]
    fn empty_backlog_is_never_over_quota() {
        let outbox = outbox_with(100, 0);
        // A message is being written.
        outbox.change_spill(&mut outbox.state(), |spill| {
            spill.place(Sequence(1), &mut delivery(1), &mut DiskWork::default());
            spill.entries.take(Sequence(1), 0)
        });
        assert!(!outbox.is_over_quota(Instant::now()));
        outbox.change_spill(&mut outbox.state(), |spill| spill.entries.add(Sequence(1), 1));
        assert!(outbox.is_over_quota(Instant::now()));
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
