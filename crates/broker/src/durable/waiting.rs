//! What waits in a queue on disk and nowhere else.

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

/// The tail of a queue: messages that wait on disk alone, behind those that are in memory.
///
/// It knows them by their places, in stretches: what is at other places of the same queue is in memory, or under way.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// First and last of each, in order; more than one are rare.
    stretches: VecDeque<(u64, u64)>,
    messages: usize,
    /// Of bodies, about.
    bytes: u64,
    /// For the places that the log's index has in memory, in steps.
    charge: Option<Charge>,
    /// Its first page is being read: from here on, and where it ended then.
    reading: Option<(u64, u64)>,
    /// Messages of it that are not in the log yet: until they are, it is not read.
    pub(crate) unwritten: usize,
    /// Places before it for messages that were in memory when it began; none once it was read from.
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

    /// Bytes of the disk that its messages take, about.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.bytes + self.messages as u64 * RECORD_BYTES
    }

    /// Charges `account` for the places that are in memory now, whatever its limits say.
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

    /// Another account is charged from now on.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.iter_mut().for_each(|charge| charge.move_to(account));
    }

    /// Whether the account has no room for more messages.
    pub(crate) fn is_over_limit(&self) -> bool {
        let is_over = |charge: &Charge| !charge.may_become(charge.bytes() + CHARGED_MESSAGES * PLACE_BYTES);
        self.charge.as_ref().is_some_and(|charge| charge.bytes() > 0 && is_over(charge))
    }

    /// Adds a message: mostly the last one.
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

    /// Whether it was not there.
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

    /// The stretch that this place is in, or the next one behind it.
    fn behind(&self, sequence: u64) -> usize {
        self.stretches.partition_point(|&(_, last)| last < sequence)
    }

    /// Where the first message is, or was.
    pub(crate) fn first(&self) -> Option<Sequence> {
        self.stretches.front().map(|&(first, _)| Sequence(first))
    }

    /// Whether its first page is being read.
    pub(crate) fn is_being_read(&self) -> bool {
        self.reading.is_some()
    }

    /// Its first page is going to be read.
    pub(super) fn begin_reading(&mut self) {
        self.reading = self.stretches.front().zip(self.stretches.back()).map(|(front, back)| (front.0, back.1));
    }

    /// Nobody waits for the page any more.
    pub(crate) fn stop_reading(&mut self) {
        self.reading = None;
    }

    /// Takes out what a page has that was read of it: gives each message to `put`, in order. Returned are the places that are
    /// done with: their time is over, or they are no messages.
    pub(crate) fn take_page(&mut self, page: Page, mut put: impl FnMut(Delivery)) -> Vec<Sequence> {
        let last = page.messages.last().map(|(sequence, _)| *sequence);
        let mut over = Vec::new();
        for (sequence, delivery) in page.messages {
            // What is not known here is in memory already, or under way.
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

    /// Takes out one message that has been read, `bytes` long. False if it was not in here.
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

    /// The page has been read and taken, up to `last`; `None`: there was nothing in it. What the tail had in that stretch of
    /// the queue when it was asked for, and the page has not, is not there any more. What came in before it since then is.
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

    /// Nothing is there any more, whatever was counted.
    pub(crate) fn clear(&mut self) {
        self.stretches.clear();
        (self.messages, self.bytes) = (0, 0);
    }

    /// All that is in a queue but what is under way.
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
        // What is taken out of it counts without the head; and without what is under way, which counts as the average.
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
    /// What a session of the last run has waiting.
    pub(super) fn tail_of_session(&self, queue: &StoredQueue) -> Tail {
        Tail::of(self, queue.id())
    }

    /// What a share group of the last run has waiting. What was sent at QoS 2 to a member whose session ended with the last
    /// run goes to nobody else `[MQTT-4.8.2-5]`.
    pub(crate) fn tail_of_group(&self, queue: &StoredQueue) -> Tail {
        let sent = self.spool.marks(queue.id()).into_iter().filter(|marked| Mark::of(marked.mark).is_some());
        self.done(sent.map(|marked| place(queue.id(), marked.sequence)));
        Tail::of(self, queue.id())
    }

    /// The page that a tail begins with; until [`Tail::take_page`] there is no other.
    pub(crate) fn first_page(queue: &StoredQueue, tail: &mut Tail, bytes: usize) -> Option<PageOf> {
        let from = tail.first()?;
        tail.begin_reading();
        Some(PageOf { queue: queue.id(), is_of_group: queue.is_of_group(), from, bytes })
    }
}

/// Bytes of a record on disk beside its message's body, at least.
const RECORD_BYTES: u64 = 64;
/// Bytes that the log's index has in memory for each message of a queue.
const PLACE_BYTES: usize = 8;
/// Messages for which the charge grows at once.
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
    fn a_tail_knows_what_is_in_it_and_nothing_else() {
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
    fn what_of_a_page_the_tail_knows_is_taken_and_the_rest_is_somewhere_else() {
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
        // The twelfth is gone, the thirteenth with somebody.
        assert_eq!(take(&mut tail, page(&[(11, false), (13, false), (14, true)], true)), [14]);
        assert_eq!((&tail.stretches, tail.is_being_read()), (&VecDeque::from([(10, 10), (15, 16)]), false));
        tail.begin_reading();
        assert_eq!(take(&mut tail, page(&[(10, false), (13, true), (15, false)], false)), [0; 0]);
        assert_eq!(taken, [11, 10, 15]);
        assert_eq!(tail.stretches, [(16, 16)]);
    }

    #[test]
    fn what_comes_in_before_a_page_that_is_being_read_stays() {
        let mut tail = tail(&[11, 12, 13]);
        tail.begin_reading();
        tail.add(Sequence(10), 10); // appended before them, and handed over after
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
    fn a_head_that_goes_below_its_tail_is_one_stretch_with_it() {
        let mut tail = tail(&[1000]);
        (0..1000).for_each(|sequence| tail.add(Sequence(sequence), 1));
        assert_eq!((tail.stretches.len(), tail.messages()), (1, 1001));
    }

    #[test]
    fn a_tail_of_the_last_run_counts_what_is_taken_out_of_it() {
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
