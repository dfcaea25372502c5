//! Random: any candidate, with equal chances.

use crate::{load::Availability, rng::Rng, seats::Seats};

/// Draws a slot from the slots of the best availability. `None` if the group is empty.
pub(crate) fn choose(seats: &Seats, rng: &mut Rng) -> Option<usize> {
    draw(seats, rng.below(seats.loads().len()), NOBODY, rng)
}

/// Draws a slot other than `one`; `None` if there is no other.
pub(crate) fn choose_another(seats: &Seats, one: usize, rng: &mut Rng) -> Option<usize> {
    let others = seats.loads().len().checked_sub(1).filter(|&others| others > 0)?;
    let drawn = rng.below(others);
    draw(seats, drawn + usize::from(drawn >= one), one, rng)
}

/// Returns `drawn` if it is ready, which gives all ready slots equal chances. Otherwise one scan draws from the best
/// rank, keeping the k-th slot of a rank with chance 1/k.
fn draw(seats: &Seats, drawn: usize, excluded: usize, rng: &mut Rng) -> Option<usize> {
    let loads = seats.loads();
    if loads.get(drawn)?.rank() == READY {
        return Some(drawn);
    }
    let (mut best_rank, mut met, mut chosen) = (u64::MAX, 0, drawn);
    for (index, load) in loads.iter().enumerate() {
        let rank = load.rank();
        if rank > best_rank || index == excluded {
            continue;
        }
        if rank < best_rank {
            (best_rank, met) = (rank, 0);
        }
        met += 1;
        if rng.below(met) == 0 {
            chosen = index;
        }
    }
    Some(chosen)
}

/// No slot has this index.
const NOBODY: usize = usize::MAX;
const READY: u64 = Availability::Ready as u64;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{load::MemberLoad, nanos::Nanos};

    #[test]
    fn candidates_of_the_best_availability_have_equal_chances() {
        use Availability::{Full, Offline, Ready};
        let cases: [([Availability; 5], [bool; 5]); 4] = [
            ([Ready; 5], [true; 5]),
            ([Ready, Full, Ready, Offline, Ready], [true, false, true, false, true]),
            ([Offline, Full, Offline, Full, Offline], [false, true, false, true, false]),
            ([Offline; 5], [true; 5]),
        ];
        let mut rng = Rng::new(42);
        for (availabilities, candidates) in cases {
            let loads = availabilities.map(|availability| {
                let load = Arc::new(MemberLoad::new(Nanos(0)));
                load.set_availability(availability);
                load
            });
            let seats = Seats::new(Box::new(loads), &[0; 5]);
            let mut counts = [[0_usize; 5]; 2];
            for _ in 0..10_000 {
                let one = choose(&seats, &mut rng).expect("there are seats");
                let other = choose_another(&seats, one, &mut rng).expect("there are five seats");
                assert_ne!(one, other);
                counts[0][one] += 1;
                counts[1][other] += 1;
            }
            let number = candidates.iter().filter(|&&is_candidate| is_candidate).count();
            let fair = 10_000 / number;
            // With only one candidate, the other draw has none.
            for counts in &counts[..number.min(2)] {
                for (&count, is_candidate) in counts.iter().zip(candidates) {
                    let expected = if is_candidate { fair * 9 / 10..fair * 11 / 10 } else { 0..1 };
                    assert!(expected.contains(&count), "{availabilities:?}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn single_member_has_no_alternative() {
        let seats = Seats::new(Box::new([Arc::new(MemberLoad::new(Nanos(0)))]), &[0]);
        assert_eq!(choose_another(&seats, 0, &mut Rng::new(1)), None);
    }
}
