//! A pick: choose by the policy, take the member's turn, book the message.

use crate::{
    dispatch::Dispatch,
    group_view::{GroupView, View},
    policy::{
        Burst, Policy, adaptive, capacity, custom, least_bytes, least_inflight, least_response_time, ordered,
        power_of_two, random, rendezvous, round_robin, score, sticky, weighted_round_robin,
    },
    policy_state::PolicyState,
    rng::Rng,
    rules::Rules,
    seats::Seats,
};

/// A member as a policy's scan saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the slot.
    pub(crate) index: usize,
    /// Turn of that slot when it was compared.
    pub(crate) turn: u64,
}

/// The input of a pick.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) policy: Policy,
    pub(crate) seats: &'a Seats,
    pub(crate) state: &'a PolicyState,
    pub(crate) view: &'a GroupView,
}

/// Chooses a slot and books a message on it. `None` if the group is empty.
pub(crate) fn pick(table: Table<'_>, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let Table { policy, seats, state, .. } = table;
    let view = table.view.at(dispatch.at, seats);
    if let (Some(pins), Some(slot)) = (&state.pins, dispatch.key_slot()) {
        return ordered::pick(table, pins, slot, &view, dispatch, rng);
    }
    if policy == Policy::Adaptive {
        return pick_adaptive(table, &view, dispatch, rng);
    }
    let index = choose(table, &view, dispatch, rng)?;
    book(seats, index, &view, dispatch);
    Some(index)
}

/// Chooses a slot and takes its turn, without booking.
#[inline(always)]
pub(crate) fn choose(table: Table<'_>, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let Table { policy, seats, state, .. } = table;
    match policy {
        Policy::Adaptive => {
            let seen = adaptive::choose(seats, view, dispatch, rng)?;
            adaptive::end_turn(seats, seen);
            Some(seen.index)
        }
        Policy::ThesisScore => choose_in_turn(seats, || score::choose(seats, dispatch.at)),
        Policy::RoundRobin => choose_in_turn(seats, || round_robin::choose(seats)),
        Policy::WeightedRoundRobin => weighted_round_robin::pick(seats, state.strides.as_ref()?),
        Policy::LeastInflight => choose_in_turn(seats, || least_inflight::choose(seats)),
        Policy::LeastResponseTime => choose_in_turn(seats, || least_response_time::choose(seats, dispatch.at)),
        Policy::LeastBytes => choose_in_turn(seats, || least_bytes::choose(seats)),
        // The policies below do not compare turns, so their pickers do not write them.
        Policy::Random => random::choose(seats, rng),
        Policy::Sticky => sticky::pick(seats, &state.ids, state.sticky.as_ref()?, dispatch.publisher, rng),
        Policy::HashClientId => rendezvous::choose(seats, &state.identities, dispatch.publisher),
        Policy::HashTopic => rendezvous::choose(seats, &state.identities, dispatch.topic),
        Policy::PowerOfTwo => power_of_two::choose(seats, view, dispatch, rng),
        Policy::Capacity => capacity::choose(seats, view, rng),
        Policy::Custom(number) => {
            let index = custom::choose(table, number, view, dispatch, rng)?;
            seats.take_turn(index, seats.next_turn());
            Some(index)
        }
    }
}

