//! Nodes of a cluster without an engine whose directory is lost.

use super::plant::{MS, NODES, Plant};
use crate::event::Input;
use crate::node::Node;
use crate::settings::{Agreement, Settings};

/// A cluster without an engine, its leader and its follower.
fn manual(seed: u64) -> (Plant, usize, usize) {
    let mut plant = Plant::new(seed, Settings::new(Node(0), Agreement::Manual { first: Node(0) }, 0), 0);
    plant.is_lossy = false;
    assert!(plant.heals());
    plant.run(2_000 * MS);
    let leader = (0..NODES).find(|n| plant.may_act(*n)).expect("a leader");
    let record = plant.nodes[leader].machine.as_ref().and_then(|machine| machine.record()).expect("it leads");
    (plant, leader, usize::from(record.follower.expect("a follower").0))
}

#[test]
fn wiped_leader_never_leads_by_itself() {
    for seed in 0..50 {
        let (mut plant, leader, follower) = manual(seed);
        let copied = plant.nodes[follower].messages.clone();
        plant.kill(leader);
        plant.wipe(leader);
        for _ in 0..3 {
            plant.start(leader);
            plant.run(5_000 * MS);
            assert!(!plant.may_act(leader), "{}", plant.summary());
            assert!(plant.nodes[follower].messages.has_all(&copied), "{}", plant.summary());
            plant.kill(leader);
        }
        plant.start(leader);
        plant.run(2_000 * MS);
        plant.feed(follower, Input::Promote { accept_loss: true });
        plant.run(20_000 * MS);
        assert!(plant.may_act(follower) && plant.copies() == 2, "{}", plant.summary());
        assert_eq!(plant.violation, None);
    }
}
