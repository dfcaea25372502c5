use roaring::RoaringBitmap;

use super::sequence_set::SequenceSet;

/// A [`SequenceSet`] that is still growing.
///
/// Messages arrive nearly in order, so that nearly all of them fall into a moving window of plain bits.
///
/// ```text
/// 0 … all of them … prefix … some, settled … │ from    window    │
/// ```
#[derive(Debug, Default)]
pub(super) struct GrowingSet {
    // INVARIANT: if there is a window, all of its members are below the window's `from`.
    settled: SequenceSet,
    window: Option<Box<Window>>,
}

#[derive(Debug)]
struct Window {
    from: u32,
    len: u32,
    // INVARIANT: no number below the settled prefix is set.
    bits: [u64; WORDS],
}

impl GrowingSet {
    /// Inserts a number; returns whether it is new to the set.
    #[inline]
    pub(super) fn insert(&mut self, sequence: u32) -> bool {
        if sequence != self.settled.prefix() {
            return sequence > self.settled.prefix() && self.insert_ahead(sequence);
        }
        self.settled.insert(sequence);
        if let Some(window) = &mut self.window
            && window.len > 0
        {
            self.settled.extend_prefix(window.take_run(self.settled.prefix()));
        }
        true
    }

    pub(super) fn into_set(mut self) -> SequenceSet {
        if let Some(mut window) = self.window.take() {
            window.settle(&mut self.settled);
            self.settled.shrink();
        }
        self.settled
    }

    fn insert_ahead(&mut self, sequence: u32) -> bool {
        let window = self.window.get_or_insert_with(|| Box::new(Window::at(sequence)));
        let Some(offset) = sequence.checked_sub(window.from) else { return self.settled.insert(sequence) };
        if offset >= BITS {
            window.settle(&mut self.settled);
            window.from = sequence / BITS * BITS;
        }
        window.insert(sequence)
    }
}

impl Window {
    /// An empty window that covers this number.
    fn at(sequence: u32) -> Self {
        Self { from: sequence / BITS * BITS, len: 0, bits: [0; WORDS] }
    }

    fn insert(&mut self, sequence: u32) -> bool {
        let offset = sequence - self.from;
        let (word, bit) = (&mut self.bits[(offset / u64::BITS) as usize], 1 << (offset % u64::BITS));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += u32::from(is_new);
        is_new
    }

    /// Removes the run of consecutive numbers that starts at `first`; returns its length.
    fn take_run(&mut self, first: u32) -> u32 {
        let Some(start) = first.checked_sub(self.from) else { return 0 };
        let mut end = start;
        while end < BITS {
            let (word, shift) = (&mut self.bits[(end / u64::BITS) as usize], end % u64::BITS);
            let run = (*word >> shift).trailing_ones();
            if run == 0 {
                break;
            }
            *word &= !((u64::MAX >> (u64::BITS - run)) << shift);
            end += run;
        }
        self.len -= end - start;
        end - start
    }

    /// Moves all numbers into `settled`.
    fn settle(&mut self, settled: &mut SequenceSet) {
        if self.len == 0 {
            return;
        }
        let mut bytes = [0; (BITS / u8::BITS) as usize];
        for (bytes, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(&self.bits) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        settled.insert_all(RoaringBitmap::from_lsb0_bytes(self.from, &bytes));
        self.bits = [0; WORDS];
        self.len = 0;
    }
}

/// Words of a window: half a kilobyte, large enough that moving the window is a small part of the work.
const WORDS: usize = 64;
const BITS: u32 = WORDS as u32 * u64::BITS;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Runs that are in order except for a few numbers, in several parts of the stream.
    fn arrivals() -> impl Strategy<Value = Vec<u32>> {
        let start = prop_oneof![Just(0), 0..200_u32, 4_000..4_200_u32, 8_000..8_400_u32, 70_000..70_050_u32];
        let step = prop_oneof![8 => Just(1), 1 => Just(0), 1 => Just(2), 1 => 60..70_u32];
        let run = (start, vec(step, 0..300)).prop_map(|(start, steps)| {
            let mut next = start;
            steps.into_iter().map(move |step| (next, next += step).0).collect::<Vec<_>>()
        });
        (vec(run, 1..6), vec((0..1_000_usize, 0..1_000_usize), 0..6)).prop_map(|(runs, swaps)| {
            let mut all = runs.concat();
            for (one, other) in swaps {
                if one < all.len() && other < all.len() {
                    all.swap(one, other);
                }
            }
            all
        })
    }

    proptest! {
        #[test]
        fn growing_set_matches_plain_set(arrivals in arrivals()) {
            let (mut set, mut model) = (GrowingSet::default(), BTreeSet::new());
            for sequence in arrivals {
                prop_assert_eq!(set.insert(sequence), model.insert(sequence), "{}", sequence);
            }
            prop_assert_eq!(set.into_set().numbers(), model);
        }
    }

    #[test]
    fn complete_set_is_a_counter_in_any_order() {
        let mut set = GrowingSet::default();
        for sequence in (1..100_000).rev().chain([0]).chain((100_000..200_000).map(|sequence| sequence ^ 1)) {
            assert!(set.insert(sequence));
        }
        let set = set.into_set();
        assert_eq!((set.prefix(), set.len()), (200_000, 200_000));
    }

    #[test]
    fn last_sequence_number_does_not_overflow() {
        let mut set = GrowingSet::default();
        assert!([u32::MAX - 1, u32::MAX - 2, 0].into_iter().all(|sequence| set.insert(sequence)));
        assert!(!set.insert(u32::MAX - 1));
        assert_eq!(set.into_set().len(), 3);
    }
}
