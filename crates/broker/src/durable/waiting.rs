//! The on-disk backlog of a queue.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tenbin_session::Delivery;
use tenbin_store::spool::{QueueId, Sequence};

use super::message::HEAD_BYTES;
use super::queue::StoredQueue;
use super::spooled::{Mark, place};
use super::{Durable, Page, PageOf};
use crate::memory::{Account, Charge, Kind};

/// The on-disk backlog of a queue: messages that are on disk only, behind the in-memory head.
///
/// It stores their offsets, as ranges. A message at any other offset of the queue is in memory, or in flight.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// First and last offset of each range, in order; rarely more than one range.
    stretches: VecDeque<(u64, u64)>,
    messages: usize,
    /// Approximate bytes of message bodies.
    bytes: u64,
    /// Charge for the offsets in the log's index in memory; grows in steps.
    charge: Option<Charge>,
    /// While the first page is being read: first and last offset of the backlog when the read began.
    reading: Option<(u64, u64)>,
    /// Messages of the backlog that are not in the log yet. It is not read until they are.
    pub(crate) unwritten: usize,
    /// Offsets below the backlog, reserved for messages that were in memory when it began. Empty once it was read.
    pub(crate) before: Range<u64>,
}

impl Tail {
    pub(crate) fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Approximate disk bytes of its messages.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.bytes + self.messages as u64 * RECORD_BYTES
    }

    /// Charges `account` for the offsets that are in memory now, even above its limits.
    pub(crate) fn charge_to(&mut self, account: impl FnOnce() -> Option<Arc<Account>>) {
        let bytes = self.messages / CHARGED_MESSAGES * CHARGED_MESSAGES * PLACE_BYTES;
        if bytes == self.charge.as_ref().map_or(0, Charge::bytes) {
            return;
        }
        if self.charge.is_none() {
            self.charge = account().map(|account| Charge::nothing(&account, Kind::Backlog));
        }
        self.charge.iter_mut().for_each(|charge| charge.set(bytes));
    }

    /// Moves the charge to another account.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.iter_mut().for_each(|charge| charge.move_to(account));
    }

    /// Whether the account has no room for more messages.
    pub(crate) fn is_over_limit(&self) -> bool {
        let is_over = |charge: &Charge| !charge.may_become(charge.bytes() + CHARGED_MESSAGES * PLACE_BYTES);
        self.charge.as_ref().is_some_and(|charge| charge.bytes() > 0 && is_over(charge))
    }

    /// Adds a message, mostly behind the last one.
    pub(crate) fn add(&mut self, Sequence(sequence): Sequence, bytes: usize) {
        match self.stretches.back_mut() {
            Some((_, last)) if *last + 1 == sequence => *last = sequence,
            Some((_, last)) if *last >= sequence => {
                if !self.add_between(sequence) {
                    return;
                }
            }
            _ => self.stretches.push_back((sequence, sequence)),
        }
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    /// Adds an offset that is not above the last one. Returns false if it was there already.
    fn add_between(&mut self, sequence: u64) -> bool {
        let at = self.behind(sequence);
        let joins = |stretch: Option<&(u64, u64)>, joins: fn(&(u64, u64), u64) -> bool| {
            stretch.is_some_and(|stretch| joins(stretch, sequence))
        };
        if joins(self.stretches.get(at), |&(first, _), sequence| first <= sequence) {
            return false;
        }
        let follows = at > 0 && joins(self.stretches.get(at - 1), |&(_, last), sequence| last + 1 == sequence);
        let precedes = joins(self.stretches.get(at), |&(first, _), sequence| first == sequence + 1);
        match (follows, precedes) {
            (true, true) => {
                let last = self.stretches.remove(at).map_or(sequence, |(_, last)| last);
                self.stretches[at - 1].1 = last;
            }
            (true, false) => self.stretches[at - 1].1 = sequence,
            (false, true) => self.stretches[at].0 = sequence,
            (false, false) => self.stretches.insert(at, (sequence, sequence)),
        }
        true
    }

    /// Index of the range that contains this offset, or else of the next range behind it.
    fn behind(&self, sequence: u64) -> usize {
        self.stretches.partition_point(|&(_, last)| last < sequence)
    }

    /// Offset of the first message, which may be gone from the disk.
    pub(crate) fn first(&self) -> Option<Sequence> {
        self.stretches.front().map(|&(first, _)| Sequence(first))
    }

    /// Whether its first page is being read.
    pub(crate) fn is_being_read(&self) -> bool {
        self.reading.is_some()
    }

    /// Begins to read the first page, and notes the range of offsets at this time.
    pub(super) fn begin_reading(&mut self) {
        self.reading = self.stretches.front().zip(self.stretches.back()).map(|(front, back)| (front.0, back.1));
    }

    /// Gives up the page that is being read.
    pub(crate) fn stop_reading(&mut self) {
        self.reading = None;
    }

    /// Removes the page's messages from the backlog, and passes each to `put`, in order.
    ///
    /// Returns the offsets of entries that are done: expired messages, and entries without a body.
    pub(crate) fn take_page(&mut self, page: Page, mut put: impl FnMut(Delivery)) -> Vec<Sequence> {
        let last = page.messages.last().map(|(sequence, _)| *sequence);
        let mut over = Vec::new();
        for (sequence, delivery) in page.messages {
            // A message that is not in the backlog is in memory already, or in flight.
            if !self.take(sequence, delivery.as_ref().map_or(0, |delivery| delivery.template.len())) {
                continue;
            }
            match delivery {
                Some(delivery) => put(delivery),
                None => over.push(sequence),
            }
        }
        self.end_reading(last, page.is_broken);
        over
    }

    /// Removes one message of `bytes` bytes that was read. Returns false if it was not in the backlog.
    fn take(&mut self, Sequence(sequence): Sequence, bytes: usize) -> bool {
        let at = self.behind(sequence);
        let Some((first, last)) = self.stretches.get_mut(at).filter(|(first, _)| *first <= sequence) else {
            return false;
        };
        match (*first == sequence, *last == sequence) {
            (true, true) => drop(self.stretches.remove(at)),
            (true, false) => *first += 1,
            (false, true) => *last -= 1,
            (false, false) => {
                let behind = (sequence + 1, *last);
                *last = sequence - 1;
                self.stretches.insert(at + 1, behind);
            }
        }
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        if self.stretches.is_empty() {
            (self.messages, self.bytes) = (0, 0);
        }
        true
    }

    /// Ends the read of a page up to `last`; `None`: the page was empty.
    ///
    /// Offsets of the noted range that the page lacks are gone from the disk, and leave the backlog. Messages that were
    /// added below that range meanwhile stay.
    fn end_reading(&mut self, last: Option<Sequence>, is_broken: bool) {
        let Some((from, end)) = self.reading.take() else { return };
        let to = match last {
            Some(Sequence(last)) => last,
            None if is_broken => return,
            None => end,
        };
        loop {
            let at = self.behind(from);
            let Some(&(had_first, had_last)) = self.stretches.get(at).filter(|(first, _)| *first <= to) else { break };
            self.stretches.remove(at);
            if had_last > to {
                self.stretches.insert(at, (to + 1, had_last));
            }
            if had_first < from {
                self.stretches.insert(at, (had_first, from - 1));
            }
        }
        if self.stretches.is_empty() {
            (self.messages, self.bytes) = (0, 0);
        }
    }

    /// Removes all messages and resets the counters.
    pub(crate) fn clear(&mut self) {
        self.stretches.clear();
        (self.messages, self.bytes) = (0, 0);
    }

    /// The backlog of a queue in the log: all of its messages but those in flight.
    fn of(durable: &Durable, queue: QueueId) -> Self {
        let Some(content) = durable.spool.queue(queue) else { return Self::default() };
        let mut tail = Self::default();
        let Some((Sequence(first), Sequence(last))) = content.ends else { return tail };
        let marks = durable.spool.marks(queue);
        let mut next = first;
        for marked in &marks {
            if marked.sequence.0 > next {
                tail.stretches.push_back((next, marked.sequence.0 - 1));
            }
            next = marked.sequence.0 + 1;
        }
        if next <= last {
            tail.stretches.push_back((next, last));
        }
        tail.messages = content.waiting.saturating_sub(marks.len());
        // `take` subtracts a message without its head, so heads do not count. Messages in flight are left out at
        // average size.
        let under_way = marks.iter().filter(|marked| marked.has_body).count();
        let average = content.bytes / (tail.messages + under_way).max(1) as u64;
        let not_counted = average * under_way as u64 + (HEAD_BYTES * tail.messages) as u64;
        tail.bytes = content.bytes.saturating_sub(not_counted);
        if tail.messages == 0 {
            tail.clear();
        }
        tail
    }
}

