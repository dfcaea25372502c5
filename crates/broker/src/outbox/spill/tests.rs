use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use tempfile::TempDir;
use tenbin_balancer::{MemberLoad, Nanos, Rng};
use tenbin_codec::{PublishTemplate, QoS, TopicName};
use tenbin_session::Delivery;
use tenbin_store::Sync;

use super::super::{Batch, Budget, Outbox, OutboxCommon, OutboxLimits, Pace, WhenFull};
use crate::durable::{Durable, Page, Stored, StoredQueue};

/// A receiver with its disk.
struct Stage {
    outbox: Outbox,
    durable: Arc<Durable>,
    page: Option<Page>,
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
        let queue = match mark.1.is_acknowledged() {
            true => stage.outbox.collects_in(),
            false if stage.outbox.keeps_unacknowledged() => stage.outbox.collects_unacknowledged_in(),
            false => None,
        };
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
        let durable = Arc::new(Durable::open(directory.path(), Sync::Never).unwrap());
        Self::on(&directory, &durable, when_full, 1 << 20)
    }

    /// Another receiver on the same disk, with `bytes` of memory.
    fn again(&self, when_full: WhenFull, bytes: usize) -> Self {
        Self::on(&self._directory, &self.durable, when_full, bytes)
    }

    fn on(directory: &Arc<TempDir>, durable: &Arc<Durable>, when_full: WhenFull, bytes: usize) -> Self {
        let limits = OutboxLimits {
            bytes,
            stored_bytes: 1 << 30,
            has_store: true,
            ..OutboxLimits::for_tests(10_000, when_full)
        };
        let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(1 << 30)));
        let common = OutboxCommon { durable: Some(Arc::clone(durable)), ..common };
        let outbox = Outbox::new(Arc::new(common), Arc::new(MemberLoad::new(Nanos(0))));
        outbox.attach(u32::MAX, None);
        Self { outbox, durable: Arc::clone(durable), page: None, _directory: Arc::clone(directory) }
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
                self.durable.settle_places(&queue, kept.into_iter().map(|stored| Stored::of(stored).sequence()));
                assert!(deliveries.iter().all(|delivery| delivery.stored.is_some() == delivery.qos.is_acknowledged()));
            }
            None => assert!(kept.is_empty(), "nothing has to be told to the disk"),
        }
        deliveries.iter().map(mark).collect()
    }

    /// Begins or finishes reading a page.
    fn read(&mut self) {
        match self.page.take() {
            Some(page) => assert!(self.outbox.refill(page).is_empty()),
            None => self.page = self.outbox.next_page().map(|page| self.durable.read(page).blocking_recv().unwrap()),
        }
    }

    /// Takes all messages.
    fn take_all(&mut self) -> Vec<Mark> {
        let mut all = Vec::new();
        loop {
            all.extend(self.take(usize::MAX));
            self.read();
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
    assert!(stage.outbox.collects_in().is_none());
    assert!(stage.set_pace(Pace::Spooling));
    let (_, sample) = stage.outbox.sample().unwrap();
    assert!(sample.bytes <= super::super::queue::HEAD_BYTES && sample.tail_messages > 400, "{sample:?}");
    assert!(stage.outbox.stored().is_none(), "the session ends with its connection all the same");
    assert!(!stage.set_pace(Pace::Normal), "not while there is a tail");
    ones(0, 500..600).for_each(|mark| batch.collect(&stage, mark, 1000));
    batch.push(&stage);
    assert_eq!(stage.take_all(), ones(0, 0..600).collect::<Vec<_>>());
    assert!(stage.set_pace(Pace::Normal));
    assert!(stage.outbox.collects_in().is_none(), "new messages are in memory alone");
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
        assert!(sample.bytes <= super::super::queue::HEAD_BYTES, "{sample:?}");
        (300..400).for_each(|number| later.collect(&stage, (0, qos, number), 1000));
        later.push(&stage);
        assert_eq!(stage.take_all(), (0..400).map(|number| (0, qos, number)).collect::<Vec<_>>());
        assert!(stage.set_pace(Pace::Normal), "it has caught up");
        assert!(stage.outbox.collects_in().is_none());
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
    let first = stage.outbox.collects_in().unwrap();
    late.collect(&stage, (1, ONE, 0), 1000);
    late.append(&stage);
    stage.outbox.detach_all();
    assert_eq!(stage.durable.spool_stats().waiting, 0);
    assert!(!stage.outbox.has_tail() && stage.outbox.collects_in().is_none());
    stage.outbox.clear();
    // Another session of the same client.
    stage.outbox.attach(u32::MAX, None);
    assert!(stage.outbox.set_pace(2, Pace::Spooling, 0));
    let second = stage.outbox.collects_in().unwrap();
    assert_ne!(first.id(), second.id());
    assert!(first.next_sequence() < second.next_sequence(), "what is under way yet is known by its place");
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
        switches += run(&mut stage, seed, when_full == WhenFull::Spool);
    }
    assert!(switches > 1500, "{switches}");
    assert_eq!(first.durable.spool_stats().waiting, 0, "nothing is left behind");
}

