//! Nodes that an operator forces to lead.

use super::plant::{MS, NODES, Plant};
use crate::event::Input;
use crate::node::Node;
use crate::settings::{Agreement, Rule, Settings};

const FORCE: Input = Input::Force { has_store: true, accept_loss: true };

/// A cluster with a leader and a follower, and the third node.
fn cluster(seed: u64, without: Option<Rule>, drift: u64) -> (Plant, [usize; 3]) {
    let settings = Settings { without, ..Settings::new(Node(0), Agreement::Engine, 0) };
    let mut plant = Plant::new(seed, settings, drift);
    plant.is_lossy = false;
    assert!(plant.heals());
    plant.run(2_000 * MS);
    let record = plant.record.expect("a leader");
    let (leader, follower) = (record.leader, record.follower.expect("a follower"));
    let [leader, follower] = [leader, follower].map(|node| usize::from(node.0));
    (plant, [leader, follower, NODES - leader - follower])
}

/// Time until a node acts.
fn time_until_acts(plant: &mut Plant, n: usize) -> u64 {
    let start = plant.now;
    while !plant.may_act(n) {
        plant.run(10 * MS);
        assert_eq!(plant.violation, None);
        assert!(plant.now < start + 20_000 * MS, "{}", plant.summary());
    }
    (plant.now - start) / MS
}

#[test]
fn forced_node_leads_once_the_others_are_gone() {
    for seed in 0..100 {
        let (mut plant, [leader, follower, third]) = cluster(seed, None, 25_000);
        plant.feed(third, FORCE);
        plant.run(8_000 * MS);
        assert!(plant.may_act(leader) && !plant.may_act(third), "a leader that is heard is not gone");
        plant.kill(leader);
        plant.kill(follower);
        plant.is_loss_accepted = true;
        plant.run(3_000 * MS);
        plant.feed(third, Input::Force { has_store: false, accept_loss: true });
        plant.feed(third, Input::Force { has_store: true, accept_loss: false });
        plant.run(8_000 * MS);
        assert!(!plant.may_act(third), "an empty directory, and a loss that is not accepted");
        plant.feed(third, FORCE);
        let time = time_until_acts(&mut plant, third);
        assert!(time < 6_000, "{time} ms");
        // They are not gone: they set their directories aside, and join.
        for n in [leader, follower] {
            let old = plant.nodes[n].messages.clone();
            plant.start(n);
            plant.run(500 * MS);
            assert!(!plant.nodes[n].messages.has_all(&old), "{}", plant.summary());
        }
        assert!(plant.heals() && plant.may_act(third), "{}", plant.summary());
        assert_eq!(plant.violation, None);
    }
}

#[test]
fn killed_forced_node_is_forced_again() {
    for seed in 0..100 {
        let (mut plant, [leader, follower, third]) = cluster(seed, None, 0);
        plant.kill(leader);
        plant.kill(follower);
        plant.is_loss_accepted = true;
        plant.run(3_000 * MS);
        plant.feed(third, FORCE);
        let pause = plant.random.below(5_500 * MS);
        plant.run(pause);
        plant.kill(third);
        plant.start(third);
        plant.run(3_000 * MS);
        plant.feed(third, FORCE);
        time_until_acts(&mut plant, third);
    }
}

/// A node is forced while the others live and reach the engine, without being seen by it. Returns the broken promise.
fn forced_beside_living(seed: u64, without: Option<Rule>) -> Option<&'static str> {
    let (mut plant, [leader, follower, third]) = cluster(seed, without, 100_000);
    for other in [leader, follower] {
        (plant.cuts[third][other], plant.cuts[other][third]) = (true, true);
    }
    plant.break_later(third, leader);
    plant.run(3_000 * MS);
    plant.is_loss_accepted = true;
    plant.is_lossy = !seed.is_multiple_of(3);
    plant.feed(third, FORCE);
    plant.run(15_000 * MS);
    plant.violation
}

#[test]
fn forced_node_never_acts_beside_a_leader_with_engine() {
    for seed in 0..1_000 {
        assert_eq!(forced_beside_living(seed, None), None, "seed {seed}");
    }
}

#[test]
fn two_nodes_act_if_a_forced_node_does_not_wait() {
    let violation = (0..1_000).find_map(|seed| forced_beside_living(seed, Some(Rule::ForceWait)));
    assert_eq!(violation, Some("two nodes act"));
}
