use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use tempfile::TempDir;
use tenbin_balancer::{MemberLoad, Nanos, Rng};
use tenbin_codec::{PublishTemplate, QoS, TopicName};
use tenbin_session::Delivery;
use tenbin_store::Sync;

use super::super::{Batch, Budget, Limits, Outbox, OutboxCommon, Pace, WhenFull};
use crate::backlog::NextPage;
use crate::durable::{Durable, Ended, Page, StoredQueue};

/// A receiver with its disk.
struct Stage {
    outbox: Outbox,
    durable: Arc<Durable>,
    page: Option<Page>,
    /// End of the pause after a failed read.
    retry_at: Option<Instant>,
    _directory: Arc<TempDir>,
}

/// Identity of a message: its publisher, its QoS, and its number among these.
type Mark = (u8, QoS, u32);

/// A batch of one publisher.
#[derive(Default)]
struct Batched {
    collected: Vec<(Delivery, Option<Arc<StoredQueue>>)>,
    is_appended: bool,
}

impl Batched {
    fn is_empty(&self) -> bool {
        self.collected.is_empty()
    }

    /// Adds a message like `router::publisher`.
    fn collect(&mut self, stage: &Stage, mark: Mark, bytes: usize) {
        let is_acknowledged = mark.1.is_acknowledged();
        let is_asked = is_acknowledged || stage.outbox.keeps_unacknowledged();
        let queue = if is_asked { stage.outbox.collects_in(is_acknowledged) } else { None };
        self.collected.push((delivery(mark, bytes), queue));
    }

    /// Appends the batch to the log like `router::fanout`.
    fn append(&mut self, stage: &Stage) {
        self.is_appended = true;
        let room = stage.durable.take_room(0, false).expect("nothing is booked");
        let mut log = stage.durable.append();
        for (delivery, queue) in &mut self.collected {
            if let Some(queue) = queue {
                log.place(queue, delivery, &room);
                log.close(None);
            }
        }
    }

    fn push(&mut self, stage: &Stage) {
        if !self.is_appended {
            self.append(stage);
        }
        self.is_appended = false;
        let mut deliveries = self.collected.drain(..).map(|(delivery, _)| delivery).collect();
        stage.outbox.push(&mut deliveries, &mut Vec::new(), Instant::now());
    }
}

fn delivery((publisher, qos, number): Mark, bytes: usize) -> Delivery {
    let topic = TopicName::try_from("t").unwrap();
    let mut payload = vec![publisher];
    payload.extend(number.to_be_bytes());
    payload.resize(bytes.max(5), 0);
    Delivery::new(PublishTemplate::new(&topic, None, &payload.into(), &mut BytesMut::new()), qos, false)
}

fn mark(delivery: &Delivery) -> Mark {
    let (publisher, rest) = delivery.template.payload().split_first().unwrap();
    (*publisher, delivery.qos, u32::from_be_bytes(*rest.first_chunk().unwrap()))
}

