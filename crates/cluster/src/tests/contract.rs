//! Single faults, and how long they last for clients. Names begin with the promise of the contract.

use super::plant::{MS, NODES, Plant};
use crate::event::Input;
use crate::machine::Step;
use crate::node::Node;
use crate::settings::{Agreement, Settings};

/// A healthy cluster with good clocks, its leader and its follower.
pub(super) fn healthy(seed: u64) -> (Plant, usize, usize) {
    let mut plant = Plant::new(seed, Settings::new(Node(0), Agreement::Engine, 0), 0);
    plant.is_lossy = false;
    assert!(plant.heals());
    plant.run(2_000 * MS);
    let record = plant.record.expect("a leader");
    let follower = record.follower.expect("a follower");
    (plant, usize::from(record.leader.0), usize::from(follower.0))
}

fn cut_off(plant: &mut Plant, n: usize) {
    for other in (0..NODES).filter(|other| *other != n) {
        (plant.cuts[n][other], plant.cuts[other][n]) = (true, true);
    }
}

/// Time until a node acts.
fn time_until_acts(plant: &mut Plant, n: usize) -> u64 {
    let start = plant.now;
    while !plant.may_act(n) {
        plant.run(MS);
        assert_eq!(plant.violation, None);
        assert!(plant.now < start + 10_000 * MS, "{}", plant.summary());
    }
    (plant.now - start) / MS
}

fn worst(name: &str, time: impl Fn(u64) -> u64) -> u64 {
    let times: Vec<u64> = (0..200).map(time).collect();
    let worst = times.iter().copied().max().unwrap_or(0);
    tell(&format!("{name}: mean {} ms, worst {worst} ms", times.iter().sum::<u64>() / 200));
    worst
}

#[expect(clippy::print_stderr, reason = "figures of the simulation")]
fn tell(line: &str) {
    eprintln!("{line}");
}

#[test]
fn c2_the_follower_takes_over_from_a_killed_leader() {
    // The broker opens within 300 ms here, so the end of the lease decides.
    let time = worst("kill", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        plant.kill(leader);
        time_until_acts(&mut plant, follower)
    });
    assert!(time < 600, "{time} ms");
}

#[test]
fn c2_the_follower_takes_over_from_a_leader_that_is_cut_off() {
    let time = worst("cut off", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        cut_off(&mut plant, leader);
        plant.nodes[leader].is_cut_from_engine = true;
        time_until_acts(&mut plant, follower)
    });
    assert!(time < 1_500, "{time} ms");
}

#[test]
fn c2_a_leader_that_stops_hands_over_soon() {
    let time = worst("stop", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        plant.feed(leader, Input::Stop);
        time_until_acts(&mut plant, follower)
    });
    // The broker opens within 300 ms here.
    assert!(time < 400, "{time} ms");
}

/// The process of the leader ends within a time, whatever becomes of its follower.
fn ends(plant: &mut Plant, leader: usize, within: u64) {
    plant.run(within * MS);
    assert!(plant.nodes[leader].machine.is_none(), "{}", plant.summary());
    assert_eq!(plant.violation, None);
}

#[test]
fn stopped_leader_ends_although_its_follower_is_silent() {
    for seed in 0..200 {
        let (mut plant, leader, follower) = healthy(seed);
        plant.nodes[follower].is_frozen = true;
        plant.run(seed * 2 % 400 * MS);
        plant.feed(leader, Input::Stop);
        ends(&mut plant, leader, 1_600);
    }
}

#[test]
fn leader_that_goes_on_alone_ends_when_it_is_stopped() {
    for (seed, cause) in (0..100).flat_map(|seed| [(seed, Input::Switch { to: None }), (seed, Input::DiskUnusable)]) {
        let (mut plant, leader, follower) = healthy(seed);
        plant.nodes[follower].is_frozen = true;
        // Without the engine the change of the record has no end.
        plant.is_engine_up = seed % 2 == 0;
        plant.feed(leader, cause);
        plant.run(seed * 20 * MS);
        plant.feed(leader, Input::Stop);
        ends(&mut plant, leader, 1_600);
    }
}

#[test]
fn stopped_leader_ends_although_its_disk_fails() {
    for seed in 0..100 {
        let (mut plant, leader, follower) = healthy(seed);
        plant.nodes[follower].is_cut_from_engine = true;
        plant.feed(leader, Input::Stop);
        plant.run(seed % 40 * MS);
        plant.feed(leader, Input::DiskFailed);
        ends(&mut plant, leader, 100);
    }
}

#[test]
fn c2_a_switch_makes_the_follower_lead_and_the_leader_join() {
    let time = worst("switch", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        plant.feed(leader, Input::Switch { to: None });
        assert!(!plant.may_act(leader));
        let time = time_until_acts(&mut plant, follower);
        assert!(plant.heals());
        assert_eq!(plant.record.and_then(|record| record.follower), Some(Node(leader as u8)), "{}", plant.summary());
        time
    });
    assert!(time < 400, "{time} ms");
}

