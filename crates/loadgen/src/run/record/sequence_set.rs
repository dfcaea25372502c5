use std::ops::Range;

use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

/// A set of sequence numbers of one stream, below `u32::MAX`.
///
/// A complete stream takes only a counter, and so does a complete prefix. Other numbers take a bit each where they are
/// dense, as in a stream with losses. They take two bytes each where they are sparse, as in the streams of a member of
/// a large share group.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Received")]
pub(super) struct SequenceSet {
    /// All numbers below this one are in the set.
    prefix: u32,
    // INVARIANT: all members are above `prefix`, which is not in the set itself.
    rest: RoaringBitmap,
}

impl SequenceSet {
    /// All numbers below the prefix are in the set; the prefix itself is not.
    #[inline]
    pub(super) fn prefix(&self) -> u32 {
        self.prefix
    }

    /// Inserts a number; returns whether it is new to the set.
    #[inline]
    pub(super) fn insert(&mut self, sequence: u32) -> bool {
        if sequence == self.prefix {
            self.prefix += 1;
            if !self.rest.is_empty() {
                self.absorb();
            }
            true
        } else {
            sequence > self.prefix && self.rest.insert(sequence)
        }
    }

    pub(super) fn insert_range(&mut self, sequences: Range<u32>) {
        if sequences.start > self.prefix {
            self.rest.insert_range(sequences);
        } else if sequences.end > self.prefix {
            self.prefix = sequences.end;
            if !self.rest.is_empty() {
                self.rest.remove_range(..self.prefix);
                self.absorb();
            }
        }
    }

    /// Adds `more` numbers after the prefix, none of which may be in the set.
    pub(super) fn extend_prefix(&mut self, more: u32) {
        self.prefix += more;
    }

    /// Takes as little memory as possible from now on.
    pub(super) fn shrink(&mut self) {
        self.rest.optimize();
    }

    /// Adds numbers above the prefix.
    pub(super) fn insert_all(&mut self, sequences: RoaringBitmap) {
        self.rest |= sequences;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.prefix == 0 && self.rest.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        u64::from(self.prefix) + self.rest.len()
    }

    /// Number of members below `end`.
    pub(super) fn len_below(&self, end: u32) -> u64 {
        u64::from(self.prefix.min(end)) + self.rest.range_cardinality(..end)
    }

    /// Number of members in `range`.
    pub(super) fn len_within(&self, range: Range<u32>) -> u64 {
        self.len_below(range.end.max(range.start)) - self.len_below(range.start)
    }

    /// The members in `range`.
    pub(super) fn within(&self, range: Range<u32>) -> RoaringBitmap {
        let mut within = RoaringBitmap::new();
        within.insert_range(range.clone());
        within &= &self.rest;
        within.insert_range(range.start..range.end.min(self.prefix).max(range.start));
        within
    }

    /// Number of members of both sets in `range`.
    pub(super) fn common_len_within(&self, other: &Self, range: Range<u32>) -> u64 {
        if self.prefix >= range.end {
            return other.len_within(range);
        }
        if other.prefix >= range.end {
            return self.len_within(range);
        }
        self.within(range.clone()).intersection_len(&other.within(range))
    }

    /// All members, in order.
    pub(super) fn into_numbers(self) -> impl Iterator<Item = u32> {
        (0..self.prefix).chain(self.rest)
    }

    /// Number of members of both sets.
    pub(super) fn common_len(&self, other: &Self) -> u64 {
        let (short, long) = if self.prefix <= other.prefix { (self, other) } else { (other, self) };
        short.len_below(long.prefix) + short.rest.intersection_len(&long.rest)
    }

    /// Adds all members of `other`.
    pub(super) fn unite(&mut self, other: &Self) {
        self.rest |= &other.rest;
        self.prefix = self.prefix.max(other.prefix);
        self.rest.remove_range(..self.prefix);
        self.absorb();
    }

    /// The members of both sets.
    pub(super) fn common(&self, other: &Self) -> Self {
        let mut common = Self { prefix: 0, rest: self.to_bitmap() & other.to_bitmap() };
        common.absorb();
        common
    }

    /// The members that are not in `other`.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut rest = self.to_bitmap();
        rest -= &other.to_bitmap();
        let mut left = Self { prefix: 0, rest };
        left.absorb();
        left
    }

    fn to_bitmap(&self) -> RoaringBitmap {
        let mut all = self.rest.clone();
        all.insert_range(..self.prefix);
        all
    }

    /// Extends the prefix over the numbers that follow it.
    fn absorb(&mut self) {
        let mut followers = self.rest.iter();
        let before = self.prefix;
        while self.prefix < u32::MAX
            && let Some(run) = followers.next_range()
            && *run.start() == self.prefix
        {
            self.prefix = run.end().saturating_add(1);
        }
        if self.prefix > before {
            self.rest.remove_range(..self.prefix);
        }
    }
}

