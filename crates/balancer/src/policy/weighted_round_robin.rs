//! Weighted round robin: turns in proportion to fixed weights, spread evenly.
//!
//! Each member is due once in a *stride*, which is the shorter the larger its weight; who is due first is chosen
//! and is due again a stride later (stride scheduling, Waldspurger 1995). Strides begin at different moments, so
//! that members of little weight do not come all at once: weights 5, 1, 1 give `a a c a a b a`. Equal weights are
//! round robin.
//!
//! ```text
//!  due   a ──┬──┬──┬──┬──┬──┬──►      chosen: the leftmost mark; it moves on by its stride
//!        b ────────┬─────────┬──►
//!              ▲ now: the mark of the last choice
//! ```
//!
//! A member that could not be chosen for a while does not catch up: its next mark is a stride after *now* at least.

use std::hint::select_unpredictable;

use crate::{
    pick::RESCANS_MAX,
    seats::Seats,
    sync::{AtomicU64, OwnLine, Relaxed, change},
};

/// When each member is due, in the order of the seats.
///
/// The time is virtual: 2^16 of it passes at most with a message, so that it lasts for 2^46 messages after a
/// joining or leaving, which begins it anew.
#[derive(Debug)]
pub(crate) struct Strides {
    members: Box<[Stride]>,
    /// The mark of the last choice, as the latest that there was. Written by pickers when it grows; `Relaxed`,
    /// since a picker that sees an old one only puts a member that was away a little too far ahead.
    now: OwnLine<AtomicU64>,
}

#[derive(Debug)]
struct Stride {
    /// When the member is due. Written by the picker that chooses it (compare and exchange, `Relaxed`: nothing
    /// else is published through it), read by all pickers.
    due: AtomicU64,
    /// From one time to the next; at least [`UNIT`].
    length: u64,
}

/// A member as the scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) index: usize,
    due: u64,
}

impl Strides {
    /// For members of these weights (at least 1), with what is left of their strides as
    /// [`period_left`](Self::period_left) gave it.
    pub(crate) fn new(members: impl Iterator<Item = (u32, u64)> + Clone) -> Self {
        let most = members.clone().map(|(weight, _)| weight).max().unwrap_or(1);
        let stride = |(weight, left): (u32, u64)| {
            let length = u64::from(most) * UNIT / u64::from(weight.max(1));
            // Below 2^48 times 2^16 at most.
            Stride { due: AtomicU64::new(length * left.min(WHOLE) / WHOLE), length }
        };
        Self { members: members.map(stride).collect(), now: OwnLine(AtomicU64::new(0)) }
    }

    /// Which part of its stride a member still has before it, up to [`WHOLE`]: what survives when members come
    /// and go, and the lengths of strides with them.
    pub(crate) fn period_left(&self, index: usize) -> u64 {
        let Stride { due, length } = &self.members[index];
        let left = due.load(Relaxed).saturating_sub(self.now.0.load(Relaxed));
        left.min(*length) * WHOLE / length
    }

    /// As [`period_left`](Self::period_left), for a member that has no stride yet: anywhere in it, by its turn.
    ///
    /// Multiples of the golden ratio, whose fractional parts stay as far from each other as can be.
    pub(crate) fn first_period(turn: u64) -> u64 {
        turn.wrapping_mul(GOLDEN_RATIO) % WHOLE
    }

    /// The member is due a stride later, unless it has been chosen since it was seen.
    fn try_advance(&self, seen: Seen) -> bool {
        let Stride { due, length } = &self.members[seen.index];
        let now = self.now.0.load(Relaxed);
        let next = seen.due.max(now).saturating_add(*length);
        let is_ours = due.compare_exchange(seen.due, next, Relaxed, Relaxed).is_ok();
        if is_ours && seen.due > now {
            self.now.0.fetch_max(seen.due, Relaxed);
        }
        is_ours
    }

    /// The member is due a stride later, whatever happened since it was seen. `is_free`: it was chosen for being due.
    pub(crate) fn advance(&self, index: usize, is_free: bool) {
        let Stride { due, length } = &self.members[index];
        let now = self.now.0.load(Relaxed);
        if is_free {
            self.now.0.fetch_max(due.load(Relaxed), Relaxed);
        }
        change(due, |due| due.max(now).saturating_add(*length));
    }
}

/// Chooses and puts the chosen off by its stride; chooses again if another picker was faster.
pub(crate) fn pick(seats: &Seats, strides: &Strides) -> Option<usize> {
    let mut seen = choose(seats, strides)?;
    for _ in 0..RESCANS_MAX {
        if strides.try_advance(seen) {
            return Some(seen.index);
        }
        seen = choose(seats, strides)?;
    }
    strides.advance(seen.index, true);
    Some(seen.index)
}