/// Returns the slot that a pick by `policy` would choose, without booking.
pub(crate) fn preview(table: Table<'_>, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let Table { policy, seats, state, view } = table;
    match policy {
        Policy::Adaptive => {
            let view = view.at(dispatch.at, seats);
            adaptive::preview(seats, &view, dispatch, rng).map(|seen| seen.index)
        }
        Policy::ThesisScore => score::choose(seats, dispatch.at).map(|choice| choice.index),
        Policy::RoundRobin => round_robin::choose(seats).map(|choice| choice.index),
        Policy::WeightedRoundRobin => match &state.strides {
            Some(strides) => weighted_round_robin::choose(seats, strides).map(|seen| seen.index),
            // The rules do not contain this policy.
            None => round_robin::choose(seats).map(|choice| choice.index),
        },
        Policy::Random => random::choose(seats, rng),
        Policy::Sticky => sticky::preview(seats, &state.ids, state.sticky.as_ref(), dispatch.publisher, rng),
        Policy::HashClientId => rendezvous::choose(seats, &state.identities, dispatch.publisher),
        Policy::HashTopic => rendezvous::choose(seats, &state.identities, dispatch.topic),
        Policy::LeastInflight => least_inflight::choose(seats).map(|choice| choice.index),
        Policy::LeastResponseTime => least_response_time::choose(seats, dispatch.at).map(|choice| choice.index),
        Policy::LeastBytes => least_bytes::choose(seats).map(|choice| choice.index),
        Policy::PowerOfTwo => power_of_two::choose(seats, &view.at(dispatch.at, seats), dispatch, rng),
        Policy::Capacity => capacity::choose(seats, &view.at(dispatch.at, seats), rng),
        Policy::Custom(number) => custom::choose(table, number, &view.at(dispatch.at, seats), dispatch, rng),
    }
}

/// Updates the policy's state for a chosen slot. `is_free`: [`preview`] named the slot; otherwise another rule chose
/// it.
pub(crate) fn settle(table: Table<'_>, index: usize, is_free: bool) {
    let Table { policy, seats, state, .. } = table;
    match policy {
        Policy::Adaptive
        | Policy::ThesisScore
        | Policy::RoundRobin
        | Policy::LeastInflight
        | Policy::LeastResponseTime
        | Policy::LeastBytes
        | Policy::Custom(_) => seats.take_turn(index, seats.next_turn()),
        Policy::WeightedRoundRobin => state.strides.iter().for_each(|strides| strides.advance(index, is_free)),
        Policy::Random
        | Policy::Sticky
        | Policy::HashClientId
        | Policy::HashTopic
        | Policy::PowerOfTwo
        | Policy::Capacity => {}
    }
}

/// Books a message on a slot that was not chosen by `adaptive`, and returns the booked time.
pub(crate) fn book(seats: &Seats, index: usize, view: &View, dispatch: &Dispatch) -> u64 {
    let hot = seats.loads()[index].hot();
    let service_ns = adaptive::weigh(hot, view, dispatch.at.0).service;
    hot.book(dispatch, service_ns, view.mean_ns);
    service_ns
}

/// Chooses a slot for a message that may wait, and books the message on it. `None` if no member should have it now.
pub(crate) fn pick_late(
    table: Table<'_>,
    rules: &Rules,
    waiting: usize,
    dispatch: &Dispatch,
    rng: &mut Rng,
) -> Option<usize> {
    let seats = table.seats;
    let view = table.view.at(dispatch.at, seats);
    let waiting = (16 * waiting / seats.loads().len().max(1)) as u64;
    let has_acks = table.view.has_acks();
    let message = adaptive::late::Message { view: &view, rules, has_acks, waiting, now: dispatch.at.0 };
    loop {
        let seen = adaptive::late::choose(seats, &message, rng)?;
        if seats.loads()[seen.index].hot().try_book(dispatch, seen.service, seen.finish, view.mean_ns) {
            adaptive::end_turn(seats, seen);
            return Some(seen.index);
        }
    }
}

/// As [`pick`] by [`Policy::Adaptive`], for a message of a burst without a key of an ordered group.
pub(crate) fn pick_in(table: Table<'_>, dispatch: &Dispatch, burst: &mut Burst, rng: &mut Rng) -> Option<usize> {
    let seats = table.seats;
    let view = burst.view(table.view, seats, dispatch.at);
    for _ in 0..=RESCANS_MAX {
        let seen = adaptive::choose_in(burst, seats, &view, dispatch, rng)?;
        if seats.loads()[seen.index].hot().try_book(dispatch, seen.service, seen.finish, view.mean_ns) {
            if let Some(turn) = adaptive::end_turn(seats, seen) {
                burst.booked(seats, seen.index, turn);
            }
            return Some(seen.index);
        }
    }
    pick_adaptive(table, &view, dispatch, rng)
}

