//! The common scan of the policies by least cost.

use std::hint::select_unpredictable;

use crate::{load::MemberLoad, pick::Choice, seats::Seats, sync::Relaxed};

/// Returns the slot of the least cost among the slots of the best availability; of equal ones, the one with the oldest
/// turn. `None` if the group is empty. Costs are limited to 2^62.
#[inline(always)]
pub(crate) fn choose(seats: &Seats, cost: impl Fn(&MemberLoad) -> u64) -> Option<Choice> {
    // No member has this merit: costs stay below their maximum.
    let mut best = u128::MAX;
    let mut best_index = 0;
    let mut index = 0;
    for (loads, turns) in seats.by_line() {
        for (load, turn) in loads.iter().zip(turns) {
            let cost = load.rank() << COST_BITS | cost(load).min(COST_MAX);
            let merit = u128::from(cost) << 64 | u128::from(turn.load(Relaxed));
            let is_better = merit < best;
            best = select_unpredictable(is_better, merit, best);
            best_index = select_unpredictable(is_better, index, best_index);
            index += 1;
        }
    }
    (best != u128::MAX).then_some(Choice { index: best_index, turn: best as u64 })
}

const COST_BITS: u32 = 62;
const COST_MAX: u64 = (1 << COST_BITS) - 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{load::Availability, nanos::Nanos};

    #[test]
    fn availability_then_cost_then_turn() {
        let loads: Box<[_]> = (0..10).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        let seats = Seats::new(loads.clone(), &[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        let cost_of = |costs: [u64; 10]| {
            let loads = &loads;
            move |load: &MemberLoad| {
                let index = loads.iter().position(|one| std::ptr::eq(&**one, load)).expect("one of them");
                costs[index]
            }
        };
        let chosen = |costs| choose(&seats, cost_of(costs)).expect("there are seats");
        assert_eq!(chosen([5; 10]), Choice { index: 9, turn: 0 });
        assert_eq!(chosen([5, 5, 5, 3, 5, 5, 4, 5, 3, 9]), Choice { index: 8, turn: 1 });
        loads[8].set_availability(Availability::Full);
        assert_eq!(chosen([5, 5, 5, 3, 5, 5, 4, 5, 3, 9]), Choice { index: 3, turn: 6 });
        assert_eq!(chosen([u64::MAX; 10]).index, 9, "no cost is worse than another availability");
        loads.iter().for_each(|load| load.set_availability(Availability::Offline));
        assert_eq!(chosen([u64::MAX; 10]).index, 9);
    }
}
