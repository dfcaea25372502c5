//! Sticky: a publisher stays with its first, random member until the member is gone.

use std::sync::Arc;

use crate::{
    load::Availability,
    pick::RESCANS_MAX,
    policy::random,
    rng::Rng,
    seats::Seats,
    standing::MemberId,
    sync::{AtomicU64, Relaxed},
};

/// The members of publishers, in a table of fixed size: publishers whose hashes begin alike share a slot.
///
/// Each slot holds a member's id + 1; 0 = no member yet. Pickers that assign a member write it (compare and exchange).
/// `Relaxed`: an id is independent of other data, and the snapshot shows whether it is a member.
#[derive(Clone, Debug)]
pub(crate) struct Sticky(Arc<[AtomicU64]>);

/// The result of a look-up in the table.
enum Outcome {
    /// This member; the table does not change.
    Stay(usize),
    /// This member from now on.
    Move(usize),
}

impl Sticky {
    pub(crate) fn new() -> Self {
        Self((0..1 << SLOT_BITS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns a copy of the table.
    pub(crate) fn copied(&self) -> Self {
        Self(self.0.iter().map(|slot| AtomicU64::new(slot.load(Relaxed))).collect())
    }

    fn slot(&self, publisher: u64) -> &AtomicU64 {
        &self.0[(publisher >> (u64::BITS - SLOT_BITS)) as usize]
    }
}

/// Returns the publisher's member, after assigning one if it has none. `None` if the group is empty. `ids`: those of
/// the slots, in their order.
pub(crate) fn pick(seats: &Seats, ids: &[MemberId], sticky: &Sticky, publisher: u64, rng: &mut Rng) -> Option<usize> {
    let slot = sticky.slot(publisher);
    let mut held = slot.load(Relaxed);
    for _ in 0..RESCANS_MAX {
        match look(seats, ids, held, rng)? {
            Outcome::Stay(index) => return Some(index),
            Outcome::Move(index) => match slot.compare_exchange(held, word(ids[index]), Relaxed, Relaxed) {
                Ok(_) => return Some(index),
                // Another picker for this publisher was faster.
                Err(given) => held = given,
            },
        }
    }
    look(seats, ids, held, rng).map(Outcome::index)
}

/// Returns the member that [`pick`] would choose, without assigning it. Without a table: any member.
pub(crate) fn preview(
    seats: &Seats,
    ids: &[MemberId],
    sticky: Option<&Sticky>,
    publisher: u64,
    rng: &mut Rng,
) -> Option<usize> {
    let held = sticky.map_or(NOBODY, |sticky| sticky.slot(publisher).load(Relaxed));
    look(seats, ids, held, rng).map(Outcome::index)
}

fn look(seats: &Seats, ids: &[MemberId], held: u64, rng: &mut Rng) -> Option<Outcome> {
    let rank_of = |index: usize| seats.loads()[index].rank();
    let held = (held != NOBODY).then(|| ids.iter().position(|&id| word(id) == held)).flatten();
    let Some(held) = held else { return random::choose(seats, rng).map(Outcome::Move) };
    let rank = rank_of(held);
    if rank == Availability::Ready as u64 {
        return Some(Outcome::Stay(held));
    }
    let drawn = random::choose(seats, rng)?;
    Some(match rank_of(drawn) < rank {
        // A member is full only for a moment: another helps out, and the publisher comes back.
        true if rank == Availability::Full as u64 => Outcome::Stay(drawn),
        true => Outcome::Move(drawn),
        false => Outcome::Stay(held),
    })
}

impl Outcome {
    fn index(self) -> usize {
        match self {
            Self::Stay(index) | Self::Move(index) => index,
        }
    }
}

fn word(id: MemberId) -> u64 {
    id.0.wrapping_add(1)
}

const NOBODY: u64 = 0;
/// 4096 slots; few in loom's models, which visit each.
const SLOT_BITS: u32 = if cfg!(loom) { 1 } else { 12 };

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{load::MemberLoad, nanos::Nanos};

    struct Stage {
        seats: Seats,
        ids: Vec<MemberId>,
        sticky: Sticky,
        rng: Rng,
    }

    impl Stage {
        fn new(ids: &[u64]) -> Self {
            let loads = ids.iter().map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
            let seats = Seats::new(loads, &vec![0; ids.len()]);
            let ids = ids.iter().copied().map(MemberId).collect();
            Self { seats, ids, sticky: Sticky::new(), rng: Rng::new(5) }
        }

        fn pick(&mut self, publisher: u64) -> usize {
            pick(&self.seats, &self.ids, &self.sticky, publisher, &mut self.rng).expect("there are seats")
        }

        fn set(&self, index: usize, availability: Availability) {
            self.seats.loads()[index].set_availability(availability);
        }
    }

    #[test]
    fn publishers_are_spread_and_stay() {
        let mut stage = Stage::new(&[0, 1, 2, u64::MAX - 1]);
        let mut publishers = Rng::new(2);
        let publishers: Vec<u64> = (0..400).map(|_| publishers.next_u64()).collect();
        let first: Vec<usize> = publishers.iter().map(|&publisher| stage.pick(publisher)).collect();
        for index in 0..4 {
            let count = first.iter().filter(|&&chosen| chosen == index).count();
            assert!((70..130).contains(&count), "{index} has {count} of 400");
        }
        for _ in 0..3 {
            assert!(publishers.iter().zip(&first).all(|(&publisher, &chosen)| stage.pick(publisher) == chosen));
        }
    }

    #[test]
    fn publisher_returns_to_full_member_but_not_to_offline_one() {
        let mut stage = Stage::new(&[10, 11, 12]);
        let first = stage.pick(7);
        stage.set(first, Availability::Full);
        assert!((0..20).all(|_| stage.pick(7) != first));
        stage.set(first, Availability::Ready);
        assert!((0..20).all(|_| stage.pick(7) == first));
        stage.set(first, Availability::Offline);
        let second = stage.pick(7);
        assert_ne!(second, first);
        stage.set(first, Availability::Ready);
        assert!((0..20).all(|_| stage.pick(7) == second));
    }

    #[test]
    fn publisher_stays_if_no_member_is_more_available() {
        let mut stage = Stage::new(&[10, 11, 12]);
        let first = stage.pick(7);
        for availability in [Availability::Full, Availability::Offline] {
            (0..3).for_each(|index| stage.set(index, availability));
            assert!((0..20).all(|_| stage.pick(7) == first), "{availability:?}");
        }
    }

    #[test]
    fn sticky_member_is_found_by_id_and_replaced_once_gone() {
        let mut stage = Stage::new(&[10, 11, 12]);
        let first = stage.pick(7);
        stage.ids.rotate_left(1);
        let position = (first + 2) % 3;
        assert_eq!(stage.pick(7), position);
        stage.ids[position] = MemberId(99);
        let second = stage.pick(7);
        assert!((0..20).all(|_| stage.pick(7) == second));
    }
}