/// Chooses by the members' clocks and advances the clock of the chosen one. Chooses again if the clock has changed in between,
/// like [`choose_in_turn`].
fn pick_adaptive(table: Table<'_>, view: &View, dispatch: &Dispatch, rng: &mut Rng) -> Option<usize> {
    let seats = table.seats;
    let mut seen = adaptive::choose(seats, view, dispatch, rng)?;
    for _ in 0..RESCANS_MAX {
        if seats.loads()[seen.index].hot().try_book(dispatch, seen.service, seen.finish, view.mean_ns) {
            adaptive::end_turn(seats, seen);
            return Some(seen.index);
        }
        seen = adaptive::choose(seats, view, dispatch, rng)?;
    }
    book(seats, seen.index, view, dispatch);
    adaptive::end_turn(seats, seen);
    Some(seen.index)
}

/// Chooses a slot and takes its turn, so that two pickers with the same view choose two members.
///
/// The slower picker chooses again, with the faster one's booking in view. After [`RESCANS_MAX`] attempts it keeps its
/// last choice. With this number of concurrent pickers one message more on a good member does no harm, and the time of a pick
/// stays bounded.
fn choose_in_turn(seats: &Seats, choose: impl Fn() -> Option<Choice>) -> Option<usize> {
    let mut choice = choose()?;
    let ticket = seats.next_turn();
    for _ in 0..RESCANS_MAX {
        if seats.try_take_turn(choice.index, choice.turn, ticket) {
            return Some(choice.index);
        }
        choice = choose()?;
    }
    seats.take_turn(choice.index, ticket);
    Some(choice.index)
}

pub(crate) const RESCANS_MAX: usize = 2;

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
        let scans = Cell::new(0);
        let index = choose_in_turn(&seats, || {
            let choice = round_robin::choose(&seats);
            if scans.replace(scans.get() + 1) == 0 {
                seats.take_turn(0, seats.next_turn());
            }
            choice
        });
        assert_eq!((index, scans.get()), (Some(1), 2));
        assert_eq!((seats.turn(0), seats.turn(1)), (2, 3));
    }

    #[test]
    fn a_picker_that_always_loses_stops_after_two_rescans() {
        let seats = seats(&[0, 1]);
        let scans = Cell::new(0);
        let index = choose_in_turn(&seats, || {
            scans.set(scans.get() + 1);
            let choice = round_robin::choose(&seats)?;
            seats.take_turn(choice.index, seats.next_turn());
            Some(choice)
        });
        assert_eq!((index, scans.get()), (Some(0), 3));
    }

    #[test]
    fn pick_from_no_seats_returns_none() {
        for policy in Policy::ALL {
            let (seats, view) = (seats(&[]), GroupView::new());
            let state = PolicyState::new::<()>(&policy.into(), &[], None);
            let table = Table { policy, seats: &seats, state: &state, view: &view };
            assert_eq!(pick(table, &Dispatch::default(), &mut Rng::new(1)), None);
            assert_eq!(preview(table, &Dispatch::default(), &mut Rng::new(1)), None);
        }
    }

    #[test]
    fn a_preview_books_nothing() {
        let (seats, view) = (seats(&[0, 1]), GroupView::new());
        let state = PolicyState::new::<()>(&Policy::Random.into(), &[], None);
        let (dispatch, mut rng) = (Dispatch { at: Nanos(100), ..Dispatch::default() }, Rng::new(1));
        for policy in [Policy::RoundRobin, Policy::WeightedRoundRobin, Policy::ThesisScore, Policy::Adaptive] {
            let table = Table { policy, seats: &seats, state: &state, view: &view };
            let mut preview = || preview(table, &dispatch, &mut rng);
            assert_eq!([preview(), preview()], [Some(0); 2], "{policy}");
            assert_eq!(seats.loads().iter().map(|load| load.snapshot().sent).sum::<u64>(), 0);
            assert_eq!((seats.turn(0), seats.turn(1)), (0, 1));
        }
    }
}
