//! Rendezvous hashing, for `hash_client_id` and `hash_topic`.
//!
//! Each key has an order of preference among the members, which depends only on the key and their identities.
//!
//! A key goes to its first preference. A member that leaves gives only its own keys to their next preferences, all over
//! the group. If it joins again, under any id, it gets the same keys back. The same holds while a member is full or
//! away.

use std::hint::select_unpredictable;

use crate::{rng::mix, seats::Seats};

/// Spreads a member's identity over all of `u64`, as [`choose`] requires.
pub(crate) fn spread(identity: u64) -> u64 {
    mix(identity)
}

/// Returns the first preference of `key` among the slots of the best availability. `None` if the group is empty.
///
/// `identities`: the identities of the slots, in their order, each [`spread`].
pub(crate) fn choose(seats: &Seats, identities: &[u64], key: u64) -> Option<usize> {
    let (mut best, mut best_index) = (u64::MAX, None);
    for (index, (load, identity)) in seats.loads().iter().zip(identities).enumerate() {
        // Availability above, below it a hash of key and member; smaller is better. Two members are equal for one key
        // in 2^62.
        let preference = load.rank() << RANK_SHIFT | mix(key ^ identity) >> (64 - RANK_SHIFT);
        let is_better = preference < best;
        best = select_unpredictable(is_better, preference, best);
        best_index = select_unpredictable(is_better, Some(index), best_index);
    }
    best_index
}

const RANK_SHIFT: u32 = 62;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        load::{Availability, MemberLoad},
        nanos::Nanos,
        rng::Rng,
    };

    const KEYS: u64 = 10_000;

    /// Returns the identity of the member for each key.
    fn owners(identities: &[u64]) -> Vec<u64> {
        let (seats, spread) = fresh(identities);
        let mut keys = Rng::new(1);
        (0..KEYS).map(|_| identities[choose(&seats, &spread, keys.next_u64()).expect("there are seats")]).collect()
    }

    fn fresh(identities: &[u64]) -> (Seats, Vec<u64>) {
        let loads = identities.iter().map(|_| Arc::new(MemberLoad::new(Nanos(0)))).collect();
        (Seats::new(loads, &vec![0; identities.len()]), identities.iter().copied().map(spread).collect())
    }

    #[test]
    fn keys_are_spread_evenly() {
        // Poorly spread identities, as a worst case.
        let identities: Vec<u64> = (0..10).collect();
        let owners = owners(&identities);
        for identity in identities {
            let owned = owners.iter().filter(|&&owner| owner == identity).count();
            assert!((850..1_150).contains(&owned), "{identity} has {owned} of {KEYS}");
        }
    }

    #[test]
    fn the_best_availability_comes_first() {
        let (seats, identities) = fresh(&[7, 8, 9]);
        let key = 4_711;
        let first = choose(&seats, &identities, key).expect("there are seats");
        seats.loads()[first].set_availability(Availability::Full);
        let second = choose(&seats, &identities, key).expect("there are seats");
        assert_ne!(first, second);
        let others = (0..3).filter(|&index| index != first);
        others.for_each(|index| seats.loads()[index].set_availability(Availability::Offline));
        assert_eq!(choose(&seats, &identities, key), Some(first));
        seats.loads()[first].set_availability(Availability::Offline);
        assert_eq!(choose(&seats, &identities, key), Some(first));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn only_the_keys_of_a_leaving_member_move(identities in prop::collection::hash_set(any::<u64>(), 2..12)) {
            let all: Vec<u64> = identities.into_iter().collect();
            let before = owners(&all);
            let (&leaver, rest) = all.split_last().expect("two at least");
            for (was, is) in before.iter().zip(owners(rest)) {
                prop_assert!(*was == is || *was == leaver);
            }
            // The keys come back, wherever the member now is in join order.
            let rejoined: Vec<u64> = [leaver].into_iter().chain(rest.iter().copied()).collect();
            prop_assert_eq!(before, owners(&rejoined));
        }
    }
}