#[test]
fn c2_a_leader_takes_its_lead_back_if_the_follower_does_not() {
    let time = worst("switch to a killed follower", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        plant.feed(leader, Input::Switch { to: None });
        plant.run(seed % 40 * MS);
        plant.kill(follower);
        time_until_acts(&mut plant, leader)
    });
    // It looks at the follower's port each 100 ms.
    assert!(time < 1_000, "{time} ms");
    let time = worst("switch to a follower without the engine", |seed| {
        let (mut plant, leader, follower) = healthy(seed);
        plant.nodes[follower].is_cut_from_engine = true;
        plant.feed(leader, Input::Switch { to: None });
        let time = time_until_acts(&mut plant, leader);
        assert_eq!(plant.copies(), 2);
        time
    });
    assert!(time < 1_000, "{time} ms");
}

#[test]
fn c8_a_handover_without_the_engine_fails_and_the_pair_goes_on() {
    for seed in 0..100 {
        let (mut plant, leader, _) = healthy(seed);
        plant.is_engine_up = false;
        plant.feed(leader, Input::Switch { to: None });
        let time = time_until_acts(&mut plant, leader);
        assert!(time < 1_000, "{time} ms");
        plant.run(5_000 * MS);
        assert!(plant.may_act(leader), "{}", plant.summary());
        assert_eq!(plant.copies(), 2);
    }
}

#[test]
fn no_client_waits_for_a_handover_without_the_engine() {
    for (seed, cause) in (0..100).flat_map(|seed| [(seed, Input::Switch { to: None }), (seed, Input::DiskUnusable)]) {
        let (mut plant, leader, _) = healthy(seed);
        plant.is_engine_up = false;
        plant.run(3_000 * MS);
        plant.feed(leader, cause);
        assert!(plant.may_act(leader), "{}", plant.summary());
        // The leader ends nevertheless if it has to.
        plant.feed(leader, Input::Stop);
        ends(&mut plant, leader, 1_600);
    }
}

#[test]
fn c2_two_nodes_that_lose_sight_of_each_other_keep_their_leader() {
    for seed in 0..100 {
        let (mut plant, leader, follower) = healthy(seed);
        (plant.cuts[leader][follower], plant.cuts[follower][leader]) = (true, true);
        plant.run(5_000 * MS);
        assert!(plant.may_act(leader), "{}", plant.summary());
        assert_eq!(plant.record.map(|record| usize::from(record.leader.0)), Some(leader));
    }
}

#[test]
fn c5_one_node_acts_while_nodes_and_engine_are_cut_off_in_turn() {
    let (mut plant, ..) = healthy(7);
    for round in 0..60 {
        cut_off(&mut plant, round % NODES);
        plant.nodes[round % NODES].is_cut_from_engine = round % 2 == 0;
        plant.run(1_700 * MS);
        assert!((0..NODES).filter(|n| plant.may_act(*n)).count() <= 1);
        plant.cuts = Default::default();
        plant.nodes.iter_mut().for_each(|host| host.is_cut_from_engine = false);
        plant.run(3_000 * MS);
        assert_eq!(plant.violation, None);
    }
}

#[test]
fn c6_a_leader_that_was_frozen_never_acts_again_by_itself() {
    for seed in 0..100 {
        let (mut plant, leader, follower) = healthy(seed);
        plant.nodes[leader].is_frozen = true;
        plant.run(5_000 * MS);
        assert!(plant.may_act(follower), "{}", plant.summary());
        plant.thaw(leader);
        for _ in 0..500 {
            assert!(!plant.may_act(leader));
            plant.run(MS);
        }
        assert_eq!(plant.violation, None);
    }
}

#[test]
fn c8_a_leader_in_the_minority_ends_its_clients() {
    for seed in 0..100 {
        let (mut plant, leader, _) = healthy(seed);
        cut_off(&mut plant, leader);
        plant.nodes[leader].is_cut_from_engine = true;
        let step = |plant: &Plant| {
            let machine = plant.nodes[leader].machine.as_ref();
            machine.map(|machine| machine.status(plant.clock(leader)).step)
        };
        // The lease has ended.
        plant.run(410 * MS);
        assert!(!plant.may_act(leader));
        assert_eq!(step(&plant), Some(Step::Leading));
        // `dead_after`, and the time of a call to the engine and of a sync.
        plant.run(1_000 * MS);
        assert_eq!(step(&plant), Some(Step::Fenced), "{}", plant.summary());
    }
}

#[test]
fn c8_a_pair_goes_on_without_the_engine() {
    for seed in 0..100 {
        let (mut plant, leader, _) = healthy(seed);
        plant.is_engine_up = false;
        for _ in 0..1_000 {
            plant.run(10 * MS);
            assert!(plant.may_act(leader), "{}", plant.summary());
        }
        assert_eq!(plant.copies(), 2);
    }
}
