//! Adaptive: the member with the shortest predicted wait, by a clock for each member.
//!
//! ```text
//! wait = max(F, now) − now        F: when the member will have finished all messages sent to it
//! ```
//!
//! Each message sent advances F by the member's processing time. Reports, acknowledgements, the throughput of sockets
//! and read probes correct it ([`Estimate`](crate::estimate::Estimate)). The member with the shortest wait, plus a
//! small penalty for slow classes, is chosen; of equal ones the member whose last send is longest ago. Without evidence
//! all waits are 0, and the choice is round robin.
//!
//! Work varies, so a member that begins to work is booked with a margin, up to half a message's time. Reports that agree
//! with its clock end the margin, and acknowledgements need none.
//!
//! A member whose evidence is overdue is assumed to have made no progress since it was due, and to make none for as
//! long again.

mod burst;
pub(crate) mod late;
mod usual;

pub use burst::Burst;
pub(crate) use burst::choose_in;

use std::{hint::select_unpredictable, sync::Arc};

use usual::{Least, Usual};

use crate::{
    dispatch::Dispatch,
    estimate::flag,
    group_view::View,
    hot::{Hot, mark},
    load::MemberLoad,
    policy::round_robin,
    rng::Rng,
    seats::Seats,
    sync::Relaxed,
};

/// A slot as the scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) index: usize,
    /// F when it was compared.
    pub(crate) finish: u64,
    /// Assumed processing time of the message, in ns.
    pub(crate) service: u64,
    /// Whether the choice compared turns.
    pub(crate) is_by_turn: bool,
}

/// The figures that decide about a member; times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Time until the member could begin with the message.
    pub(crate) wait: u64,
    /// Addition to the wait for being slow.
    pub(crate) penalty: u64,
    /// Time for which evidence has been overdue.
    pub(crate) late: u64,
    /// Assumed processing time of the message.
    pub(crate) service: u64,
}

