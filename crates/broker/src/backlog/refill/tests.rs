use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use tenbin_balancer::Rng;
use tenbin_codec::{QoS, TopicName};
use tenbin_session::{Location, Publication};

use super::super::entries::tests::entries;
use super::*;

/// Entries with the state of their reads.
struct Stage {
    entries: Entries,
    refill: Refill,
    now: Instant,
}

impl Stage {
    fn new(sequences: &[u64]) -> Self {
        Self { entries: entries(sequences), refill: Refill::default(), now: Instant::now() }
    }

    /// Begins a read, and returns its ranges.
    fn begin(&mut self) -> Option<EntryRanges> {
        match self.refill.begin(&self.entries, &StoredQueue::numbered(1), 1000, self.now) {
            NextPage::Read(page) => Some(page.ranges),
            NextPage::None | NextPage::At(_) => None,
        }
    }

    /// Finishes a read with these messages, and returns its result. Entries from 1,000 on have no body: 1,012 is 12.
    fn finish(&mut self, ranges: &EntryRanges, sequences: &[u64], is_broken: bool) -> Option<(Vec<u64>, Refilled)> {
        let publication = Publication::new(TopicName::try_from("t").unwrap(), Bytes::from_static(b"x"));
        let delivery = Delivery::new(publication.template(&mut BytesMut::new()), QoS::AtLeastOnce, false);
        let message = |&sequence: &u64| {
            let delivery = Delivery { stored: Some(Location::Own(sequence).to_stored()), ..delivery.clone() };
            (Sequence(sequence % 1000), (sequence < 1000).then_some(delivery))
        };
        let messages = sequences.iter().map(message).collect();
        let page = Page { ranges: Arc::clone(ranges), messages, is_broken };
        let mut taken = Vec::new();
        let put = |delivery: Delivery| match delivery.location() {
            Some(Location::Own(sequence)) => taken.push(sequence),
            location => panic!("{location:?}"),
        };
        let refilled = self.refill.finish(&mut self.entries, page, self.now, put)?;
        Some((taken, refilled))
    }

    /// Reads a page that fails, and returns the pause in milliseconds.
    fn fail(&mut self, messages: &[u64]) -> u128 {
        let ranges = self.begin().unwrap();
        let (_, refilled) = self.finish(&ranges, messages, true).unwrap();
        let at = refilled.failed.unwrap().retry_at;
        let pause = at - self.now;
        self.now = at;
        pause.as_millis()
    }

    fn left(&self) -> Vec<(u64, u64)> {
        self.entries.first_page().iter().map(|range| (range.start().0, range.end().0)).collect()
    }
}

#[test]
fn messages_that_were_not_asked_for_are_skipped() {
    let mut stage = Stage::new(&[11, 12, 14, 15, 16]);
    let ranges = stage.begin().unwrap();
    assert!(stage.begin().is_none(), "one page at a time");
    stage.entries.add(Sequence(10), 10);
    // 12 is gone from the disk, 13 is in memory, and 14 has no body.
    let (taken, refilled) = stage.finish(&ranges, &[11, 13, 1014], true).unwrap();
    assert_eq!((taken, refilled.done, stage.left()), (vec![11], vec![Sequence(14)], vec![(10, 10), (15, 16)]));
    stage.now = refilled.failed.unwrap().retry_at;
    let ranges = stage.begin().unwrap();
    let (taken, refilled) = stage.finish(&ranges, &[10, 15], false).unwrap();
    assert_eq!((taken, refilled.done.len(), stage.left()), (vec![10, 15], 0, vec![(16, 16)]));
}

#[test]
fn entries_added_during_a_read_stay() {
    let mut stage = Stage::new(&[11, 12, 13, 20]);
    let ranges = stage.begin().unwrap();
    // Below the ranges being read, between them, and behind them.
    [10, 15, 21].into_iter().for_each(|sequence| stage.entries.add(Sequence(sequence), 10));
    let (taken, _) = stage.finish(&ranges, &[11, 13], false).unwrap();
    assert_eq!((taken, stage.left()), (vec![11, 13], vec![(10, 10), (15, 15), (20, 21)]), "the twelfth is gone");
    let ranges = stage.begin().unwrap();
    stage.entries.add(Sequence(14), 10);
    stage.finish(&ranges, &[], false).unwrap();
    assert_eq!(stage.left(), [(14, 14)], "an empty page: all that was asked for is gone");
    let ranges = stage.begin().unwrap();
    stage.finish(&ranges, &[], true).unwrap();
    assert_eq!(stage.left(), [(14, 14)], "nobody knows");
}

#[test]
fn page_of_a_cancelled_read_is_void() {
    let mut stage = Stage::new(&[1, 2]);
    let old = stage.begin().unwrap();
    stage.refill.cancel();
    assert!(stage.finish(&old, &[1, 2], false).is_none());
    let new = stage.begin().unwrap();
    assert!(stage.finish(&old, &[], false).is_none(), "even during the next read");
    assert_eq!(stage.finish(&new, &[1, 2], false).unwrap().0, [1, 2]);
}

