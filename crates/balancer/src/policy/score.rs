//! The score of thesis §4.1.2.
//!
//! ```text
//! Score = t1 − max((m_q + m_s) · t_p − t2, 0)      t1 = now − t_s      t2 = now − t_r
//! ```
//!
//! The time since the last send, minus the member's remaining work. That work follows from its own report, the sends
//! since, and the time that has passed. The highest score is chosen, equal ones by turn. For a member with t_p = 0 the
//! mean of the others' non-zero t_p applies. If there is none, the second term is 0 for all and the choice is round
//! robin, longest idle first.

use std::hint::select_unpredictable;

use crate::{load::MemberLoad, nanos::Nanos, pick::Choice, seats::Seats, sync::Relaxed};

/// Returns the slot with the highest score among the slots of the best availability. `None` if the group is empty.
///
/// One scan is enough, unless some members with pending work have no t_p while others do. Then all are scored again
/// with the mean.
pub(crate) fn choose(seats: &Seats, now: Nanos) -> Option<Choice> {
    // Bits of all t_p, and of the pending messages of members without t_p.
    let (mut known, mut guessed) = (0, 0);
    let first = scan(seats, now, |reported_ns, pending| {
        known |= reported_ns;
        guessed |= if reported_ns == 0 { pending } else { 0 };
        reported_ns
    });
    if guessed == 0 || known == 0 {
        return first;
    }
    let mean_ns = mean_ns(seats);
    scan(seats, now, |reported_ns, _| if reported_ns == 0 { mean_ns } else { reported_ns })
}

/// Scores all slots. `processing_ns` maps a member's t_p and pending messages to the t_p to use.
#[inline(always)]
fn scan(seats: &Seats, now: Nanos, mut processing_ns: impl FnMut(u64, u64) -> u64) -> Option<Choice> {
    let scale = Scale::new(now);
    let mut best = u128::MAX;
    let mut best_index = 0;
    let mut index = 0;
    for (loads, turns) in seats.by_line() {
        for (load, turn) in loads.iter().zip(turns) {
            let pending = load.pending();
            let work_ns = pending.saturating_mul(processing_ns(load.processing_ns(), pending));
            let merit = u128::from(scale.key(load, work_ns)) << 64 | u128::from(turn.load(Relaxed));
            // The branch would be unpredictable.
            let is_better = merit < best;
            best = select_unpredictable(is_better, merit, best);
            best_index = select_unpredictable(is_better, index, best_index);
            index += 1;
        }
    }
    // No member's merit is `u128::MAX`: keys stay below the end of their 62 bits.
    (best != u128::MAX).then_some(Choice { index: best_index, turn: best as u64 })
}

/// Returns the mean of the t_p that are not 0; 0 if all are.
#[cold]
fn mean_ns(seats: &Seats) -> u64 {
    let (mut sum_ns, mut known) = (0_u64, 0_u64);
    for load in seats.loads() {
        let processing_ns = load.processing_ns();
        sum_ns += processing_ns;
        known += u64::from(processing_ns != 0);
    }
    sum_ns.checked_div(known).unwrap_or(0)
}

/// Converts scores at one instant to integers that order members from best to worst.
///
/// Since `now` is the same for all members, the score is compared without its differences:
///
/// ```text
/// Score = (now − t_s) − max((m_q + m_s) · t_p − (now − t_r), 0)
///       = 2·now − (free_at + t_s)       free_at = max(t_r + (m_q + m_s) · t_p, now)
///
///  63 62 61                                     0
/// +-----+----------------------------------------+
/// |rank |  free_at + t_s − origin, minus the score|    smaller is better; availability decides first
/// +-----+----------------------------------------+
/// ```
///
/// This also holds if t_s or t_r is later than `now` because another thread read the clock. Both instants are limited
/// to within 2^60 ns (36 years) of `now`. So the sum fits into 62 bits for any origin of the clock, without a wider
/// type. Members with a longer backlog compare as equal.
struct Scale {
    earliest_ns: u64,
    now_ns: u64,
    latest_ns: u64,
    /// The minimum of `free_at + t_s`, modulo 2^64.
    origin_ns: u64,
}

impl Scale {
    fn new(now: Nanos) -> Self {
        let earliest_ns = now.0.saturating_sub(HORIZON_NS);
        Self {
            earliest_ns,
            now_ns: now.0,
            latest_ns: now.0.saturating_add(HORIZON_NS),
            origin_ns: now.0.wrapping_add(earliest_ns),
        }
    }

    #[inline(always)]
    fn key(&self, load: &MemberLoad, work_ns: u64) -> u64 {
        let free_at_ns = load.reported_at_ns().saturating_add(work_ns).min(self.latest_ns).max(self.now_ns);
        let sent_at_ns = load.sent_at_ns().max(self.earliest_ns).min(self.latest_ns);
        load.rank() << RANK_SHIFT | free_at_ns.wrapping_add(sent_at_ns).wrapping_sub(self.origin_ns)
    }
}