/// Returns the slot with the shortest wait among the slots of the best availability. With more than [`SCAN_MAX`] slots, it
/// compares a random few. `None` if the group is empty.
pub(crate) fn choose(seats: &Seats, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<Sighting> {
    choose_by(Seats::next_turn, seats, view, dispatch, rng)
}

/// As [`choose`], without changes.
pub(crate) fn preview(seats: &Seats, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<Sighting> {
    choose_by(Seats::peek_turn, seats, view, dispatch, rng)
}

/// `turn` decides in a large group without known speeds.
#[inline(always)]
fn choose_by(
    turn: fn(&Seats) -> u64,
    seats: &Seats,
    view: &View,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<Sighting> {
    let len = seats.loads().len();
    let scan = Scan { view, now: dispatch.at.0 };
    if view.has_no_speeds() && len <= SCAN_MAX {
        // All waits are 0.
        let index = round_robin::choose(seats)?.index;
        return Some(scan.sighting(seats, index));
    }
    if len > SCAN_MAX {
        let seen = match view.mean_ns {
            // Each picker gets another slot. The turns of the slots are not written, since all threads would contend
            // for one more cache line.
            0 => Some(scan.sighting(seats, in_turn(seats, turn(seats) as usize % len))),
            _ => scan.best_of_some(seats, rng),
        };
        let seen = seen.map(|seen| Sighting { is_by_turn: false, ..seen });
        if let Some(seen) = seen.filter(|seen| seats.loads()[seen.index].rank() == READY) {
            return Some(seen);
        }
    }
    scan.best_of_all(seats)
}

/// Takes the turn of a chosen slot, and returns it. Free of cost if the choice compared no turns.
#[inline(always)]
pub(crate) fn end_turn(seats: &Seats, seen: Sighting) -> Option<u64> {
    seen.is_by_turn.then(|| seats.set_turn(seen.index))
}

/// Computes the figures of one member that `choose` compares.
#[inline(always)]
pub(crate) fn weigh(hot: &Hot, view: &View, now: u64) -> Weight {
    let (flags, speed) = (hot.flags(), hot.speed());
    let (service, mut penalty) = match speed.processing_ns() {
        0 => unknown(hot, view),
        // It counts as one of the mean class: so fast is mostly a member that does not do its work.
        processing_ns if processing_ns < view.floor_ns() => (view.floor_ns(), view.floor_ns()),
        processing_ns => (processing_ns, class_penalty(speed.class(), view)),
    };
    let now = now.min(NOW_MAX_NS);
    let arrival = now + hot.delay_ns();
    let mut finish = hot.finish();
    let late = now.saturating_sub(hot.due());
    if late > 0 {
        // It made no progress since then, and is assumed to make none for as long again.
        finish = finish.max(now - late).saturating_add(2 * late.min(LATE_MAX_NS));
    }
    if flags & flag::ACK_MODE == 0 {
        // Unverified speed is no advantage, but slowness is believed.
        penalty = penalty.max(view.floor_ns());
        finish = without_acks(hot, flags, view, arrival, finish, service);
    }
    let mut wait = finish.saturating_sub(arrival);
    if view.has_concurrency {
        // It can begin with `concurrency` messages at once. Without acknowledgements the number in work is unknown.
        let at_once = hot.concurrency().saturating_sub(1).saturating_mul(service);
        wait = wait.saturating_sub(if flags & flag::ACK_MODE == 0 { at_once / 2 } else { at_once });
    }
    if view.has_unused && penalty > view.floor_ns() && wait == 0 && is_unused(hot, now, penalty) {
        penalty = 0;
    }
    if view.is_quiet && wait < 1 << STEP_SHIFT && hot.outstanding().messages == 0 {
        penalty = quiet_penalty(hot, view, penalty);
    }
    Weight { wait, penalty, late, service }
}

/// Returns the penalty of an idle member of a quiet group.
///
/// A few acknowledgements tell little about speed, so a new member counts as one of the mean speed. Small penalties do
/// not count: acknowledgement times of equal members differ by as much.
#[cold]
fn quiet_penalty(hot: &Hot, view: &View, penalty: u64) -> u64 {
    if penalty == 0 {
        return 0; // worth a try
    }
    let is_new = hot.sent() < NEWCOMER_MESSAGES && hot.marks() & mark::RECALLED == 0;
    let has_evidence = hot.sent() == 0 || hot.flags() & flag::ACKS != 0;
    let penalty = if is_new && has_evidence { view.floor_ns() } else { penalty };
    if penalty < QUIET_PENALTY_LEAST_NS { penalty.min(1) } else { penalty }
}

/// Returns whether a member was idle for the minimum time after which it is worth a try. Few are in a busy group, so
/// that its pickers need not check each member.
pub(crate) fn may_be_unused(hot: &Hot, now: u64) -> bool {
    is_unused(hot, now, 0)
}

/// Returns whether a slow member was idle for so long that a message should test its speed again.
#[cold]
fn is_unused(hot: &Hot, now: u64, penalty: u64) -> bool {
    hot.outstanding().messages == 0 && now.saturating_sub(hot.sent_at()) > probe_pause_ns(penalty)
}

/// Returns how long a slow member gets no messages.
#[inline(always)]
fn probe_pause_ns(penalty: u64) -> u64 {
    penalty.saturating_mul(PROBE_PAUSE).clamp(PROBE_PAUSE_LEAST_NS, PROBE_PAUSE_MOST_NS)
}

/// Returns F of a member whose acknowledgements do not count, or that gave none.
#[inline(always)]
fn without_acks(hot: &Hot, flags: u8, view: &View, arrival: u64, finish: u64, service: u64) -> u64 {
    let is_silent = flags & (flag::REPORTS | flag::ACKS | flag::LAGS) == 0;
    // If no member gives evidence, all F are guesses of the same kind.
    let finish = if is_silent && !view.has_evidence { arrival } else { finish };
    match hot.outstanding().messages {
        0 => finish,
        // The due time of its acknowledgement watches such a member instead.
        _ if flags & flag::ACKS == 0 && hot.marks() & mark::ASKED != 0 => finish,
        // A message that has not left for its socket cannot be finished. If only lagging members have known speeds,
        // these do not apply to others.
        unsent => {
            let is_guess = is_silent && !view.has_evidence && hot.speed().processing_ns() == 0;
            let service = if is_guess { view.floor_ns() } else { service };
            finish.max(arrival.saturating_add(unsent.saturating_mul(service)))
        }
    }
}

/// Returns processing time and penalty of a member of unknown speed.
#[inline(never)]
fn unknown(hot: &Hot, view: &View) -> (u64, u64) {
    let (mean_ns, sent) = (view.mean_ns, hot.sent());
    // Among members of known speed a new member may be the slowest. Until its first reports may arrive, it gets messages
    // only if others would have to wait.
    let is_new = sent < NEWCOMER_MESSAGES && hot.marks() & mark::NEWCOMER != 0;
    // A member that never gives evidence may be slow, and nothing would show it.
    let is_silent = sent >= SILENT_MESSAGES && hot.flags() & (flag::REPORTS | flag::ACKS) == 0;
    let service = if is_silent { 2 * mean_ns } else { mean_ns };
    (service, if is_new { mean_ns / 2 } else { view.floor_ns() })
}

/// Returns g/16 for the class of the mean, twice that for each class above it, half for each class below.
#[inline(always)]
fn class_penalty(class: u64, view: &View) -> u64 {
    // An hour and zero are 22 classes apart, and g/16 is below 2^38: no bits are shifted out.
    view.floor_ns() << CLASSES >> ((highest_class(view) - class) / CLASS_STEP)
}

/// Returns the class 22 above the class of the mean, rounded so that half a class counts as a whole one.
#[inline(always)]
fn highest_class(view: &View) -> u64 {
    view.class + CLASSES * CLASS_STEP + CLASS_STEP / 2 - 1
}

/// A comparison of members at one moment.
struct Scan<'a> {
    view: &'a View,
    now: u64,
}

impl Scan<'_> {
    /// Returns the best of all slots; of equal ones that with the oldest turn.
    #[inline(always)]
    fn best_of_all(&self, seats: &Seats) -> Option<Sighting> {
        if self.has_usual_keys()
            && let Some(seen) = self.confirmed(seats.loads(), Usual::new(self.view, self.now).least_of_all(seats))
        {
            return Some(seen);
        }
        self.weigh_all(seats)
    }

    /// Returns the best of a random few; of equal ones that with the oldest send. Turns would be one more cache line to
    /// fetch for each.
    fn best_of_some(&self, seats: &Seats, rng: &mut Rng) -> Option<Sighting> {
        let loads = seats.loads();
        let sample = sample(loads.len(), rng);
        let usual = || self.confirmed(loads, Usual::new(self.view, self.now).least_of_some(loads, &sample));
        if self.has_usual_keys() { usual() } else { None }.or_else(|| self.weigh_some(loads, &sample))
    }

    /// Returns whether most members have their usual key.
    #[inline(always)]
    fn has_usual_keys(&self) -> bool {
        self.view.has_evidence && !self.view.has_concurrency
    }

    /// Returns the slot of the least usual key, if its full [`key`](Self::key) is the same. Then it has the least key
    /// of all, since the full keys of the others are at least their usual ones.
    #[inline(always)]
    fn confirmed(&self, loads: &[Arc<MemberLoad>], least: Least) -> Option<Sighting> {
        let hot = loads.get(least.index)?.hot();
        let finish = hot.finish();
        let Weight { wait, penalty, service, .. } = weigh(hot, self.view, self.now);
        let key = hot.rank() << RANK_SHIFT | in_steps(wait, penalty);
        (key == least.key).then_some(Sighting { index: least.index, finish, service, is_by_turn: true })
    }

    /// Returns a slot that no comparison chose.
    #[inline(always)]
    fn sighting(&self, seats: &Seats, index: usize) -> Sighting {
        let hot = seats.loads()[index].hot();
        self.sighting_with(hot, hot.finish(), index)
    }

    #[inline(always)]
    fn sighting_with(&self, hot: &Hot, finish: u64, index: usize) -> Sighting {
        Sighting { index, finish, service: weigh(hot, self.view, self.now).service, is_by_turn: true }
    }

    #[inline(never)]
    fn weigh_all(&self, seats: &Seats) -> Option<Sighting> {
        let mut best = Best::NONE;
        let mut index = 0;
        for (loads, turns) in seats.by_line() {
            for (load, turn) in loads.iter().zip(turns) {
                let hot = load.hot();
                best.compare(index, hot.finish(), self.key(hot), turn.load(Relaxed));
                index += 1;
            }
        }
        best.sighting(self, seats.loads())
    }

    #[inline(never)]
    fn weigh_some(&self, loads: &[Arc<MemberLoad>], sample: &[usize; SAMPLE]) -> Option<Sighting> {
        let mut best = Best::NONE;
        for &index in sample {
            let hot = loads[index].hot();
            best.compare(index, hot.finish(), self.key(hot), hot.sent_at());
        }
        best.sighting(self, loads)
    }

    /// Returns a number that is smaller for the better candidate.
    ///
    /// ```text
    ///  63 62 61                                    0
    /// +-----+---------------------------------------+
    /// |rank |  wait + penalty in steps of 65.5 µs   |    steps, so that nearly equal members tie
    /// +-----+---------------------------------------+
    /// ```
    #[inline(always)]
    fn key(&self, hot: &Hot) -> u64 {
        let Weight { wait, penalty, .. } = weigh(hot, self.view, self.now);
        hot.rank() << RANK_SHIFT | in_steps(wait, penalty)
    }
}

/// The best slot so far.
struct Best {
    merit: u128,
    index: usize,
    finish: u64,
}

impl Best {
    const NONE: Self = Self { merit: u128::MAX, index: 0, finish: 0 };

    #[inline(always)]
    fn compare(&mut self, index: usize, finish: u64, key: u64, turn: u64) {
        let merit = u128::from(key) << 64 | u128::from(turn);
        // The branch would be unpredictable.
        let is_better = merit < self.merit;
        self.merit = select_unpredictable(is_better, merit, self.merit);
        self.index = select_unpredictable(is_better, index, self.index);
        self.finish = select_unpredictable(is_better, finish, self.finish);
    }

    fn sighting(self, scan: &Scan<'_>, loads: &[Arc<MemberLoad>]) -> Option<Sighting> {
        let hot = || loads[self.index].hot();
        (self.merit != u128::MAX).then(|| scan.sighting_with(hot(), self.finish, self.index))
    }
}

/// Returns the value by which ready members are compared: members with equal steps wait equally long, as far as known.
#[inline(always)]
pub(crate) fn in_steps(wait: u64, penalty: u64) -> u64 {
    wait.saturating_add(penalty) >> STEP_SHIFT
}

/// Draws the candidates in a large group of `len` slots.
fn sample(len: usize, rng: &mut Rng) -> [usize; SAMPLE] {
    let mut sample = [0; SAMPLE];
    for pair in sample.chunks_exact_mut(2) {
        pair.copy_from_slice(&rng.two_below(len));
    }
    sample
}

/// Returns the first ready slot from `start` on, or else the slot at `start`.
fn in_turn(seats: &Seats, start: usize) -> usize {
    let len = seats.loads().len();
    let ready = (start..start + len).map(|index| index % len).find(|&index| seats.loads()[index].rank() == READY);
    ready.unwrap_or(start)
}

const READY: u64 = 0;
/// Longest time for which a member counts as late: then another message tests whether it still works.
const LATE_MAX_NS: u64 = 2_000_000_000;
/// Largest group whose members are all compared.
pub(crate) const SCAN_MAX: usize = 64;
/// Candidates in larger groups. Fewer would multiply the waiting time under load.
const SAMPLE: usize = 16;
const STEP_SHIFT: u32 = 16;
const RANK_SHIFT: u32 = 62;
/// One class in the units of [`Speed::class`](crate::speed::Speed::class).
const CLASS_STEP: u64 = 256;
const CLASSES: u64 = 22;
/// 146 years, far from where sums of instants and delays could overflow.
const NOW_MAX_NS: u64 = 1 << 62;
/// A slow member is tried again after this multiple of its penalty.
const PROBE_PAUSE: u64 = 1024;
const PROBE_PAUSE_LEAST_NS: u64 = 1_000_000_000;
const PROBE_PAUSE_MOST_NS: u64 = 5_000_000_000;
/// A smaller penalty counts as none in a quiet group.
const QUIET_PENALTY_LEAST_NS: u64 = 1_000_000;
/// Messages until a new member's penalty ends.
const NEWCOMER_MESSAGES: u64 = 24;
/// Messages after which a member without evidence counts as silent. Fewer would punish members whose first report comes
/// late.
const SILENT_MESSAGES: u64 = 256;

#[cfg(all(test, not(loom)))]
mod tests;
