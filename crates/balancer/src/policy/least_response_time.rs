//! Least response time: the member expected to acknowledge one more message first, by its recent latency ("peak EWMA"
//! of Finagle and Linkerd).
//!
//! ```text
//! cost = latency · (outstanding + 1)        latency: PeakLatency, as it has decayed by now
//! ```

use crate::{load::MemberLoad, nanos::Nanos, pick::Choice, policy::least, seats::Seats};

/// Returns the slot of the least cost among the slots of the best availability; of equal ones, the one with the oldest
/// turn. `None` if the group is empty.
pub(crate) fn choose(seats: &Seats, now: Nanos) -> Option<Choice> {
    least::choose(seats, |load: &MemberLoad| cost(load, now))
}

/// Returns the cost of a member. A member without any acknowledgement is tried with one message: it costs nothing while
/// idle, and more than any known member while a message is outstanding.
#[inline(always)]
fn cost(load: &MemberLoad, now: Nanos) -> u64 {
    let outstanding = load.hot().outstanding().messages;
    match load.latency().at(now.0) {
        None if outstanding == 0 => 0,
        None => UNTRIED + outstanding,
        Some(latency_ns) => latency_ns.saturating_mul(outstanding + 1).min(UNTRIED),
    }
}

/// In ns: 73 years of work.
const UNTRIED: u64 = 1 << 61;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{acknowledged::Acknowledged, dispatch::Dispatch};

    const MS: u64 = 1_000_000;

    fn give(load: &MemberLoad, messages: usize) {
        let dispatch = Dispatch { bytes: 100, is_acknowledged: true, ..Dispatch::default() };
        (0..messages).for_each(|_| load.hot().book(&dispatch, 1, 0));
    }

    /// Acknowledges one message at `now_ms`, after `latency_ms`.
    fn acknowledge(load: &MemberLoad, latency_ms: u64, now_ms: u64) {
        give(load, 1);
        load.acknowledged(&Acknowledged::one(Nanos((now_ms - latency_ms) * MS), 100, Nanos(now_ms * MS)));
    }

    fn chosen(seats: &Seats, now_ms: u64) -> usize {
        choose(seats, Nanos(now_ms * MS)).expect("there are seats").index
    }

    #[test]
    fn cost_is_latency_times_outstanding_messages() {
        let seats = Seats::of_strangers(2);
        let loads = seats.loads();
        acknowledge(&loads[0], 30, 100);
        acknowledge(&loads[1], 10, 100);
        for expected in [1, 1, 0, 1, 1, 1, 0] {
            // 30, 60 and 90 against 10, 20, 30 ...; equal ones by turn
            assert_eq!(chosen(&seats, 100), expected);
            give(&loads[expected], 1);
        }
    }

    #[test]
    fn untried_member_is_tried_once() {
        let seats = Seats::of_strangers(3);
        let loads = seats.loads();
        acknowledge(&loads[0], 1, 100);
        assert_eq!(chosen(&seats, 100), 1);
        give(&loads[1], 1);
        assert_eq!(chosen(&seats, 100), 2);
        give(&loads[2], 1);
        give(&loads[0], 10_000);
        assert_eq!(chosen(&seats, 100), 0);
        loads[2].acknowledged(&Acknowledged::one(Nanos(100 * MS), 100, Nanos(101 * MS)));
        assert_eq!(chosen(&seats, 101), 2);
    }

    #[test]
    fn fewest_in_flight_are_chosen_without_acknowledgements() {
        let seats = Seats::of_strangers(2);
        let loads = seats.loads();
        give(&loads[0], 3);
        give(&loads[1], 2);
        assert_eq!(chosen(&seats, 5), 1);
    }

    #[test]
    fn slow_member_is_tried_again_after_its_latency_decays() {
        let seats = Seats::of_strangers(2);
        let loads = seats.loads();
        acknowledge(&loads[0], 1_000, 1_000);
        acknowledge(&loads[1], 100, 1_000);
        assert_eq!(chosen(&seats, 1_000), 1);
        (2..40).for_each(|second| acknowledge(&loads[1], 100, second * 1_000));
        assert_eq!(chosen(&seats, 40_000), 0, "nothing was heard of it for more than four half-lives");
    }
}