const RANK_SHIFT: u32 = 62;
const HORIZON_NS: u64 = 1 << 60;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{dispatch::Dispatch, load::Availability, report::LoadReport};

    const MS: u64 = 1_000_000;

    fn book(load: &MemberLoad, at: Nanos) {
        load.hot().book(&Dispatch { at, ..Dispatch::default() }, 0, 0);
    }

    /// Creates a member with one report at `t_r` and one send at `t_s`, all in ms; m_s = 1 if the send came later.
    fn member(m_q: u64, t_p: u64, t_r: u64, t_s: u64) -> Arc<MemberLoad> {
        let load = Arc::new(MemberLoad::new(Nanos(0)));
        let report =
            LoadReport { messages_in_queue: m_q, processing_time: Duration::from_millis(t_p), draining: false };
        if t_s <= t_r {
            book(&load, Nanos(t_s * MS));
        }
        load.report(&report, Nanos(t_r * MS));
        if t_s > t_r {
            book(&load, Nanos(t_s * MS));
        }
        load
    }

    fn seats(loads: &[&Arc<MemberLoad>]) -> Seats {
        let turns: Vec<u64> = (0..loads.len() as u64).collect();
        Seats::new(loads.iter().map(|&load| Arc::clone(load)).collect(), &turns)
    }

    fn chosen(loads: &[&Arc<MemberLoad>], now_ms: u64) -> usize {
        choose(&seats(loads), Nanos(now_ms * MS)).expect("there are seats").index
    }

    /// Converts a key back to a score in ms.
    fn score(load: &MemberLoad, now_ms: u64) -> i64 {
        let work_ns = load.pending() * load.processing_ns();
        let key = Scale::new(Nanos(now_ms * MS)).key(load, work_ns);
        now_ms as i64 - (key / MS) as i64
    }

    #[test]
    fn the_score_is_that_of_the_thesis() {
        // t1 = 1000 − 900, t2 = 1000 − 500, (4 + 1) · 250 = 1250
        assert_eq!(score(&member(4, 250, 500, 900), 1000), 100 - 750);
        // (1 + 1) · 25 is done long ago
        assert_eq!(score(&member(1, 25, 500, 900), 1000), 100);
        // t_s and t_r read by threads with a later clock reading: t1 = 400 − 900, t2 = 400 − 500
        assert_eq!(score(&member(4, 25, 500, 900), 400), -500 - 225);
    }

    #[test]
    fn the_member_with_less_work_before_it_is_chosen() {
        let (slow, fast) = (member(8, 50, 100, 50), member(8, 25, 100, 50));
        assert_eq!(chosen(&[&slow, &fast], 100), 1);
        assert_eq!(chosen(&[&fast, &slow], 100), 0);
        assert_eq!(chosen(&[&slow, &fast], 1000), 0, "no work left: equal, the older turn");
    }

    #[test]
    fn unknown_t_p_counts_as_the_mean_of_known_ones() {
        // The unknown member counts as 5 · (20 + 40) / 2 = 150 ms: between 5 · 20 and 5 · 40.
        let (quick, slow, unknown) = (member(5, 20, 100, 50), member(5, 40, 100, 50), member(5, 0, 100, 50));
        assert_eq!(chosen(&[&slow, &unknown, &quick], 100), 2);
        assert_eq!(chosen(&[&slow, &unknown], 100), 0, "a mean of one: equal, the older turn");
        quick.set_availability(Availability::Full);
        assert_eq!(chosen(&[&slow, &unknown, &quick], 100), 1, "who is full still counts in the mean");
    }

    #[test]
    fn without_pending_work_or_reports_the_longest_idle_is_chosen() {
        assert_eq!(chosen(&[&member(0, 25, 100, 60), &member(0, 0, 100, 50), &member(0, 90, 100, 55)], 200), 1);
        assert_eq!(chosen(&[&member(9, 0, 100, 60), &member(0, 0, 100, 50), &member(3, 0, 100, 55)], 200), 1);
    }

    #[test]
    fn availability_comes_before_the_score() {
        let (busy, idle, away) = (member(900, 1000, 100, 90), member(0, 1, 100, 50), member(0, 1, 100, 1));
        idle.set_availability(Availability::Full);
        away.set_availability(Availability::Offline);
        assert_eq!(chosen(&[&away, &idle, &busy], 100), 2);
        busy.set_availability(Availability::Offline);
        assert_eq!(chosen(&[&away, &idle, &busy], 100), 1);
        idle.set_availability(Availability::Offline);
        assert_eq!(chosen(&[&away, &idle, &busy], 100), 0);
    }

    #[test]
    fn extremes_neither_overflow_nor_leave_their_rank() {
        let (hopeless, full) = (member(u64::MAX, 3_600_000, 0, 0), member(0, 1, 0, 0));
        full.set_availability(Availability::Full);
        let instants = [0, 1, HORIZON_NS - 1, HORIZON_NS, 1 << 63, u64::MAX - 1, u64::MAX].map(Nanos);
        for t_s in instants {
            book(&hopeless, t_s);
            book(&full, t_s);
            for now in instants {
                let key = |load: &MemberLoad, work_ns| Scale::new(now).key(load, work_ns);
                assert_eq!(key(&hopeless, u64::MAX) >> RANK_SHIFT, 0, "{t_s:?} {now:?}");
                assert!(key(&hopeless, 0) <= key(&hopeless, u64::MAX), "{t_s:?} {now:?}");
                assert_eq!(key(&full, 0) >> RANK_SHIFT, 1, "{t_s:?} {now:?}");
            }
        }
    }
}
