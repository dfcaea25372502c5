//! Weighted round robin: turns in proportion to fixed weights, spread evenly.
//!
//! Each member is due once per *stride*, which is shorter for larger weights. The member due first is chosen, and is
//! due again a stride later (stride scheduling, Waldspurger 1995). Strides begin at different moments, so that members
//! of little weight do not come all at once: weights 5, 1, 1 give `a a c a a b a`. Equal weights are round robin.
//!
//! ```text
//!  due   a ──┬──┬──┬──┬──┬──┬──►      chosen: the leftmost mark; it moves on by its stride
//!        b ────────┬─────────┬──►
//!              ▲ now: the mark of the last choice
//! ```
//!
//! A member that was unavailable for some time does not catch up: its next mark is at least a stride after *now*.

use std::hint::select_unpredictable;

use crate::{
    pick::RESCANS_MAX,
    seats::Seats,
    sync::{AtomicU64, OwnLine, Relaxed, change},
};

/// When each member is due, in the order of the slots.
///
/// The time is virtual, and advances by at most 2^16 per message. So it lasts for 2^46 messages after a member joins or
/// leaves, which restarts it.
#[derive(Debug)]
pub(crate) struct Strides {
    members: Box<[Stride]>,
    /// The latest mark that was chosen. Pickers write it when it grows. `Relaxed`: a picker with an outdated value only
    /// moves a member that was away a little too far ahead.
    now: OwnLine<AtomicU64>,
}

#[derive(Debug)]
struct Stride {
    /// When the member is due. Written by the picker that chooses it (compare and exchange, `Relaxed`: no other data is
    /// published through it), read by all pickers.
    due: AtomicU64,
    /// The stride; at least [`UNIT`].
    length: u64,
}

/// A member as the scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) index: usize,
    due: u64,
}

impl Strides {
    /// Creates strides for members of these weights (at least 1), each with its [`period_left`](Self::period_left).
    pub(crate) fn new(members: impl Iterator<Item = (u32, u64)> + Clone) -> Self {
        let most = members.clone().map(|(weight, _)| weight).max().unwrap_or(1);
        let stride = |(weight, left): (u32, u64)| {
            let length = u64::from(most) * UNIT / u64::from(weight.max(1));
            // At most 2^48 times 2^16.
            Stride { due: AtomicU64::new(length * left.min(WHOLE) / WHOLE), length }
        };
        Self { members: members.map(stride).collect(), now: OwnLine(AtomicU64::new(0)) }
    }

    /// Returns the remaining part of a member's stride, up to [`WHOLE`]. It stays valid when members come and go, which
    /// changes the lengths of strides.
    pub(crate) fn period_left(&self, index: usize) -> u64 {
        let Stride { due, length } = &self.members[index];
        let left = due.load(Relaxed).saturating_sub(self.now.0.load(Relaxed));
        left.min(*length) * WHOLE / length
    }

    /// Returns the [`period_left`](Self::period_left) of a new member: any part of its stride, by its turn.
    ///
    /// Multiples of the golden ratio have fractional parts that are as far from each other as possible.
    pub(crate) fn first_period(turn: u64) -> u64 {
        turn.wrapping_mul(GOLDEN_RATIO) % WHOLE
    }

    /// Moves the member on by a stride, unless it has been chosen since the scan.
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

    /// Moves the member on by a stride, whatever happened since the scan. `is_free`: it was chosen for being due.
    pub(crate) fn advance(&self, index: usize, is_free: bool) {
        let Stride { due, length } = &self.members[index];
        let now = self.now.0.load(Relaxed);
        if is_free {
            self.now.0.fetch_max(due.load(Relaxed), Relaxed);
        }
        change(due, |due| due.max(now).saturating_add(*length));
    }
}

/// Chooses a member and moves it on by its stride; chooses again if another picker was faster.
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

/// Returns the member due first among the members of the best availability, of equal ones the first in join order.
/// `None` if the group is empty.
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
/// The stride of the largest weight. Other strides are rounded to this fraction of it.
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
    fn returning_member_does_not_catch_up_on_its_weight() {
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
        /// Smoothness of stride scheduling: no member ever deviates from its share by a whole message per member.
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
