use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::growing_set::GrowingSet;
use super::sequence_set::SequenceSet;

/// A stream as one receiver gets it, while messages arrive.
#[derive(Debug, Default)]
pub(super) struct LaneTally {
    came: GrowingSet,
    counts: LaneCounts,
    /// One more than the highest number that arrived.
    next: u32,
}

/// A stream as one receiver got it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Lane {
    /// All numbers that arrived.
    pub(super) came: SequenceSet,
    pub(super) counts: LaneCounts,
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
            return false;
        }
        if dup {
            // The broker says that it sends the message again: the first sending decided the order.
            self.counts.marked.insert(sequence);
        } else if sequence < self.next {
            self.counts.out_of_order += 1;
        }
        self.next = self.next.max(sequence + 1);
        true
    }

    pub(super) fn pack(self) -> Lane {
        Lane { came: self.came.into_set(), counts: self.counts }
    }
}

impl Lane {
    /// Adds the arrivals of another recorder for the same stream and receiver.
    ///
    /// A message that both recorders saw counts as one copy too many. Which copy came first is unknown, and so is the
    /// order of one recorder's messages relative to the other's.
    pub(super) fn merge(&mut self, other: &Self) {
        let unmarked = self.unmarked();
        let other_unmarked = other.unmarked();
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
}

impl SentStream {
    pub(super) fn attempt(&mut self, upto: u32) {
        self.attempted = self.attempted.max(upto);
    }

    pub(super) fn publish(&mut self, sequences: Range<u32>) {
        self.attempt(sequences.end);
        self.published.insert_range(sequences);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.attempt(other.attempted);
        self.published.unite(&other.published);
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
    fn told(Lane { came, counts }: &Lane) -> (u64, u64, u64, u64) {
        (came.len(), counts.copies, counts.copies_unmarked, counts.out_of_order)
    }

    #[test]
    fn a_copy_is_no_message_out_of_order() {
        let lane =
            lane(&[(0, false), (2, false), (1, false), (1, false), (2, true), (5, false), (4, true), (3, false)]);
        assert_eq!(told(&lane), (6, 2, 1, 2));
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