/// Who is due first among those of the best availability; the first in join order of several. `None` if there is
/// no seat.
pub(crate) fn choose(seats: &Seats, strides: &Strides) -> Option<Seen> {
    let (mut best_key, mut best_index) = (u64::MAX, None);
    for (index, (load, stride)) in seats.loads().iter().zip(&strides.members).enumerate() {
        let key = load.rank() << RANK_SHIFT | stride.due.load(Relaxed).min(DUE_MAX);
        let is_better = key < best_key;
        best_key = select_unpredictable(is_better, key, best_key);
        best_index = select_unpredictable(is_better, Some(index), best_index);
    }
    best_index.map(|index| Seen { index, due: best_key & DUE_MAX })
}

/// A whole stride, for [`Strides::period_left`].
pub(crate) const WHOLE: u64 = 1 << 16;
/// The stride of the largest weight. Others are rounded to this fraction of it.
const UNIT: u64 = 1 << 16;
/// 0.618 of [`WHOLE`], odd.
const GOLDEN_RATIO: u64 = 40_503;
const RANK_SHIFT: u32 = 62;
/// Just below the end of the 62 bits, so that no key is `u64::MAX`.
const DUE_MAX: u64 = (1 << RANK_SHIFT) - 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::Availability;

    fn fresh(weights: &[u32]) -> (Seats, Strides) {
        let members = weights.iter().copied().zip((0..).map(Strides::first_period));
        (Seats::of_strangers(weights.len()), Strides::new(members))
    }

    fn picks(seats: &Seats, strides: &Strides, count: usize) -> Vec<usize> {
        (0..count).filter_map(|_| pick(seats, strides)).collect()
    }

    fn counts(picked: &[usize], len: usize) -> Vec<usize> {
        (0..len).map(|index| picked.iter().filter(|&&one| one == index).count()).collect()
    }

    #[test]
    fn turns_are_spread_evenly() {
        let (seats, strides) = fresh(&[5, 1, 1]);
        assert_eq!(picks(&seats, &strides, 14), [0, 0, 2, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0]);
        let (seats, strides) = fresh(&[7, 7, 7]);
        assert_eq!(picks(&seats, &strides, 7), [0, 2, 1, 0, 2, 1, 0]);
    }

    #[test]
    fn the_best_availability_comes_first_and_who_was_away_does_not_catch_up() {
        let (seats, strides) = fresh(&[1, 1, 2]);
        seats.loads()[2].set_availability(Availability::Full);
        assert_eq!(counts(&picks(&seats, &strides, 1_000), 3), [500, 500, 0]);
        seats.loads()[2].set_availability(Availability::Ready);
        assert_eq!(counts(&picks(&seats, &strides, 8), 3), [2, 2, 4]);
        seats.loads().iter().for_each(|load| load.set_availability(Availability::Offline));
        assert_eq!(counts(&picks(&seats, &strides, 8), 3), [2, 2, 4]);
        seats.loads()[1].set_availability(Availability::Full);
        assert_eq!(counts(&picks(&seats, &strides, 8), 3), [0, 8, 0]);
    }

    #[test]
    fn the_slower_picker_chooses_again() {
        let (seats, strides) = fresh(&[1, 1]);
        let seen = choose(&seats, &strides).expect("there are seats");
        assert_eq!(pick(&seats, &strides), Some(0));
        assert!(!strides.try_advance(seen));
        assert_eq!(pick(&seats, &strides), Some(1));
    }

    #[test]
    fn extreme_weights_neither_overflow_nor_starve() {
        let (seats, strides) = fresh(&[u32::MAX, 1, 65_535]);
        assert_eq!(strides.members[1].length, u64::from(u32::MAX) * UNIT);
        let light = counts(&picks(&seats, &strides, 200_000), 3)[2];
        assert!((2..=5).contains(&light), "about one in 65,537: {light}");
        assert!(strides.period_left(1) <= WHOLE);
    }

    proptest! {
        /// The smoothness of stride scheduling: nobody is ever a whole message per member away from its share.
        #[test]
        fn shares_are_exact_at_every_moment(weights in prop::collection::vec(1..20_u32, 1..8)) {
            let (seats, strides) = fresh(&weights);
            let sum: u32 = weights.iter().sum();
            let picked = picks(&seats, &strides, 3 * sum as usize);
            for length in 1..=picked.len() {
                for (index, count) in counts(&picked[..length], weights.len()).into_iter().enumerate() {
                    let share = length as f64 * f64::from(weights[index]) / f64::from(sum);
                    prop_assert!((count as f64 - share).abs() < weights.len() as f64, "{picked:?}");
                }
            }
        }
    }
}
