//! Adaptive: the member that will have finished everything first, by a clock that is kept for each.
//!
//! ```text
//! wait = max(F, now) − now        F: when the member will have finished all it was sent
//! ```
//!
//! A message sent moves F on by the member's processing time; time passing drains it; reports, acknowledgements
//! and the drain of sockets set it right ([`Estimate`](crate::estimate::Estimate)). The least wait, with a small
//! penalty for slow classes, is chosen; of equal ones the member that was sent something longest ago. If nothing
//! is known all waits are 0, and the choice is round robin.
//!
//! A member whose evidence is overdue is taken not to have moved since it was due, and to fall behind as fast
//! again.

use std::hint::select_unpredictable;

use crate::{
    dispatch::Dispatch,
    estimate::flag,
    group_view::View,
    hot::{Hot, mark},
    rng::Rng,
    seats::Seats,
    sync::{AtomicU64, Relaxed},
};

/// A seat as the scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) index: usize,
    /// F when it was compared.
    pub(crate) finish: u64,
}

/// All that decides about a member; times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Until the member could begin with the message.
    pub(crate) wait: u64,
    /// What it is held back by for being slow.
    pub(crate) penalty: u64,
    /// How long evidence has been overdue.
    pub(crate) late: u64,
    /// What the message is taken to cost it.
    pub(crate) service: u64,
}

