//! One pick: choose by the policy, take the member's turn, book the message.

use crate::{
    dispatch::Dispatch,
    policy::{Policy, random, round_robin, score},
    rng::Rng,
    seats::Seats,
    sync::{AtomicU64, Relaxed},
};

/// A member as a policy's scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Which seat.
    pub(crate) index: usize,
    /// The turn of that seat when it was compared.
    pub(crate) turn: u64,
}

/// Chooses a seat and books a message on it. `None` if there is no seat.
pub(crate) fn pick(
    policy: Policy,
    seats: &Seats,
    sequence: &AtomicU64,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<usize> {
    let index = match policy {
        Policy::ThesisScore => choose_in_turn(seats, sequence, || score::choose(seats, dispatch.at))?,
        Policy::RoundRobin => choose_in_turn(seats, sequence, || round_robin::choose(seats))?,
        // Nobody compares turns in such a group: its pickers leave them, and the shared sequence, alone.
        Policy::Random => random::choose(seats, rng)?,
    };
    seats.loads()[index].book(dispatch);
    Some(index)
}

/// The seat that a pick by `policy` would choose, with nothing booked.
pub(crate) fn preview(policy: Policy, seats: &Seats, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    match policy {
        Policy::ThesisScore => score::choose(seats, dispatch.at).map(|choice| choice.index),
        Policy::RoundRobin => round_robin::choose(seats).map(|choice| choice.index),
        Policy::Random => random::choose(seats, rng),
    }
}

/// Chooses and takes the turn of the chosen, so that two pickers with the same view choose two members.
///
/// The slower picker chooses again, knowing of the faster one's booking. After [`RESCANS_MAX`] it takes its last
/// choice all the same: then so many pickers are at work that one message more on a good member does no harm, and
/// a bound on the time of a pick is worth more.
fn choose_in_turn(seats: &Seats, sequence: &AtomicU64, choose: impl Fn() -> Option<Choice>) -> Option<usize> {
    let mut choice = choose()?;
    let ticket = sequence.fetch_add(1, Relaxed);
    for _ in 0..RESCANS_MAX {
        if seats.try_take_turn(choice.index, choice.turn, ticket) {
            return Some(choice.index);
        }
        choice = choose()?;
    }
    seats.take_turn(choice.index, ticket);
    Some(choice.index)
}

const RESCANS_MAX: usize = 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use super::*;
    use crate::{load::MemberLoad, nanos::Nanos};

    fn seats(turns: &[u64]) -> Seats {
        Seats::new(turns.iter().map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect(), turns)
    }

    #[test]
    fn the_slower_picker_chooses_again() {
        let seats = seats(&[0, 1]);
        let sequence = AtomicU64::new(2);
        let scans = Cell::new(0);
        let index = choose_in_turn(&seats, &sequence, || {
            let choice = round_robin::choose(&seats);
            if scans.replace(scans.get() + 1) == 0 {
                seats.take_turn(0, sequence.fetch_add(1, Relaxed));
            }
            choice
        });
        assert_eq!((index, scans.get()), (Some(1), 2));
        assert_eq!((seats.turn(0), seats.turn(1)), (2, 3));
    }

    #[test]
    fn a_picker_that_always_loses_stops_after_two_rescans() {
        let seats = seats(&[0, 1]);
        let sequence = AtomicU64::new(2);
        let scans = Cell::new(0);
        let index = choose_in_turn(&seats, &sequence, || {
            scans.set(scans.get() + 1);
            let choice = round_robin::choose(&seats)?;
            seats.take_turn(choice.index, sequence.fetch_add(1, Relaxed));
            Some(choice)
        });
        assert_eq!((index, scans.get()), (Some(0), 3));
    }

    #[test]
    fn an_empty_group_has_nobody_to_pick() {
        for policy in Policy::ALL {
            let dispatch = Dispatch::default();
            assert_eq!(pick(policy, &seats(&[]), &AtomicU64::new(0), &dispatch, &mut Rng::new(1)), None);
            assert_eq!(preview(policy, &seats(&[]), &dispatch, &mut Rng::new(1)), None);
        }
    }
}