impl Stage {
    fn new(when_full: WhenFull) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let durable = Arc::new(Durable::open(directory.path(), Sync::Never, 0).unwrap());
        Self::on(&directory, &durable, when_full, 1 << 20)
    }

    /// Another receiver on the same disk, with `bytes` of memory.
    fn again(&self, when_full: WhenFull, bytes: usize) -> Self {
        Self::on(&self._directory, &self.durable, when_full, bytes)
    }

    fn on(directory: &Arc<TempDir>, durable: &Arc<Durable>, when_full: WhenFull, bytes: usize) -> Self {
        let limits = Limits { bytes, stored_bytes: 1 << 30, has_store: true, ..Limits::for_tests(10_000, when_full) };
        let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(1 << 30)));
        let common = OutboxCommon { durable: Some(Arc::clone(durable)), ..common };
        let outbox = Outbox::new(Arc::new(common), Arc::new(MemberLoad::new(Nanos(0))));
        outbox.attach(u32::MAX, None);
        Self { outbox, durable: Arc::clone(durable), page: None, retry_at: None, _directory: Arc::clone(directory) }
    }

    fn set_pace(&self, pace: Pace) -> bool {
        self.outbox.set_pace(1, pace, 0)
    }

    fn spooled(&self) -> usize {
        self.outbox.sample().unwrap().1.tail_messages
    }

    /// Takes the messages that can leave memory.
    fn take(&self, bytes: usize) -> Vec<Mark> {
        let mut batch = Batch::default();
        self.outbox.take_now(usize::MAX, bytes, &mut batch);
        let deliveries = batch.into_singles();
        let kept: Vec<_> = deliveries.iter().filter_map(|delivery| delivery.stored).collect();
        match self.outbox.stored() {
            Some(queue) => {
                self.durable.end(Ended::Delivered, kept.into_iter().filter_map(|stored| queue.place_of(stored)));
                assert!(deliveries.iter().all(|delivery| delivery.stored.is_some() == delivery.qos.is_acknowledged()));
            }
            None => assert!(kept.is_empty(), "nothing has to be told to the disk"),
        }
        deliveries.iter().map(mark).collect()
    }

    /// Begins or finishes reading a page. `readable`: how many of its messages can be read.
    fn read(&mut self, readable: usize) {
        match self.page.take() {
            Some(mut page) => {
                page.is_broken |= readable < page.messages.len();
                page.messages.truncate(readable);
                let refilled = self.outbox.refill(page, Instant::now(), |_| false);
                assert!(refilled.done.is_empty());
                self.retry_at = refilled.failed.map(|failed| failed.retry_at);
            }
            None => {
                let now = self.retry_at.unwrap_or_else(Instant::now);
                if let NextPage::Read(page) = self.outbox.next_page(now) {
                    self.page = Some(self.durable.reader.page(page).blocking_recv().unwrap());
                }
            }
        }
    }

    /// Takes all messages.
    fn take_all(&mut self) -> Vec<Mark> {
        let mut all = Vec::new();
        loop {
            all.extend(self.take(usize::MAX));
            self.read(usize::MAX);
            if self.page.is_none() && !self.outbox.has_tail() {
                all.extend(self.take(usize::MAX));
                return all;
            }
        }
    }
}

const ONE: QoS = QoS::AtLeastOnce;

fn ones(publisher: u8, numbers: std::ops::Range<u32>) -> impl Iterator<Item = Mark> {
    numbers.map(move |number| (publisher, ONE, number))
}

#[test]
fn spilled_messages_return_in_order_behind_the_head() {
    let mut stage = Stage::new(WhenFull::DropOldest);
    let mut batch = Batched::default();
    ones(0, 0..500).for_each(|mark| batch.collect(&stage, mark, 1000));
    batch.push(&stage);
    assert!(stage.outbox.collects_in(true).is_none());
    assert!(stage.set_pace(Pace::Spooling));
    let (_, sample) = stage.outbox.sample().unwrap();
    assert!(sample.bytes <= crate::backlog::HEAD_BYTES && sample.tail_messages > 400, "{sample:?}");
    assert!(stage.outbox.stored().is_none(), "the session ends with its connection all the same");
    assert!(!stage.set_pace(Pace::Normal), "not while there is a tail");
    ones(0, 500..600).for_each(|mark| batch.collect(&stage, mark, 1000));
    batch.push(&stage);
    assert_eq!(stage.take_all(), ones(0, 0..600).collect::<Vec<_>>());
    assert!(stage.set_pace(Pace::Normal));
    assert!(stage.outbox.collects_in(true).is_none(), "new messages are in memory alone");
    assert_eq!(stage.durable.spool_stats().waiting, 0);
}

#[test]
fn batch_spanning_begin_of_spill_keeps_its_order() {
    let mut stage = Stage::new(WhenFull::DropOldest);
    let (mut batch, mut other) = (Batched::default(), Batched::default());
    ones(1, 0..100).for_each(|mark| other.collect(&stage, mark, 1000));
    other.push(&stage);
    batch.collect(&stage, (0, ONE, 0), 1000);
    assert!(stage.set_pace(Pace::Spooling));
    batch.collect(&stage, (0, ONE, 1), 1000);
    batch.push(&stage);
    let of_publisher = |marks: Vec<Mark>| marks.into_iter().filter(|mark| mark.0 == 0).collect::<Vec<_>>();
    assert_eq!(of_publisher(stage.take_all()), [(0, ONE, 0), (0, ONE, 1)]);
    assert_eq!(stage.durable.spool_stats().waiting, 0);
}

#[test]
fn message_appended_before_spill_restart_keeps_its_order() {
    let mut stage = Stage::new(WhenFull::DropOldest);
    let mut batch = Batched::default();
    batch.collect(&stage, (0, ONE, 0), 70_000);
    assert!(stage.set_pace(Pace::Spooling));
    batch.push(&stage);
    assert_eq!(stage.spooled(), 0, "the head has room");
    batch.collect(&stage, (0, ONE, 1), 1000);
    batch.append(&stage);
    assert!(stage.set_pace(Pace::Normal) && stage.set_pace(Pace::Spooling));
    assert_eq!(stage.spooled(), 1);
    batch.push(&stage);
    assert_eq!(stage.take_all(), [(0, ONE, 0), (0, ONE, 1)]);
    assert_eq!(stage.durable.spool_stats().waiting, 0);
}