const PUBLISHERS: usize = 3;

/// Runs random steps; returns how often the receiver became slow.
fn run(stage: &mut Stage, seed: u64, has_all: bool) -> usize {
    let seen = format!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut dice = |bound: u64| rng.next_u64() % bound;
    let mut batches: [Batched; PUBLISHERS] = Default::default();
    let (mut sent, mut got) = ([[0; 2]; PUBLISHERS], [[0; 2]; PUBLISHERS]);
    let (mut switches, mut largest) = (0, 1000);
    for step in 0..600 {
        if step % 8 == 0 {
            stage.durable.wait_for_messages(); // QoS 0 messages are dropped if the disk is congested
        }
        let publisher = dice(PUBLISHERS as u64) as usize;
        let batch = &mut batches[publisher];
        match dice(20) {
            0..=6 if !batch.is_appended => {
                for _ in 0..=dice(4) {
                    let qos = [QoS::AtMostOnce, ONE][dice(2) as usize];
                    let number = &mut sent[publisher][usize::from(qos.bits())];
                    batch.collect(stage, (publisher as u8, qos, *number), dice(largest) as usize);
                    *number += 1;
                }
            }
            7 | 8 if !batch.is_empty() && !batch.is_appended => batch.append(stage),
            9..=11 => batch.push(stage),
            12 => switches += usize::from(stage.set_pace(Pace::Spooling)),
            13 => drop(stage.set_pace(Pace::Normal)),
            14 | 15 => judge(stage.take(dice(40_000) as usize), &mut got, has_all, &seen),
            16 | 17 => stage.read(),
            18 => judge(stage.take(0), &mut got, has_all, &seen),
            _ => largest = [100, 5_000, 30_000][dice(3) as usize],
        }
    }
    batches.iter_mut().for_each(|batch| batch.push(stage));
    judge(stage.take_all(), &mut got, has_all, &seen);
    if !has_all {
        (0..PUBLISHERS).for_each(|publisher| got[publisher][0] = sent[publisher][0]);
    }
    assert_eq!(got, sent, "{seen}");
    switches
}

/// Checks that all messages arrive once and in order, except for QoS 0 messages that may be dropped.
fn judge(marks: Vec<Mark>, got: &mut [[u32; 2]; PUBLISHERS], has_all: bool, seen: &str) {
    for (publisher, qos, number) in marks {
        let next = &mut got[usize::from(publisher)][usize::from(qos.bits())];
        let is_right = number == *next || (number > *next && !has_all && !qos.is_acknowledged());
        assert!(is_right, "{seen}, publisher {publisher}, QoS {qos}: {number} instead of {next}");
        *next = number + 1;
    }
}