/// A set as another process has sent it, which may not have kept the invariant.
#[derive(Deserialize)]
struct Received {
    prefix: u32,
    rest: RoaringBitmap,
}

impl From<Received> for SequenceSet {
    fn from(Received { prefix, rest }: Received) -> Self {
        let mut set = Self { prefix, rest };
        set.rest.remove_range(..prefix);
        set.absorb();
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    impl SequenceSet {
        pub(in crate::run::record) fn numbers(&self) -> BTreeSet<u32> {
            assert!(self.rest.min().is_none_or(|first| first > self.prefix), "{self:?}");
            (0..self.prefix).chain(&self.rest).collect()
        }
    }

    /// Numbers close together and a few far away, in runs and single.
    fn ranges() -> impl Strategy<Value = Vec<Range<u32>>> {
        let start = prop_oneof![9 => 0..60_u32, 2 => 65_500..65_560_u32, 1 => 3_000_000_000..3_000_000_050_u32];
        vec((start, prop_oneof![4 => Just(1), 1 => 0..40_u32]).prop_map(|(start, len)| start..start + len), 0..60)
    }

    fn both(ranges: &[Range<u32>]) -> (SequenceSet, BTreeSet<u32>) {
        let (mut set, mut model) = (SequenceSet::default(), BTreeSet::new());
        for range in ranges {
            if range.len() == 1 {
                assert_eq!(set.insert(range.start), model.insert(range.start));
            } else {
                set.insert_range(range.clone());
                model.extend(range.clone());
            }
        }
        (set, model)
    }

    proptest! {
        #[test]
        fn sequence_set_matches_plain_set(one in ranges(), other in ranges(), end in 0..70_000_u32) {
            let ((a, naive_a), (b, naive_b)) = (both(&one), both(&other));
            prop_assert_eq!(a.numbers(), naive_a.clone());
            prop_assert_eq!(a.len(), naive_a.len() as u64);
            prop_assert_eq!(a.is_empty(), naive_a.is_empty());
            prop_assert_eq!(a.len_below(end), naive_a.range(..end).count() as u64);
            prop_assert_eq!(a.common_len(&b), naive_a.intersection(&naive_b).count() as u64);
            prop_assert_eq!(a.without(&b).numbers(), &naive_a - &naive_b);
            let (from, both) = (end / 3, &naive_a & &naive_b);
            prop_assert_eq!(a.len_within(from..end), naive_a.range(from..end).count() as u64);
            prop_assert_eq!(a.within(from..end).iter().collect::<Vec<_>>(), naive_a.range(from..end).copied().collect::<Vec<_>>());
            prop_assert_eq!(a.common_len_within(&b, from..end), both.range(from..end).count() as u64);
            prop_assert_eq!(a.clone().into_numbers().collect::<BTreeSet<_>>(), naive_a.clone());
            let mut union = a.clone();
            union.unite(&b);
            prop_assert_eq!(union.numbers(), &naive_a | &naive_b);
        }

        #[test]
        fn sequence_set_survives_serialization(ranges in ranges()) {
            let (set, model) = both(&ranges);
            let bytes = postcard::to_allocvec(&set).unwrap();
            prop_assert_eq!(postcard::from_bytes::<SequenceSet>(&bytes).unwrap().numbers(), model);
        }
    }

    #[test]
    fn complete_set_is_a_counter_in_any_order() {
        let mut set = SequenceSet::default();
        for sequence in (1..100_000).rev().chain([0]).chain(100_000..200_000) {
            assert!(set.insert(sequence));
        }
        assert!(set.rest.is_empty() && set.prefix() == 200_000);
    }

    #[test]
    fn last_sequence_number_does_not_overflow() {
        let mut set = SequenceSet::default();
        set.insert_range(0..u32::MAX);
        assert_eq!((set.len(), set.insert(u32::MAX - 1)), (u64::from(u32::MAX), false));
        let bytes = postcard::to_allocvec(&set).unwrap();
        assert_eq!(postcard::from_bytes::<SequenceSet>(&bytes).unwrap().len(), u64::from(u32::MAX));
    }

    #[test]
    fn a_damaged_set_is_refused() {
        for bytes in [&[1][..], &[1, 4, 0, 0, 0, 0], &[1, 9, 0], &[0xFF; 20]] {
            assert!(postcard::from_bytes::<SequenceSet>(bytes).is_err(), "{bytes:?}");
        }
    }
}