/// The seat that finishes first, among those of the best availability; of more than [`SCAN_MAX`] seats, among a
/// random few. `None` if there is no seat.
pub(crate) fn choose(
    seats: &Seats,
    view: &View,
    sequence: &AtomicU64,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<Sighting> {
    let (len, now) = (seats.loads().len(), dispatch.at.0);
    let is_probe = rng.next_u64().is_multiple_of(PROBE_EVERY);
    if len > SCAN_MAX {
        let seen = match view.mean_ns {
            0 => in_turn(seats, sequence.fetch_add(1, Relaxed) as usize % len),
            _ => best(seats, view, now, is_probe, (0..SAMPLE).map(|_| rng.below(len))),
        };
        if let Some(seen) = seen.filter(|seen| seats.loads()[seen.index].rank() == READY) {
            return Some(seen);
        }
    }
    best(seats, view, now, is_probe, 0..len)
}

/// What `choose` compares of one member.
#[inline(always)]
pub(crate) fn weigh(hot: &Hot, view: &View, now: u64) -> Weight {
    let (flags, speed, due, delay) = (hot.flags(), hot.speed(), hot.due(), hot.delay_ns());
    let (service, penalty) = match speed.processing_ns() {
        0 => unknown(hot, flags, view),
        processing_ns => (processing_ns.max(view.floor_ns()), class_penalty(speed.class(), view)),
    };
    // Speed that nobody can check is no merit; slowness is believed.
    let penalty = if flags & flag::ACK_MODE == 0 { penalty.max(view.floor_ns()) } else { penalty };
    let late = now.saturating_sub(due);
    let mut finish = hot.finish().max(due.min(now)).saturating_add(late.saturating_mul(LATE_FACTOR));
    if flags & flag::ACK_MODE == 0 {
        finish = without_acks(hot, flags, view, now.saturating_add(delay), finish, service);
    }
    Weight { wait: finish.saturating_sub(now.saturating_add(delay)), penalty, late, service }
}

/// F of a member whose acknowledgements do not count, or who gave none.
#[inline(always)]
fn without_acks(hot: &Hot, flags: u8, view: &View, arrival: u64, finish: u64, service: u64) -> u64 {
    let is_silent = flags & (flag::REPORTS | flag::ACKS) == 0;
    // Where nobody gives evidence, all F are guesses of the same kind.
    let finish = if is_silent && !view.has_evidence { arrival } else { finish };
    match hot.outstanding().messages {
        0 => finish,
        // Such a member is watched by its due acknowledgement instead.
        _ if flags & flag::ACKS == 0 && hot.marks() & mark::ASKED != 0 => finish,
        // What has not left for its socket cannot be finished.
        unsent => finish.max(arrival.saturating_add(unsent.saturating_mul(service))),
    }
}

/// Cost and penalty of a member of unknown speed.
#[inline(never)]
fn unknown(hot: &Hot, flags: u8, view: &View) -> (u64, u64) {
    let (mean_ns, penalty, sent) = (view.mean_ns, view.floor_ns(), hot.sent());
    if sent == 0 || hot.marks() & mark::NEWCOMER != 0 {
        // A slow start among members that are known: it may be the slowest of all.
        let caution = sent.min(NEWCOMER_MESSAGES);
        return (mean_ns + mean_ns * caution / 8, penalty << ((caution + 4) / 8).min(2));
    }
    let is_silent = flags & (flag::REPORTS | flag::ACKS) == 0;
    if is_silent && sent > SILENT_MESSAGES && view.is_reported {
        return (view.max_ns.clamp(mean_ns, mean_ns.saturating_mul(2)), penalty);
    }
    (mean_ns, penalty)
}

/// g/16 for the class of the mean, twice that for each class above it, half for each below.
#[inline(always)]
fn class_penalty(class: u64, view: &View) -> u64 {
    let above = (class + CLASS_STEP / 2).wrapping_sub(view.class) as i64 >> CLASS_STEP.ilog2();
    // g is below 2^42, so nothing is shifted out.
    view.floor_ns() << CLASSES_MAX >> (CLASSES_MAX - above.clamp(-CLASSES_MAX, CLASSES_MAX))
}

/// The best of some seats.
#[inline(always)]
fn best(
    seats: &Seats,
    view: &View,
    now: u64,
    is_probe: bool,
    candidates: impl Iterator<Item = usize>,
) -> Option<Sighting> {
    let (mut best_key, mut best_seen) = (u128::MAX, None);
    for index in candidates {
        let hot = seats.loads()[index].hot();
        let finish = hot.finish();
        let weight = weigh(hot, view, now);
        let key = key(hot, &weight, view, now, is_probe);
        let is_better = key < best_key;
        best_key = select_unpredictable(is_better, key, best_key);
        best_seen = select_unpredictable(is_better, Some(Sighting { index, finish }), best_seen);
    }
    best_seen
}

/// A number that is smaller for the better candidate.
///
/// ```text
///  127 126 125          80 79             16 15           0
/// +-------+----------------+----------------+--------------+
/// | rank  | wait + penalty |  last sent at  | repeats then |    waits in steps of 65.5 µs, so that ties are ties
/// +-------+----------------+----------------+--------------+
/// ```
#[inline(always)]
fn key(hot: &Hot, weight: &Weight, view: &View, now: u64, is_probe: bool) -> u128 {
    let sent_at = hot.sent_at();
    let mut steps = in_steps(weight.wait, weight.penalty);
    let mut turn = u128::from(sent_at) << 16 | u128::from(hot.repeat());
    if is_probe && weight.wait == 0 && weight.penalty > view.mean_ns / 8 {
        let patience = weight.penalty.saturating_mul(PROBE_PATIENCE).min(PROBE_PATIENCE_MAX_NS);
        if now.saturating_sub(sent_at) > patience {
            // One that was slow and was not asked for long: it may have become fast.
            (steps, turn) = (0, 0);
        }
    }
    u128::from(hot.rank() << STEPS_BITS | steps) << 80 | turn
}

/// What is compared first of two ready members: equal ones wait equally long, as far as that can be told.
#[inline(always)]
pub(crate) fn in_steps(wait: u64, penalty: u64) -> u64 {
    (wait.saturating_add(penalty) >> STEP_SHIFT).min(STEPS_MAX)
}

/// The first ready seat from `start` on, or else the seat at `start`.
fn in_turn(seats: &Seats, start: usize) -> Option<Sighting> {
    let len = seats.loads().len();
    let index = (start..start + len).map(|index| index % len).find(|&index| seats.loads()[index].rank() == READY);
    let index = index.unwrap_or(start);
    Some(Sighting { index, finish: seats.loads()[index].hot().finish() })
}

const READY: u64 = 0;
/// Groups up to this size are looked at as a whole.
pub(crate) const SCAN_MAX: usize = 64;
/// Candidates in larger groups. Fewer cost a multiple of the waiting time under load.
const SAMPLE: usize = 16;
/// Frozen, and falling behind as fast again.
const LATE_FACTOR: u64 = 2;
const STEP_SHIFT: u32 = 16;
const STEPS_BITS: u32 = 46;
const STEPS_MAX: u64 = (1 << STEPS_BITS) - 1;
/// One class in the units of [`Speed::class`](crate::speed::Speed::class).
const CLASS_STEP: u64 = 256;
const CLASSES_MAX: i64 = 16;
/// Messages until a newcomer's slow start is at its slowest.
const NEWCOMER_MESSAGES: u64 = 24;
/// Messages without a word until a member is taken for silent.
const SILENT_MESSAGES: u64 = 32;
const PROBE_EVERY: u64 = 64;
const PROBE_PATIENCE: u64 = 1024;
const PROBE_PATIENCE_MAX_NS: u64 = 10_000_000_000;
