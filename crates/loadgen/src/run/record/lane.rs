use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::growing_set::GrowingSet;
use super::sequence_set::SequenceSet;

/// A stream as one receiver gets it, while messages arrive.
#[derive(Debug, Default)]
pub(super) struct LaneTally {
    came: GrowingSet,
    counts: LaneCounts,
    /// Only if there were copies or messages out of order.
    faults: Option<Box<FaultTally>>,
    /// One more than the highest number that arrived.
    next: u32,
}

/// Numbers of the messages that came again or late, while messages arrive.
#[derive(Debug, Default)]
struct FaultTally {
    repeated: GrowingSet,
    repeated_again: Vec<u32>,
    late: GrowingSet,
}

/// A stream as one receiver got it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    /// All numbers that arrived.
    pub(super) came: SequenceSet,
    pub(super) counts: LaneCounts,
    faults: Option<Box<Faults>>,
}

/// Numbers of the messages that came again or late.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Faults {
    /// Numbers with a copy after the first one.
    repeated: SequenceSet,
    /// A number for each copy after the second one.
    repeated_again: Vec<u32>,
    /// Numbers that came behind a later one.
    late: SequenceSet,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LaneCounts {
    /// Numbers in `came` whose first copy had the DUP flag.
    marked: SequenceSet,
    /// Copies of messages after the first one.
    pub(super) copies: u64,
    /// Of `copies`, those without the DUP flag.
    pub(super) copies_unmarked: u64,
    pub(super) out_of_order: u64,
}

impl LaneTally {
    /// Records an arrival; returns whether it is the first copy.
    #[inline]
    pub(super) fn arrive(&mut self, sequence: u32, dup: bool) -> bool {
        if !self.came.insert(sequence) {
            self.counts.copies += 1;
            self.counts.copies_unmarked += u64::from(!dup);
            let faults = self.faults.get_or_insert_default();
            if !faults.repeated.insert(sequence) {
                faults.repeated_again.push(sequence);
            }
            return false;
        }
        if dup {
            // The broker says that it sends the message again: the first sending decided the order.
            self.counts.marked.insert(sequence);
        } else if sequence < self.next {
            self.counts.out_of_order += 1;
            self.faults.get_or_insert_default().late.insert(sequence);
        }
        self.next = self.next.max(sequence + 1);
        true
    }

    pub(super) fn pack(self) -> Lane {
        let faults = self.faults.map(|faults| {
            let FaultTally { repeated, mut repeated_again, late } = *faults;
            repeated_again.sort_unstable();
            Box::new(Faults { repeated: repeated.into_set(), repeated_again, late: late.into_set() })
        });
        Lane { came: self.came.into_set(), counts: self.counts, faults }
    }
}

impl Faults {
    /// Adds the faults of another recorder, and the numbers in `common`, of which both have the first copy.
    fn merge(&mut self, other: Self, common: &SequenceSet) {
        for more in [&other.repeated, common] {
            self.repeated_again.extend(self.repeated.within(0..u32::MAX) & more.within(0..u32::MAX));
            self.repeated.unite(more);
        }
        self.repeated_again.extend(other.repeated_again);
        self.repeated_again.sort_unstable();
        self.late.unite(&other.late);
    }
}

impl Lane {
    /// Copies of the messages in `sequences` after the first one.
    pub(super) fn copies_within(&self, sequences: Range<u32>) -> u64 {
        let Some(faults) = &self.faults else { return 0 };
        let below = |end: u32| faults.repeated_again.partition_point(|sequence| *sequence < end);
        let again = below(sequences.end).saturating_sub(below(sequences.start)) as u64;
        faults.repeated.len_within(sequences) + again
    }

    /// Messages in `sequences` that came behind a later one.
    pub(super) fn late_within(&self, sequences: Range<u32>) -> u64 {
        self.faults.as_ref().map_or(0, |faults| faults.late.len_within(sequences))
    }

    /// Adds the arrivals of another recorder for the same stream and receiver.
    ///
    /// A message that both recorders saw counts as one copy too many. Which copy came first is unknown, and so is the
    /// order of one recorder's messages relative to the other's.
    pub(super) fn merge(&mut self, other: &Self) {
        let unmarked = self.unmarked();
        let other_unmarked = other.unmarked();
        let common = self.came.common(&other.came);
        if other.faults.is_some() || !common.is_empty() {
            let others = other.faults.as_deref().cloned().unwrap_or_default();
            self.faults.get_or_insert_default().merge(others, &common);
        }
        let (counts, others) = (&mut self.counts, &other.counts);
        counts.copies += others.copies + self.came.common_len(&other.came);
        counts.copies_unmarked += others.copies_unmarked + unmarked.common_len(&other_unmarked);
        counts.out_of_order += others.out_of_order;
        self.came.unite(&other.came);
        if !(counts.marked.is_empty() && others.marked.is_empty()) {
            let mut all_unmarked = unmarked;
            all_unmarked.unite(&other_unmarked);
            counts.marked = self.came.without(&all_unmarked);
        }
    }