#[test]
fn push_to_recovered_receiver_completes_disk_entry() {
    let mut stage = Stage::new(WhenFull::DropOldest);
    let (mut early, mut late) = (Batched::default(), Batched::default());
    assert!(stage.set_pace(Pace::Spooling));
    early.collect(&stage, (0, ONE, 0), 1000);
    late.collect(&stage, (1, ONE, 0), 1000);
    early.append(&stage);
    assert_eq!(stage.durable.spool_stats().waiting, 1);
    assert!(stage.set_pace(Pace::Normal));
    early.push(&stage);
    assert_eq!(stage.durable.spool_stats().waiting, 0);
    late.push(&stage);
    assert_eq!(stage.take_all(), [(0, ONE, 0), (1, ONE, 0)]);
}

#[test]
fn overflow_goes_to_disk_at_once_and_keeps_order() {
    let first = Stage::new(WhenFull::Spool);
    for qos in [ONE, QoS::AtMostOnce] {
        let mut stage = first.again(WhenFull::Spool, 100_000);
        let (mut batch, mut later) = (Batched::default(), Batched::default());
        (0..300).for_each(|number| batch.collect(&stage, (0, qos, number), 1000));
        batch.push(&stage);
        assert!(stage.spooled() > 150);
        assert!(stage.set_pace(Pace::Spooling));
        let (_, sample) = stage.outbox.sample().unwrap();
        assert!(sample.bytes <= crate::backlog::HEAD_BYTES, "{sample:?}");
        (300..400).for_each(|number| later.collect(&stage, (0, qos, number), 1000));
        later.push(&stage);
        assert_eq!(stage.take_all(), (0..400).map(|number| (0, qos, number)).collect::<Vec<_>>());
        assert!(stage.set_pace(Pace::Normal), "it has caught up");
        assert!(stage.outbox.collects_in(true).is_none());
        assert_eq!(stage.outbox.common.metrics.dropped_queue_full.get(), 0);
    }
    assert_eq!(first.durable.spool_stats().waiting, 0);
}

#[test]
fn transient_spill_ends_with_the_connection() {
    let stage = Stage::new(WhenFull::DropOldest);
    let (mut batch, mut late) = (Batched::default(), Batched::default());
    ones(0, 0..500).for_each(|mark| batch.collect(&stage, mark, 1000));
    batch.push(&stage);
    assert!(stage.set_pace(Pace::Spooling));
    let first = stage.outbox.collects_in(true).unwrap();
    late.collect(&stage, (1, ONE, 0), 1000);
    late.append(&stage);
    stage.outbox.detach_all();
    assert_eq!(stage.durable.spool_stats().waiting, 0);
    assert!(!stage.outbox.has_tail() && stage.outbox.collects_in(true).is_none());
    stage.outbox.clear();
    // Another session of the same client.
    stage.outbox.attach(u32::MAX, None);
    assert!(stage.outbox.set_pace(2, Pace::Spooling, 0));
    let second = stage.outbox.collects_in(true).unwrap();
    assert_ne!(first.id(), second.id());
    let [first_end, second_begin] = [first, second].map(|queue| queue.leave_room(0).start);
    assert!(first_end <= second_begin, "what is under way yet is known by its place");
    late.push(&stage);
    assert_eq!(stage.take(usize::MAX), [(1, ONE, 0)]);
}

#[test]
fn random_state_changes_keep_each_publishers_order() {
    let first = Stage::new(WhenFull::Spool);
    let mut switches = 0;
    for seed in 0..150 {
        let when_full = if seed % 3 == 0 { WhenFull::DropNewest } else { WhenFull::Spool };
        let mut stage = first.again(when_full, [1 << 20, 150_000][usize::from(seed % 5 == 0)]);
        if seed % 2 == 0 {
            stage.outbox.store_in(Some(StoredQueue::numbered(1_000_000 + seed)));
        }
        switches += Run::new(seed, when_full).run(&mut stage);
        stage.outbox.detach_all();
        stage.outbox.clear();
    }
    assert!(switches > 1500, "{switches}");
    assert_eq!(first.durable.spool_stats().waiting, 0, "nothing is left behind");
}

