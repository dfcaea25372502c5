//! A quick look at many members: what their keys are as long as nothing is unusual about them.
//!
//! A scan spends its time on what hardly ever counts: who is full, drains, has only come, or is unknown. A key without
//! that takes two thirds of the instructions and no branch, which nobody could predict where members differ. It is the
//! true key of most, and never more than that; so the member of the least one has only to be looked at in full, and
//! nobody else as long as it proves to be usual.

use std::{
    hint::{black_box, select_unpredictable},
    sync::Arc,
};

use super::{CLASS_STEP, CLASSES, NOW_MAX_NS, SAMPLE, STEP_SHIFT, highest_class, probe_pause_ns};
use crate::{
    estimate::flag,
    group_view::View,
    hot::{Hot, mark},
    load::MemberLoad,
    seats::{Seats, TURNS_PER_LINE},
    sync::Relaxed,
};

/// What usual keys at one moment are made with, where there is evidence.
pub(super) struct Usual {
    now: u64,
    floor: u64,
    penalty_max: u64,
    highest_class: u64,
    /// [`idle::NONE`] and so on.
    idle: u8,
}

/// Idle members that may be held back less than usual.
pub(super) mod idle {
    pub(in super::super) const NONE: u8 = 0;
    /// Those that may be [worth a try](super::super::is_unused).
    pub(in super::super) const UNUSED: u8 = 1;
    /// Those of a [quiet](super::super::quiet_penalty) group: any of them.
    pub(in super::super) const ANY: u8 = 2;
}

/// The least usual key so far, and whose it is.
pub(super) struct Least {
    pub(super) key: u64,
    turn: u64,
    /// No seat has [`usize::MAX`].
    pub(super) index: usize,
}

impl Usual {
    pub(super) fn new(view: &View, now: u64) -> Self {
        let floor = view.floor_ns();
        let penalty_max = floor << CLASSES;
        let idle = match view {
            View { is_quiet: true, .. } => idle::ANY,
            View { has_unused: true, .. } => idle::UNUSED,
            _ => idle::NONE,
        };
        Self { now: now.min(NOW_MAX_NS), floor, penalty_max, highest_class: highest_class(view), idle }
    }

    /// Of equal ones that with the oldest turn.
    pub(super) fn least_of_all(&self, seats: &Seats) -> Least {
        match self.idle {
            idle::ANY => self.of_all::<{ idle::ANY }>(seats),
            idle::UNUSED => self.of_all::<{ idle::UNUSED }>(seats),
            _ => self.of_all::<{ idle::NONE }>(seats),
        }
    }

    /// Of equal ones that which was sent something longest ago.
    pub(super) fn least_of_some(&self, loads: &[Arc<MemberLoad>], sample: &[usize; SAMPLE]) -> Least {
        match self.idle {
            idle::ANY => self.of_some::<{ idle::ANY }>(loads, sample),
            idle::UNUSED => self.of_some::<{ idle::UNUSED }>(loads, sample),
            _ => self.of_some::<{ idle::NONE }>(loads, sample),
        }
    }

    #[inline(never)]
    fn of_all<const IDLE: u8>(&self, seats: &Seats) -> Least {
        let mut least = Least::NONE;
        for (line, (loads, turns)) in seats.by_line().enumerate() {
            for (index, (load, turn)) in loads.iter().zip(turns).enumerate() {
                least.compare(self.key::<IDLE>(load.hot()), turn.load(Relaxed), line * TURNS_PER_LINE + index);
            }
        }
        least
    }

    #[inline(never)]
    fn of_some<const IDLE: u8>(&self, loads: &[Arc<MemberLoad>], sample: &[usize; SAMPLE]) -> Least {
        // First a look at all of them, so that their lines come from memory together.
        black_box(sample.map(|index| loads[index].hot().finish()));
        let mut least = Least::NONE;
        for &index in sample {
            let hot = loads[index].hot();
            least.compare(self.key::<IDLE>(hot), hot.sent_at(), index);
        }
        least
    }

    /// The [key](super::Scan::key) of a member that is ready, of known speed, and gives evidence; of any other no more
    /// than its key. `IDLE`: which [idle] members may be held back less.
    #[inline(always)]
    pub(super) fn key<const IDLE: u8>(&self, hot: &Hot) -> u64 {
        let (flags, speed) = (hot.flags(), hot.speed());
        // Who is not late stood still for no time. Sums that wrap are too small, as they may be.
        let since = hot.due().min(self.now);
        let finish = hot.finish().max(since).wrapping_add(2 * (self.now - since));
        let unsent = select_unpredictable((flags | hot.marks()) & IS_WATCHED == 0, hot.outstanding().messages, 0);
        let unsent_work = unsent.wrapping_mul(speed.processing_ns().max(self.floor));
        let wait = finish.saturating_sub(self.now + hot.delay_ns()).max(unsent_work);
        // Out of ack mode no penalty is below the floor, which is as many classes down as there are.
        let classes_max = CLASSES + u64::from(flags & flag::ACK_MODE);
        let penalty = self.penalty_max >> ((self.highest_class - speed.class()) / CLASS_STEP).min(classes_max);
        if IDLE == idle::NONE {
            return wait.wrapping_add(penalty) >> STEP_SHIFT;
        }
        // Such a member has none: whether that is so, a look in full tells.
        let is_idle = (wait == 0) & (hot.outstanding().messages == 0);
        let is_slow = (penalty > self.floor) | (speed.processing_ns() == 0);
        let is_unused = is_slow & (self.now.saturating_sub(hot.sent_at()) > probe_pause_ns(penalty));
        let is_less = is_idle & ((IDLE == idle::ANY) | is_unused);
        wait.wrapping_add(select_unpredictable(is_less, 0, penalty)) >> STEP_SHIFT
    }
}

impl Least {
    const NONE: Self = Self { key: u64::MAX, turn: u64::MAX, index: usize::MAX };

    #[inline(always)]
    fn compare(&mut self, key: u64, turn: u64, index: usize) {
        let merit = |key: u64, turn: u64| u128::from(key) << 64 | u128::from(turn);
        let is_less = merit(key, turn) < merit(self.key, self.turn);
        self.key = select_unpredictable(is_less, key, self.key);
        self.turn = select_unpredictable(is_less, turn, self.turn);
        self.index = select_unpredictable(is_less, index, self.index);
    }
}

/// Whose unsent messages do not count, or may be left out: a flag that is no mark, and a mark whose flag of the same
/// value says that the member drains.
const IS_WATCHED: u8 = flag::ACK_MODE | mark::ASKED;
const _: () = assert!(mark::ASKED == flag::DRAINING && flag::ACK_MODE > mark::SUSPECT);
