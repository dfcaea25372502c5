//! A quick scan of many members, by the keys they have if nothing about them is unusual.
//!
//! Rare cases (full, draining, new, unknown) would take most of a scan's time. A key without them takes two thirds of
//! the instructions, and no branches, which would be unpredictable with different members. For most members it is the
//! full key, and it never exceeds that. So only the member with the least one needs its full key, and no other as long
//! as the two are equal.

use std::{
    hint::{black_box, select_unpredictable},
    sync::Arc,
};

use super::{CLASS_STEP, CLASSES, LATE_MAX_NS, NOW_MAX_NS, SAMPLE, STEP_SHIFT, highest_class, probe_pause_ns};
use crate::{
    estimate::flag,
    group_view::View,
    hot::{Hot, mark},
    load::MemberLoad,
    seats::{Seats, TURNS_PER_LINE},
    sync::Relaxed,
};

/// The inputs of usual keys at one moment, in a group with evidence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    now: u64,
    floor: u64,
    penalty_max: u64,
    highest_class: u64,
    /// [`idle::NONE`] and so on.
    idle: u8,
}

/// The idle members whose penalty may be lower than usual.
pub(super) mod idle {
    pub(in super::super) const NONE: u8 = 0;
    /// Those that may be [worth a try](super::super::is_unused).
    pub(in super::super) const UNUSED: u8 = 1;
    /// Any member of a [quiet](super::super::quiet_penalty) group.
    pub(in super::super) const ANY: u8 = 2;
}

/// The least usual key so far, and its slot.
pub(super) struct Least {
    pub(super) key: u64,
    pub(super) turn: u64,
    /// [`usize::MAX`] = none yet.
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

    /// Returns the least key of all slots; of equal ones that with the oldest turn.
    pub(super) fn least_of_all(&self, seats: &Seats) -> Least {
        match self.idle {
            idle::ANY => self.of_all::<{ idle::ANY }>(seats),
            idle::UNUSED => self.of_all::<{ idle::UNUSED }>(seats),
            _ => self.of_all::<{ idle::NONE }>(seats),
        }
    }

    /// Calls `compared` with the key and the turn of each slot.
    pub(super) fn compare_all(&self, seats: &Seats, mut compared: impl FnMut(u64, u64)) {
        for (loads, turns) in seats.by_line() {
            for (load, turn) in loads.iter().zip(turns) {
                compared(self.key_of(load.hot()), turn.load(Relaxed));
            }
        }
    }

    /// As [`Usual::key`], for the idle members of this moment.
    #[inline]
    pub(super) fn key_of(&self, hot: &Hot) -> u64 {
        match self.idle {
            idle::ANY => self.key::<{ idle::ANY }>(hot),
            idle::UNUSED => self.key::<{ idle::UNUSED }>(hot),
            _ => self.key::<{ idle::NONE }>(hot),
        }
    }

    /// Returns the least key of a sample; of equal ones that with the oldest send.
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
        // Read all of them first, so that their cache lines are fetched together.
        black_box(sample.map(|index| loads[index].hot().finish()));
        let mut least = Least::NONE;
        for &index in sample {
            let hot = loads[index].hot();
            least.compare(self.key::<IDLE>(hot), hot.sent_at(), index);
        }
        least
    }

    /// Returns the [key](super::Scan::key) of a ready member of known speed that gives evidence; a lower bound of it
    /// for any other. `IDLE`: which [idle] members may have lower penalties.
    #[inline(always)]
    pub(super) fn key<const IDLE: u8>(&self, hot: &Hot) -> u64 {
        let (flags, speed) = (hot.flags(), hot.speed());
        // Without lateness this adds zero. Sums that wrap are too small, which a lower bound may be.
        let since = hot.due().min(self.now);
        let finish = hot.finish().max(since).wrapping_add(2 * (self.now - since).min(LATE_MAX_NS));
        let unsent = select_unpredictable((flags | hot.marks()) & IS_WATCHED == 0, hot.outstanding().messages, 0);
        let unsent_work = unsent.wrapping_mul(speed.processing_ns().max(self.floor));
        let wait = finish.saturating_sub(self.now + hot.delay_ns()).max(unsent_work);
        // Outside ack mode no penalty is below the floor, which is the maximum number of classes down.
        let classes_max = CLASSES + u64::from(flags & flag::ACK_MODE);
        let penalty = self.penalty_max >> ((self.highest_class - speed.class()) / CLASS_STEP).min(classes_max);
        if IDLE == idle::NONE {
            return wait.wrapping_add(penalty) >> STEP_SHIFT;
        }
        // Assume no penalty for such a member; the full key decides.
        let is_idle = (wait == 0) & (hot.outstanding().messages == 0);
        let is_slow = (penalty > self.floor) | (speed.processing_ns() == 0);
        let is_unused = is_slow & (self.now.saturating_sub(hot.sent_at()) > probe_pause_ns(penalty));
        let is_less = is_idle & ((IDLE == idle::ANY) | is_unused);
        wait.wrapping_add(select_unpredictable(is_less, 0, penalty)) >> STEP_SHIFT
    }
}

impl Least {
    pub(super) const NONE: Self = Self { key: u64::MAX, turn: u64::MAX, index: usize::MAX };

    #[inline(always)]
    pub(super) fn compare(&mut self, key: u64, turn: u64, index: usize) {
        let merit = |key: u64, turn: u64| u128::from(key) << 64 | u128::from(turn);
        let is_less = merit(key, turn) < merit(self.key, self.turn);
        self.key = select_unpredictable(is_less, key, self.key);
        self.turn = select_unpredictable(is_less, turn, self.turn);
        self.index = select_unpredictable(is_less, index, self.index);
    }
}

/// Members whose unsent messages do not count, or may be left out, by one mask for flags and marks. `ACK_MODE` is no
/// mark. The value of `mark::ASKED` as a flag means that the member drains.
const IS_WATCHED: u8 = flag::ACK_MODE | mark::ASKED;
const _: () = assert!(mark::ASKED == flag::DRAINING && flag::ACK_MODE > mark::SUSPECT);