const PUBLISHERS: usize = 3;

/// Marks that a run still expects, by publisher and QoS.
type Counts = [[u32; 2]; PUBLISHERS];

/// A run of random steps, with the model: each publisher's messages of one QoS arrive once and in order.
struct Run {
    seed: u64,
    rng: Rng,
    connection: u32,
    /// QoS 0 messages may be dropped.
    may_drop: bool,
    sent: Counts,
    got: Counts,
    /// Messages below these numbers ended with their session, or may have.
    ended: Counts,
    switches: usize,
}

impl Run {
    fn new(seed: u64, when_full: WhenFull) -> Self {
        let [sent, got, ended] = [Counts::default(); 3];
        let may_drop = when_full != WhenFull::Spool;
        Self { seed, rng: Rng::new(seed), connection: 1, may_drop, sent, got, ended, switches: 0 }
    }

    fn dice(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    /// Returns how often the receiver became slow.
    fn run(mut self, stage: &mut Stage) -> usize {
        let mut batches: [Batched; PUBLISHERS] = Default::default();
        let mut largest = 1000;
        for step in 0..600 {
            if step % 8 == 0 {
                stage.durable.wait_for_messages(); // QoS 0 messages are dropped if the disk is congested
            }
            let publisher = self.dice(PUBLISHERS as u64) as usize;
            let batch = &mut batches[publisher];
            match self.dice(21) {
                0..=6 if !batch.is_appended => {
                    for _ in 0..=self.dice(4) {
                        let qos = [QoS::AtMostOnce, ONE][self.dice(2) as usize];
                        let bytes = self.dice(largest) as usize;
                        let number = &mut self.sent[publisher][usize::from(qos.bits())];
                        batch.collect(stage, (publisher as u8, qos, *number), bytes);
                        *number += 1;
                    }
                }
                7 | 8 if !batch.is_empty() && !batch.is_appended => batch.append(stage),
                9..=11 => batch.push(stage),
                12 => {
                    let is_slow = stage.outbox.set_pace(self.connection, Pace::Spooling, 0);
                    self.switches += usize::from(is_slow);
                }
                13 => drop(stage.outbox.set_pace(self.connection, Pace::Normal, 0)),
                14 | 15 => {
                    let bytes = self.dice(40_000) as usize;
                    self.judge(stage.take(bytes));
                }
                16 | 17 => stage.read(usize::MAX),
                18 => stage.read(self.rng.next_u64() as usize % 3),
                // Rarely, so that a backlog can grow.
                19 if self.dice(8) == 0 => {
                    batch.push(stage);
                    self.connect_again(stage, batch);
                }
                _ => largest = [100, 5_000, 30_000][self.dice(3) as usize],
            }
        }
        batches.iter_mut().for_each(|batch| batch.push(stage));
        self.judge(stage.take_all());
        for (got, (sent, ended)) in self.got.iter_mut().zip(self.sent.iter().zip(&self.ended)) {
            *got = [got[0].max(if self.may_drop { sent[0] } else { ended[0] }), got[1].max(ended[1])];
        }
        assert_eq!(self.got, self.sent, "seed {}", self.seed);
        self.switches
    }

    /// Ends the connection and begins another one. A batch is pushed in between.
    fn connect_again(&mut self, stage: &mut Stage, batch: &mut Batched) {
        let lasts = stage.outbox.stored().is_some();
        stage.outbox.detach_all();
        if !lasts {
            stage.outbox.clear();
        }
        for (publisher, ended) in self.ended.iter_mut().enumerate() {
            ended[0] = self.sent[publisher][0];
            if !lasts {
                ended[1] = self.sent[publisher][1];
            }
        }
        if lasts {
            batch.push(stage);
        }
        if self.dice(2) == 0 {
            stage.page = None; // otherwise it comes too late
        }
        stage.outbox.attach(u32::MAX, None);
        self.connection += 1;
    }

    fn judge(&mut self, marks: Vec<Mark>) {
        for (publisher, qos, number) in marks {
            let (publisher, class) = (usize::from(publisher), usize::from(qos.bits()));
            let next = &mut self.got[publisher][class];
            let may_skip = number <= self.ended[publisher][class] || (self.may_drop && !qos.is_acknowledged());
            let is_right = number == *next || (number > *next && may_skip);
            assert!(is_right, "seed {}, publisher {publisher}, QoS {qos}: {number} instead of {next}", self.seed);
            *next = number + 1;
        }
    }
}
