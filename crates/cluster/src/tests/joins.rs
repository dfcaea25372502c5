//! Joins of nodes that cannot hold a copy.

use super::contract::healthy;
use super::plant::{MS, NODES, Plant, node};

/// A leader that is alone with a node whose disk is full, for 10 minutes; and the third node, which is off.
fn alone_with_full_disk(seed: u64) -> (Plant, [usize; 3]) {
    let (mut plant, leader, follower) = healthy(seed);
    let third = NODES - leader - follower;
    plant.kill(third);
    plant.kill(follower);
    plant.start(follower);
    plant.nodes[follower].is_full = true;
    plant.run(600_000 * MS);
    assert!(plant.may_act(leader), "{}", plant.summary());
    assert_eq!((plant.copies(), plant.violation), (1, None));
    (plant, [leader, follower, third])
}

/// Time until there are two copies, in milliseconds.
fn time_until_copied(plant: &mut Plant, to: usize) -> u64 {
    let start = plant.now;
    while plant.copies() < 2 {
        plant.run(50 * MS);
        assert!(plant.now < start + 120_000 * MS, "{}", plant.summary());
    }
    assert_eq!(plant.record.and_then(|record| record.follower), Some(node(to)));
    (plant.now - start) / MS
}

#[test]
fn node_that_cannot_hold_a_copy_uses_few_epochs() {
    for seed in 0..20 {
        let (plant, ..) = alone_with_full_disk(seed);
        let epoch = plant.record.map_or(0, |record| record.epoch);
        assert!((20..60).contains(&epoch), "epoch {epoch}");
    }
}

#[test]
fn node_with_room_again_joins_within_a_minute() {
    for seed in 0..20 {
        let (mut plant, [_, full, _]) = alone_with_full_disk(seed);
        plant.nodes[full].is_full = false;
        let time = time_until_copied(&mut plant, full);
        assert!(time < 63_000, "{time} ms");
    }
}

#[test]
fn restarted_node_joins_without_a_pause() {
    for seed in 0..20 {
        let (mut plant, [_, full, _]) = alone_with_full_disk(seed);
        plant.kill(full);
        plant.start(full);
        let time = time_until_copied(&mut plant, full);
        assert!(time < 5_000, "{time} ms");
    }
}

#[test]
fn other_node_joins_beside_one_that_cannot() {
    for seed in 0..20 {
        let (mut plant, [_, _, third]) = alone_with_full_disk(seed);
        plant.start(third);
        let time = time_until_copied(&mut plant, third);
        assert!(time < 5_000, "{time} ms");
    }
}
