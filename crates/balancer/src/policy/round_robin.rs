//! Round robin: the member chosen longest ago in this group.

use std::hint::select_unpredictable;

use crate::{pick::Choice, seats::Seats, sync::Relaxed};

/// Returns the slot with the oldest turn among the slots of the best availability. `None` if the group is empty.
///
/// Compares turns, not the instants of the last sends: those are shared with the client's other groups, and equal for
/// all messages of a batch.
pub(crate) fn choose(seats: &Seats) -> Option<Choice> {
    // Turns are contiguous, and the first in turn is nearly always ready. Then no other load needs to be read.
    let first = oldest(seats)?;
    if seats.loads()[first.index].rank() == READY { Some(first) } else { choose_by_rank(seats) }
}

/// Returns the slot with the oldest turn, ready or not.
fn oldest(seats: &Seats) -> Option<Choice> {
    let mut oldest: Option<Choice> = None;
    let mut index = 0;
    for (loads, turns) in seats.by_line() {
        for turn in &turns[..loads.len()] {
            let turn = turn.load(Relaxed);
            let is_older = oldest.is_none_or(|oldest| turn < oldest.turn);
            oldest = select_unpredictable(is_older, Some(Choice { index, turn }), oldest);
            index += 1;
        }
    }
    oldest
}

#[cold]
fn choose_by_rank(seats: &Seats) -> Option<Choice> {
    // Availability above, turn below; smaller is better. 2^62 turns last for 146 years at 10^9 a second.
    let mut best_key = u64::MAX;
    let mut best_index = None;
    let mut index = 0;
    for (loads, turns) in seats.by_line() {
        for (load, turn) in loads.iter().zip(turns) {
            let key = load.rank() << RANK_SHIFT | turn.load(Relaxed);
            if key < best_key {
                best_key = key;
                best_index = Some(index);
            }
            index += 1;
        }
    }
    best_index.map(|index| Choice { index, turn: best_key & TURN_MASK })
}

const READY: u64 = 0;
const RANK_SHIFT: u32 = 62;
const TURN_MASK: u64 = (1 << RANK_SHIFT) - 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        load::{Availability, MemberLoad},
        nanos::Nanos,
    };

    #[test]
    fn the_oldest_turn_of_the_best_availability_is_chosen() {
        let turns: Vec<u64> = (0..20).map(|index| 1000 + (index * 7) % 20).collect();
        let loads: Vec<_> = turns.iter().map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        let seats = Seats::new(loads.iter().map(Arc::clone).collect(), &turns);
        assert_eq!(choose(&seats), Some(Choice { index: 0, turn: 1000 }));
        loads[0].set_availability(Availability::Full);
        assert_eq!(choose(&seats), Some(Choice { index: 3, turn: 1001 }));
        loads.iter().for_each(|load| load.set_availability(Availability::Offline));
        loads[5].set_availability(Availability::Full);
        assert_eq!(choose(&seats), Some(Choice { index: 5, turn: 1015 }));
        loads[5].set_availability(Availability::Offline);
        assert_eq!(choose(&seats), Some(Choice { index: 0, turn: 1000 }));
    }
}