    /// Numbers whose first copy had no DUP flag.
    fn unmarked(&self) -> SequenceSet {
        let marked = &self.counts.marked;
        if marked.is_empty() { self.came.clone() } else { self.came.without(marked) }
    }
}

/// A stream as its publisher sends it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SentStream {
    /// Sequence numbers below this one were handed to a socket.
    attempted: u32,
    /// Of the attempted numbers, those that were published.
    published: SequenceSet,
    /// Of the attempted numbers, those that the broker refused.
    refused: SequenceSet,
    /// Numbers and due times, both in ascending order, unless due times follow from the plan.
    checkpoints: Vec<(u32, u64)>,
}

impl SentStream {
    pub(super) fn attempt(&mut self, upto: u32) {
        self.attempted = self.attempted.max(upto);
    }

    /// Notes that the messages from `sequence` on are due at `due_ns` or later.
    pub(super) fn note_due(&mut self, sequence: u32, due_ns: u64) {
        // Messages of a lost connection may be sent anew, and then are due later.
        while self.checkpoints.pop_if(|(noted, _)| *noted >= sequence).is_some() {}
        let is_new = |(_, noted_ns): &(u32, u64)| due_ns >= noted_ns.saturating_add(CHECKPOINT_NS);
        if self.checkpoints.last().is_none_or(is_new) {
            self.checkpoints.push((sequence, due_ns));
        }
    }

    /// Records that the broker refused a message.
    pub(super) fn refuse(&mut self, sequence: u32) {
        self.refused.insert(sequence);
    }

    pub(super) fn publish(&mut self, sequences: Range<u32>) {
        self.attempt(sequences.end);
        self.published.insert_range(sequences);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.attempt(other.attempted);
        self.published.unite(&other.published);
        self.refused.unite(&other.refused);
        self.checkpoints.extend_from_slice(&other.checkpoints);
        self.checkpoints.sort_unstable();
    }

    /// Sequence numbers below this one were handed to a socket.
    pub(super) fn attempted_upto(&self) -> u32 {
        self.attempted
    }

    /// Numbers that were published.
    pub(super) fn acknowledged(&self) -> &SequenceSet {
        &self.published
    }

    /// Numbers that the broker refused.
    pub(super) fn refused(&self) -> &SequenceSet {
        &self.refused
    }

    /// Number of messages that were due before `ns`, by the checkpoints.
    pub(super) fn sequences_below(&self, ns: u64) -> u32 {
        let place = self.checkpoints.partition_point(|(_, due_ns)| *due_ns < ns);
        self.checkpoints.get(place).map_or(self.attempted, |(sequence, _)| *sequence)
    }

    /// When a message was due, by the checkpoints.
    pub(super) fn due_ns(&self, sequence: u32) -> Option<u64> {
        let place = self.checkpoints.partition_point(|(noted, _)| *noted <= sequence).checked_sub(1)?;
        Some(self.checkpoints[place].1)
    }

    pub(super) fn attempted(&self) -> u64 {
        u64::from(self.attempted)
    }

    pub(super) fn published(&self) -> u64 {
        self.published.len()
    }

    /// Number of `came` that are published.
    pub(super) fn published_of(&self, came: &SequenceSet) -> u64 {
        self.published.common_len(came)
    }

    /// Number of `came` that were attempted.
    pub(super) fn attempted_of(&self, came: &SequenceSet) -> u64 {
        came.len_below(self.attempted)
    }
}

/// Least time between two checkpoints.
const CHECKPOINT_NS: u64 = 10_000_000;

/// One stream as all members of a share group got it together.
#[derive(Debug, Default)]
pub(super) struct SharedLane {
    pub(super) came: SequenceSet,
    /// First copies at members other than the first one.
    pub(super) to_another_member: u64,
    /// Of `to_another_member`, those without the DUP flag.
    pub(super) to_another_unmarked: u64,
}

impl SharedLane {
    /// Merges the lanes of all members.
    ///
    /// Of the copies at different members, one counts as the message itself: one without the DUP flag, if any.
    /// Recorders of different threads cannot tell which copy came first.
    pub(super) fn of(lanes: &[&Lane]) -> Self {
        let first_copies: u64 = lanes.iter().map(|lane| lane.came.len()).sum();
        let came = union(lanes.iter().map(|lane| &lane.came));
        let to_another_member = first_copies - came.len();
        let to_another_unmarked = if to_another_member == 0 || lanes.iter().all(|lane| lane.counts.marked.is_empty()) {
            to_another_member
        } else {
            let unmarked: Vec<_> = lanes.iter().map(|lane| lane.unmarked()).collect();
            unmarked.iter().map(SequenceSet::len).sum::<u64>() - union(unmarked.iter()).len()
        };
        Self { came, to_another_member, to_another_unmarked }
    }
}