impl Durable {
    /// The backlog that a session of the last run left on disk.
    pub(super) fn tail_of_session(&self, queue: &StoredQueue) -> Tail {
        Tail::of(self, queue.id())
    }

    /// The backlog that a share group of the last run left on disk. A QoS 2 message that was sent to a member whose
    /// session ended with the last run goes to no other member `[MQTT-4.8.2-5]`.
    pub(crate) fn tail_of_group(&self, queue: &StoredQueue) -> Tail {
        let sent = self.spool.marks(queue.id()).into_iter().filter(|marked| Mark::of(marked.mark).is_some());
        self.done(sent.map(|marked| place(queue.id(), marked.sequence)));
        Tail::of(self, queue.id())
    }

    /// Begins to read the first page of a backlog. No other page is read until [`Tail::take_page`].
    pub(crate) fn first_page(queue: &StoredQueue, tail: &mut Tail, bytes: usize) -> Option<PageOf> {
        let from = tail.first()?;
        tail.begin_reading();
        Some(PageOf { queue: queue.id(), is_of_group: queue.is_of_group(), from, bytes })
    }
}

/// Least bytes of a record on disk beside the message's body.
const RECORD_BYTES: u64 = 64;
/// Bytes of memory in the log's index for each message of a queue.
const PLACE_BYTES: usize = 8;
/// Step of the charge, in messages.
const CHARGED_MESSAGES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use bytes::{Bytes, BytesMut};
    use tenbin_codec::{QoS, TopicName};
    use tenbin_session::Publication;

    use super::*;

    fn tail(sequences: &[u64]) -> Tail {
        let mut tail = Tail::default();
        sequences.iter().for_each(|&sequence| tail.add(Sequence(sequence), 10));
        tail
    }

    #[test]
    fn small_messages_count_their_records_and_places() {
        let account = crate::memory::Memory::unlimited().account(crate::memory::Owner::Restored);
        let mut tail = Tail::default();
        (1..=10_000).for_each(|sequence| tail.add(Sequence(sequence), 1));
        assert_eq!((tail.bytes(), tail.disk_bytes()), (10_000, 650_000));
        tail.charge_to(|| Some(Arc::clone(&account)));
        assert_eq!(account.bytes(), 9 * 1024 * 8);
        tail.clear();
        tail.charge_to(|| None);
        assert_eq!((tail.disk_bytes(), account.bytes()), (0, 0));
    }

    #[test]
    fn tail_tracks_its_messages_as_ranges_of_offsets() {
        let mut tail = tail(&[5, 6, 7, 10, 9, 20, 12, 11, 6]);
        assert_eq!(tail.stretches, [(5, 7), (9, 12), (20, 20)]);
        assert_eq!((tail.messages(), tail.bytes(), tail.first()), (8, 80, Some(Sequence(5))));
        let taken = [4, 5, 6, 8, 10, 10, 20].map(|sequence| tail.take(Sequence(sequence), 10));
        assert_eq!(taken, [false, true, true, false, true, false, true]);
        assert_eq!(tail.stretches, [(7, 7), (9, 9), (11, 12)]);
        assert_eq!((tail.messages(), tail.bytes()), (4, 40));
        assert!([12, 7, 9, 11].into_iter().all(|sequence| tail.take(Sequence(sequence), 10)));
        assert_eq!((tail.messages(), tail.bytes(), tail.is_empty()), (0, 0, true));
    }

    #[test]
    fn page_messages_outside_the_tail_are_skipped() {
        let publication = Publication::new(TopicName::try_from("t").unwrap(), Bytes::from_static(b"x"));
        let delivery = Delivery::new(publication.template(&mut BytesMut::new()), QoS::AtLeastOnce, false);
        let page = |sequences: &[(u64, bool)], is_broken| {
            let message = |&(sequence, is_over): &(u64, bool)| {
                let stored = NonZeroU64::new(sequence);
                (Sequence(sequence), (!is_over).then(|| Delivery { stored, ..delivery.clone() }))
            };
            Page { messages: sequences.iter().map(message).collect(), is_broken }
        };
        let mut tail = tail(&[11, 12, 14, 15, 16]);
        let mut taken = Vec::new();
        let mut take = |tail: &mut Tail, page| {
            let over = tail.take_page(page, |delivery| taken.extend(delivery.stored.map(NonZeroU64::get)));
            over.into_iter().map(|Sequence(sequence)| sequence).collect::<Vec<_>>()
        };
        tail.begin_reading();
        tail.add(Sequence(10), 10);
        // 12 is gone from the disk, and 13 is not in the backlog.
        assert_eq!(take(&mut tail, page(&[(11, false), (13, false), (14, true)], true)), [14]);
        assert_eq!((&tail.stretches, tail.is_being_read()), (&VecDeque::from([(10, 10), (15, 16)]), false));
        tail.begin_reading();
        assert_eq!(take(&mut tail, page(&[(10, false), (13, true), (15, false)], false)), [0; 0]);
        assert_eq!(taken, [11, 10, 15]);
        assert_eq!(tail.stretches, [(16, 16)]);
    }

    #[test]
    fn messages_added_below_a_page_being_read_stay_in_the_tail() {
        let mut tail = tail(&[11, 12, 13]);
        tail.begin_reading();
        tail.add(Sequence(10), 10); // appended before the others, pushed after them
        tail.add(Sequence(14), 10);
        assert!(tail.take(Sequence(11), 10) && tail.take(Sequence(13), 10));
        tail.end_reading(Some(Sequence(13)), false);
        assert_eq!(tail.stretches, [(10, 10), (14, 14)], "the twelfth is not there any more");
        tail.begin_reading();
        tail.add(Sequence(9), 10);
        tail.add(Sequence(15), 10);
        tail.end_reading(None, false);
        assert_eq!(tail.stretches, [(9, 9), (15, 15)]);
        tail.begin_reading();
        tail.end_reading(None, true);
        assert_eq!(tail.stretches, [(9, 9), (15, 15)], "nobody knows");
    }

    #[test]
    fn head_written_below_its_tail_joins_the_tail_s_range() {
        let mut tail = tail(&[1000]);
        (0..1000).for_each(|sequence| tail.add(Sequence(sequence), 1));
        assert_eq!((tail.stretches.len(), tail.messages()), (1, 1001));
    }

    #[test]
    fn restored_tail_counts_messages_that_are_not_in_flight() {
        let directory = tempfile::tempdir().unwrap();
        let durable = Durable::open(directory.path(), tenbin_store::Sync::Never).unwrap();
        let queue = StoredQueue::of_session(NonZeroU64::MIN, 1);
        let topic = TopicName::try_from("topic").unwrap();
        let publication = Publication::new(topic, vec![b'x'; 100].into());
        let template = publication.template(&mut BytesMut::new());
        let bytes = template.len();
        let room = durable.take_room(0, false).unwrap();
        let mut log = durable.append();
        for _ in 0..10 {
            let qos = QoS::AtLeastOnce;
            log.place(&queue, &mut Delivery::new(template.clone(), qos, false), &room);
            log.close(None);
        }
        drop(log);
        let id = tenbin_session::SentId { packet_id: tenbin_codec::PacketId::new(7).unwrap(), round: 0 };
        let sent = vec![(place(queue.id(), Sequence(1)), id), (place(queue.id(), Sequence(4)), id)];
        durable.settle(&mut crate::durable::Outcomes { sent, ..Default::default() });
        let mut tail = durable.tail_of_session(&queue);
        assert_eq!((tail.messages(), tail.bytes()), (8, 8 * bytes as u64));
        for sequence in [2, 3, 5, 6, 7, 8, 9] {
            assert!(tail.take(Sequence(sequence), bytes));
        }
        assert_eq!((tail.messages(), tail.bytes()), (1, bytes as u64));
    }
}
