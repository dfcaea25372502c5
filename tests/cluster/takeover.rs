//! Killed, wiped and restarted nodes.

use crate::harness::Cluster;
use crate::ledger::Ledger;

#[test]
fn c1_nothing_acknowledged_is_lost_when_leader_is_killed() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    let mut leader = cluster.wait_for_copies();
    for _ in 0..3 {
        cluster.nodes[leader].kill();
        ledger.wait_for_more(50);
        assert_eq!(cluster.wait_for_leader(), 1 - leader);
        cluster.nodes[leader].start();
        leader = cluster.wait_for_copies();
        ledger.wait_for_more(50);
    }
    // C3, C4: the ledger also judges order and QoS 2.
    ledger.finish();
}

#[test]
fn c2_wiped_follower_joins_again() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    let follower = cluster.follower(leader);
    cluster.nodes[follower].kill();
    cluster.nodes[follower].wipe();
    ledger.wait_for_more(20);
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1);
    cluster.nodes[follower].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].kill();
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn restarted_pair_goes_on() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    for node in &cluster.nodes {
        node.terminate();
    }
    for node in &mut cluster.nodes {
        assert!(node.wait_for_exit().success(), "{}", node.name);
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_for_copies();
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn killed_pair_goes_on() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_for_copies();
    ledger.wait_for_more(20);
    ledger.finish();
}