fn union<'a>(sets: impl Iterator<Item = &'a SequenceSet>) -> SequenceSet {
    let mut all = SequenceSet::default();
    sets.for_each(|set| all.unite(set));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(arrivals: &[(u32, bool)]) -> Lane {
        let mut lane = LaneTally::default();
        for &(sequence, dup) in arrivals {
            lane.arrive(sequence, dup);
        }
        lane.pack()
    }

    /// Numbers, copies, copies without DUP, and numbers out of order.
    fn told(Lane { came, counts, .. }: &Lane) -> (u64, u64, u64, u64) {
        (came.len(), counts.copies, counts.copies_unmarked, counts.out_of_order)
    }

    #[test]
    fn a_copy_is_no_message_out_of_order() {
        let lane =
            lane(&[(0, false), (2, false), (1, false), (1, false), (2, true), (5, false), (4, true), (3, false)]);
        assert_eq!(told(&lane), (6, 2, 1, 2));
        assert_eq!([0..2, 2..3, 0..9].map(|range| lane.copies_within(range)), [1, 1, 2]);
        assert_eq!([0..2, 2..4, 4..5].map(|range| lane.late_within(range)), [1, 1, 0]);
    }

    #[test]
    fn resent_message_with_dup_is_not_out_of_order() {
        let resent = lane(&[(3, false), (0, true), (1, true), (2, true), (4, false)]);
        assert_eq!(told(&resent), (5, 0, 0, 0));
    }

    #[test]
    fn a_message_at_two_members_is_one_copy_too_many() {
        let one = lane(&[(0, false), (1, false), (1, false), (3, false)]);
        let other = lane(&[(1, false), (2, false), (3, true)]);
        let shared = SharedLane::of(&[&one, &other]);
        assert_eq!((shared.came.len(), shared.to_another_member, shared.to_another_unmarked), (4, 2, 1));
        // Both copies have DUP: it is unknown which is the first, and no copy is without the flag.
        let shared = SharedLane::of(&[&lane(&[(0, true)]), &lane(&[(0, true)])]);
        assert_eq!((shared.to_another_member, shared.to_another_unmarked), (1, 0));
    }

    #[test]
    fn a_receiver_that_two_recorders_have_seen_loses_no_copy() {
        let mut lane_here = lane(&[(0, false), (1, true), (2, false), (2, true)]);
        lane_here.merge(&lane(&[(1, true), (2, false), (3, true)]));
        assert_eq!(told(&lane_here), (4, 3, 1, 0));
        assert_eq!((lane_here.unmarked().len(), lane_here.counts.marked.len()), (2, 2));
        assert_eq!([0..2, 2..3, 3..9].map(|range| lane_here.copies_within(range)), [1, 2, 0]);
    }

    #[test]
    fn checkpoints_date_messages_within_10_ms() {
        let mut stream = SentStream::default();
        for (sequence, due_ms) in [(0, 100), (5, 105), (8, 110), (20, 119), (30, 300)] {
            stream.note_due(sequence, due_ms * 1_000_000);
        }
        stream.attempt(40);
        let due = |sequence| stream.due_ns(sequence).map(|ns| ns / 1_000_000);
        assert_eq!([0, 7, 8, 29, 30, 39].map(due), [100, 100, 110, 110, 300, 300].map(Some));
        let below = |stream: &SentStream, ms: u64| stream.sequences_below(ms * 1_000_000);
        assert_eq!([100, 101, 110, 111, 300, 301].map(|ms| below(&stream, ms)), [0, 8, 8, 30, 30, 40]);
        // Sent anew on another connection.
        stream.note_due(25, 350_000_000);
        assert_eq!([300, 301, 350, 351].map(|ms| below(&stream, ms)), [25, 25, 25, 40]);
        assert_eq!(SentStream::default().due_ns(0), None);
    }

    #[test]
    fn published_messages_count_as_attempted() {
        let mut stream = SentStream::default();
        stream.publish(0..3);
        stream.publish(5..6);
        stream.attempt(4);
        stream.attempt(8);
        let came = lane(&[(0, false), (4, false), (5, false), (7, false), (8, false), (4_000_000_000, false)]).came;
        assert_eq!((stream.attempted(), stream.published()), (8, 4));
        assert_eq!((stream.published_of(&came), stream.attempted_of(&came)), (2, 4));
    }
}
