//! The data that policies scan: loads and turns of a group's members, in flat arrays without the values.

use std::sync::Arc;

use crate::{
    load::MemberLoad,
    sync::{AtomicU64, Relaxed},
};

/// One slot per member, in join order: a pointer to the member's load, and the member's turn.
///
/// A turn is a sequence number that a member gets when it joins and with every booking *in this group*. Of equal
/// members, the one with the oldest turn is chosen. That gives round robin independent of the clock.
#[derive(Debug)]
pub(crate) struct Seats {
    loads: Box<[Arc<MemberLoad>]>,
    /// The members' turns, followed by the next turn to assign.
    turns: Box<[TurnLine]>,
}

/// Eight turns on a separate cache line, which only pickers of this group write.
///
/// Packed, since every picker of the group reads all of them. The next turn to assign is among them, so that pickers of
/// a small group pass one line between processors instead of two.
///
/// Written by pickers ([`Seats::try_take_turn`], [`Seats::take_turn`], [`Seats::set_turn`]), read by pickers and by
/// writers that copy it into the next snapshot. `Relaxed`: the comparison in `compare_exchange` needs only the
/// modification order of one turn, and no other data is published through it. The next turn only has to be unique.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct TurnLine([AtomicU64; TURNS_PER_LINE]);

impl Seats {
    /// Creates slots for loads with these turns, in this order.
    pub(crate) fn new(loads: Box<[Arc<MemberLoad>]>, turns: &[u64]) -> Self {
        let lines = (0..=turns.len() / TURNS_PER_LINE).map(|_| TurnLine::default());
        let seats = Self { loads, turns: lines.collect() };
        seats.go_on_from(turns.iter().max().map_or(0, |turn| turn + 1));
        turns.iter().enumerate().for_each(|(index, &turn)| seats.turn_at(index).store(turn, Relaxed));
        seats
    }

    /// Raises the next turn, so that no earlier turn is assigned again.
    pub(crate) fn go_on_from(&self, next: u64) {
        self.next().fetch_max(next, Relaxed);
    }

    pub(crate) fn loads(&self) -> &[Arc<MemberLoad>] {
        &self.loads
    }

    /// Loads and turns side by side, for scans that need every turn.
    pub(crate) fn by_line(&self) -> impl Iterator<Item = (&[Arc<MemberLoad>], &[AtomicU64; TURNS_PER_LINE])> {
        self.loads.chunks(TURNS_PER_LINE).zip(self.turns.iter().map(|line| &line.0))
    }

    pub(crate) fn turn(&self, index: usize) -> u64 {
        self.turn_at(index).load(Relaxed)
    }

    /// Assigns the next turn.
    pub(crate) fn next_turn(&self) -> u64 {
        self.next().fetch_add(1, Relaxed)
    }

    /// Returns the next turn without assigning it.
    pub(crate) fn peek_turn(&self) -> u64 {
        self.next().load(Relaxed)
    }

    /// Sets the turn to `ticket` if it still is `seen`; fails if another picker was faster.
    pub(crate) fn try_take_turn(&self, index: usize, seen: u64, ticket: u64) -> bool {
        self.turn_at(index).compare_exchange(seen, ticket, Relaxed, Relaxed).is_ok()
    }

    /// Sets the turn to `ticket`, unless it is later already.
    pub(crate) fn take_turn(&self, index: usize, ticket: u64) {
        self.turn_at(index).fetch_max(ticket, Relaxed);
    }

    /// Assigns the next turn, and returns it. If two pickers choose this slot at the same time, the earlier turn may remain.
    pub(crate) fn set_turn(&self, index: usize) -> u64 {
        let ticket = self.next_turn();
        self.turn_at(index).store(ticket, Relaxed);
        ticket
    }

    fn turn_at(&self, index: usize) -> &AtomicU64 {
        &self.turns[index / TURNS_PER_LINE].0[index % TURNS_PER_LINE]
    }

    fn next(&self) -> &AtomicU64 {
        self.turn_at(self.loads.len())
    }
}

#[cfg(all(test, not(loom)))]
use crate::group_view::{GroupView, View};

#[cfg(all(test, not(loom)))]
impl Seats {
    /// Creates slots of members with unknown speed.
    pub(crate) fn of_strangers(len: usize) -> Self {
        let load = |_| Arc::new(MemberLoad::new(crate::nanos::Nanos(0)));
        Self::new((0..len).map(load).collect(), &(0..len as u64).collect::<Vec<_>>())
    }

    /// Counts how often each slot is chosen in `draws` draws, without bookings.
    pub(crate) fn drawn(
        &self,
        draws: usize,
        mut choose: impl FnMut(&View, &mut crate::rng::Rng) -> Option<usize>,
    ) -> Vec<usize> {
        let (view, mut rng) = (GroupView::new().at(crate::nanos::Nanos(0), self), crate::rng::Rng::new(3));
        let mut counts = vec![0; self.loads.len()];
        (0..draws).for_each(|_| counts[choose(&view, &mut rng).expect("there are seats")] += 1);
        counts
    }
}

pub(crate) const TURNS_PER_LINE: usize = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::nanos::Nanos;

    #[test]
    fn a_line_of_turns_is_a_cache_line() {
        assert_eq!((size_of::<TurnLine>(), align_of::<TurnLine>()), (64, 64));
    }

    #[test]
    fn turns_are_beside_their_loads() {
        for len in [0, 1, 7, 8, 9, 20] {
            let loads: Box<[_]> = (0..len).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
            let turns: Vec<u64> = (100..100 + len).collect();
            let seats = Seats::new(loads.clone(), &turns);
            let read = (0..seats.loads().len()).map(|index| seats.turn(index));
            assert!(read.eq(turns.iter().copied()));
            let pairs = seats.by_line().flat_map(|(loads, turns)| loads.iter().zip(turns));
            let expected = loads.iter().zip(&turns);
            assert!(
                pairs.zip(expected).all(|(is, should)| Arc::ptr_eq(is.0, should.0) && is.1.load(Relaxed) == *should.1)
            );
        }
    }

    #[test]
    fn a_turn_can_be_taken_once() {
        let seats = Seats::of_strangers(1);
        seats.take_turn(0, 4);
        assert!(seats.try_take_turn(0, 4, 9));
        assert!(!seats.try_take_turn(0, 4, 10));
        seats.take_turn(0, 8);
        assert_eq!(seats.turn(0), 9);
    }
}
