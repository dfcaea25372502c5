//! Least bytes: the member with the fewest outstanding bytes.

use crate::{load::MemberLoad, pick::Choice, policy::least, seats::Seats};

/// Returns the slot with the fewest outstanding bytes among the slots of the best availability; of equal ones, the one
/// with the oldest turn. `None` if the group is empty.
pub(crate) fn choose(seats: &Seats) -> Option<Choice> {
    least::choose(seats, |load: &MemberLoad| load.hot().outstanding().bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{acknowledged::Acknowledged, dispatch::Dispatch, nanos::Nanos};

    #[test]
    fn fewest_outstanding_bytes_are_chosen() {
        let loads: Box<[_]> = (0..3).map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        let seats = Seats::new(loads.clone(), &[0, 1, 2]);
        let give = |index: usize, bytes| {
            loads[index].hot().book(&Dispatch { bytes, is_acknowledged: true, ..Dispatch::default() }, 1, 0);
        };
        give(0, 1_000);
        (0..9).for_each(|_| give(1, 100));
        give(2, 1_000);
        assert_eq!(choose(&seats), Some(Choice { index: 1, turn: 1 }));
        give(1, 100);
        assert_eq!(choose(&seats), Some(Choice { index: 0, turn: 0 }), "equal: by turn");
        loads[2].acknowledged(&Acknowledged::one(Nanos(0), 1_000, Nanos(5)));
        assert_eq!(choose(&seats), Some(Choice { index: 2, turn: 2 }));
    }
}
