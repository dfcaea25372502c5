//! Capacity: any candidate, with chances in proportion to speed.

use crate::{group_view::View, hot::Hot, rng::Rng, seats::Seats};

/// Draws a slot from the slots of the best availability. `None` if the group is empty.
///
/// One scan: each candidate replaces the one kept so far, with the probability of its speed divided by the sum of all
/// speeds up to its own.
pub(crate) fn choose(seats: &Seats, view: &View, rng: &mut Rng) -> Option<usize> {
    let (mut best_rank, mut sum, mut chosen) = (u64::MAX, 0.0, None);
    for (index, load) in seats.loads().iter().enumerate() {
        let (rank, speed) = (load.rank(), speed(load.hot(), view));
        if rank > best_rank {
            continue;
        }
        if rank < best_rank {
            (best_rank, sum) = (rank, 0.0);
        }
        sum += speed;
        if fraction(rng) * sum < speed {
            chosen = Some(index);
        }
    }
    chosen
}

/// Messages per nanosecond. An unknown speed counts as the group's mean. Claims of more than sixteen times the mean
/// speed count as that.
fn speed(hot: &Hot, view: &View) -> f64 {
    let processing_ns = match hot.speed().processing_ns() {
        0 => view.mean_ns,
        processing_ns => processing_ns.max(view.floor_ns()),
    };
    1.0 / processing_ns.max(1) as f64
}

/// Returns a random number from 0 to 1, without 1.
fn fraction(rng: &mut Rng) -> f64 {
    const BITS: u32 = 53;
    (rng.next_u64() >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{load::Availability, nanos::Nanos, report::LoadReport};

    fn seats(processing_us: &[u64]) -> Seats {
        let seats = Seats::of_strangers(processing_us.len());
        for (load, &us) in seats.loads().iter().zip(processing_us) {
            load.report(&LoadReport { processing_time: Duration::from_micros(us), ..LoadReport::default() }, Nanos(0));
        }
        seats
    }

    fn assert_shares(seats: &Seats, expected: &[f64]) {
        let counts = seats.drawn(20_000, |view, rng| choose(seats, view, rng));
        let sum: f64 = expected.iter().sum();
        for (count, share) in counts.iter().zip(expected) {
            let expected = share / sum * 20_000.0;
            assert!((*count as f64 - expected).abs() <= expected * 0.08, "{counts:?}");
        }
    }

    #[test]
    fn capacity_chances_are_proportional_to_speed() {
        assert_shares(&seats(&[1_000, 2_000, 4_000]), &[4.0, 2.0, 1.0]);
    }

    #[test]
    fn unknown_speeds_count_as_the_mean() {
        // The geometric mean of 1 and 4 ms.
        assert_shares(&seats(&[1_000, 0, 4_000]), &[4.0, 2.0, 1.0]);
        assert_shares(&seats(&[0, 0, 0, 0]), &[1.0; 4]);
    }

    #[test]
    fn the_best_availability_comes_first() {
        let seats = seats(&[1_000, 1_000, 2_000, 500]);
        seats.loads()[0].set_availability(Availability::Offline);
        seats.loads()[3].set_availability(Availability::Full);
        assert_shares(&seats, &[0.0, 2.0, 1.0, 0.0]);
        [1, 2].iter().for_each(|&index| seats.loads()[index].set_availability(Availability::Offline));
        assert_shares(&seats, &[0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn claimed_speed_is_bounded() {
        let seats = seats(&[1_000, 1_000, 1_000, 1_000, 1]);
        let liar = seats.drawn(10_000, |view, rng| choose(&seats, view, rng))[4];
        assert!(liar < 9_500, "{liar} of 10,000");
    }
}
