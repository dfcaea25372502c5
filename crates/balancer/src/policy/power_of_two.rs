//! Power of two choices: the better of two members drawn at random.

use crate::{dispatch::Dispatch, group_view::View, policy::adaptive, policy::random, rng::Rng, seats::Seats};

/// Draws two slots of the best availability, and returns the one with fewer outstanding messages.
///
/// Of equal ones it returns that with the shorter predicted wait, or else the first. `None` if the group is empty.
pub(crate) fn choose(seats: &Seats, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let first = random::choose(seats, rng)?;
    let Some(second) = random::choose_another(seats, first, rng) else { return Some(first) };
    let [one, other] = [first, second].map(|index| seats.loads()[index].hot());
    // The second may have a worse availability, if the first is the only one with its own.
    let merits = [one, other].map(|hot| (hot.rank(), hot.outstanding().messages));
    if merits[0] != merits[1] {
        return Some(if merits[0] < merits[1] { first } else { second });
    }
    let waits = [one, other].map(|hot| adaptive::weigh(hot, view, dispatch.at.0).wait);
    Some(if waits[0] <= waits[1] { first } else { second })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        load::{Availability, MemberLoad},
        nanos::Nanos,
        report::LoadReport,
    };

    fn counts(seats: &Seats) -> Vec<usize> {
        seats.drawn(10_000, |view, rng| choose(seats, view, &Dispatch::default(), rng))
    }

    fn give(load: &MemberLoad, messages: usize) {
        (0..messages).for_each(|_| load.hot().book(&Dispatch::default(), 1, 0));
    }

    #[test]
    fn member_with_most_outstanding_is_never_chosen() {
        let seats = Seats::of_strangers(3);
        let loads = seats.loads();
        for (load, messages) in loads.iter().zip([5, 3, 4]) {
            give(load, messages);
        }
        // The second member is the better one in two of the three pairs.
        let counts = counts(&seats);
        assert_eq!(counts[0], 0);
        assert!((6_400..6_900).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn equal_members_are_compared_by_predicted_wait() {
        let seats = Seats::of_strangers(2);
        let loads = seats.loads();
        for (load, messages_in_queue) in loads.iter().zip([9, 2]) {
            let processing_time = Duration::from_millis(10);
            load.report(&LoadReport { messages_in_queue, processing_time, draining: false }, Nanos(0));
        }
        assert_eq!(counts(&seats), [0, 10_000]);
    }

    #[test]
    fn the_best_availability_comes_first() {
        let seats = Seats::of_strangers(4);
        let loads = seats.loads();
        give(&loads[2], 100);
        loads[1].set_availability(Availability::Full);
        for index in [0, 3] {
            loads[index].set_availability(Availability::Offline);
        }
        assert_eq!(counts(&seats), [0, 0, 10_000, 0]);
        loads[2].set_availability(Availability::Full);
        assert_eq!(counts(&seats), [0, 10_000, 0, 0]);
    }

    #[test]
    fn single_member_is_chosen() {
        assert_eq!(counts(&Seats::of_strangers(1)), [10_000]);
    }
}