#[test]
fn read_pause_doubles_and_restarts_after_partial_success() {
    let mut stage = Stage::new(&(1..=40).collect::<Vec<_>>());
    let pauses = [&[][..], &[], &[], &[1], &[]].map(|messages| stage.fail(messages));
    assert_eq!(pauses, [500, 1000, 2000, 500, 1000]);
    let pauses: Vec<_> = (0..10).map(|_| stage.fail(&[])).collect();
    assert_eq!(pauses[6..], [60_000; 4]);
    stage.now -= Duration::from_millis(1);
    assert!(stage.begin().is_none() && !stage.refill.is_due(stage.now), "it is too early");
    stage.refill.end_pause(stage.now + Duration::from_millis(1));
    let ranges = stage.begin().unwrap();
    stage.finish(&ranges, &[2], false).unwrap();
    assert_eq!(stage.fail(&[]), 500, "the last read was right");
}

/// Random steps against a model disk. `waiting` is the model of the entries.
struct Run {
    stage: Stage,
    rng: Rng,
    disk: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
    given: Vec<u64>,
    reading: Option<(EntryRanges, Vec<u64>)>,
    /// Offsets that were taken and whose messages have not been added yet: publishers add them in any order.
    under_way: Vec<u64>,
    next: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let [disk, waiting] = [BTreeSet::new(), BTreeSet::new()];
        let (stage, rng) = (Stage::new(&[]), Rng::new(seed));
        Self { stage, rng, disk, waiting, given: Vec::new(), reading: None, under_way: Vec::new(), next: 1 }
    }

    fn dice(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }

    fn step(&mut self) {
        match self.dice(12) {
            0..=2 => {
                self.disk.insert(self.next);
                self.under_way.push(self.next);
                self.next += 1 + u64::from(self.dice(4) == 0);
            }
            3..=5 if !self.under_way.is_empty() => {
                let at = self.dice(self.under_way.len());
                let added = self.under_way.swap_remove(at);
                self.stage.entries.add(Sequence(added), 10);
                self.waiting.insert(added);
            }
            6 if !self.disk.is_empty() => {
                let at = self.dice(self.disk.len());
                let gone = *self.disk.iter().nth(at).unwrap();
                self.disk.remove(&gone);
            }
            7 | 8 => self.begin(),
            9 | 10 => {
                let (most, is_broken) = (self.dice(6), self.dice(3) == 0);
                self.finish(most, is_broken);
            }
            11 => self.stage.refill.cancel(),
            _ => {}
        }
        let entries = self.stage.left().into_iter().flat_map(|(first, last)| first..=last).collect();
        assert!(self.waiting.is_superset(&entries), "nothing comes twice");
        assert!(self.waiting.intersection(&self.disk).all(|left| entries.contains(left)), "nothing is lost");
    }

    /// Begins a read. Messages on disk now may be on the page.
    fn begin(&mut self) {
        if let Some(ranges) = self.stage.begin() {
            let is_asked = |&&sequence: &&u64| ranges.iter().any(|range| range.contains(&Sequence(sequence)));
            let page = self.disk.iter().filter(is_asked).copied().collect();
            self.reading = Some((ranges, page));
        }
    }

    /// Finishes a read, which may have been cancelled, with this number of messages at most.
    fn finish(&mut self, most: usize, is_broken: bool) {
        let Some((ranges, mut page)) = self.reading.take() else { return };
        // A page that is whole ends with its last message. Only a broken one may be empty before its end.
        page.truncate(if is_broken { most } else { most.max(1) });
        let Some((taken, refilled)) = self.stage.finish(&ranges, &page, is_broken) else { return };
        assert!(taken.is_sorted() && taken.iter().all(|taken| self.waiting.remove(taken)), "{taken:?}");
        self.given.extend(taken);
        self.stage.now = refilled.failed.map_or(self.stage.now, |failed| failed.retry_at);
    }
}

#[test]
fn random_reads_give_each_message_on_disk_once() {
    for seed in 0..300 {
        let mut run = Run::new(seed);
        (0..200).for_each(|_| run.step());
        for added in std::mem::take(&mut run.under_way) {
            run.stage.entries.add(Sequence(added), 10);
            run.waiting.insert(added);
        }
        run.stage.refill.cancel();
        while !run.stage.entries.is_empty() {
            run.begin();
            run.finish(100, false);
        }
        assert!(run.waiting.is_disjoint(&run.disk), "seed {seed}: {:?}", run.waiting);
        let given = run.given.len();
        assert_eq!(run.given.into_iter().collect::<BTreeSet<_>>().len(), given, "seed {seed}: each once");
        assert_eq!((run.stage.entries.messages(), run.stage.entries.bytes()), (0, 0));
    }
}
