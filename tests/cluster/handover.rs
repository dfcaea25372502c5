//! Orderly handovers: `tenbin cluster switch`, SIGTERM of the leader, and upgrades.

use std::time::Instant;

use tenbin_codec::{Connect, Packet, ProtocolVersion, ReasonCode};

use crate::harness::{Cluster, leads};
use crate::ledger::Ledger;
use crate::support::{PATIENCE, text};

/// Tells how long publishers have waited.
#[expect(clippy::print_stderr, reason = "figures of handovers")]
fn tell(what: &str, ledger: &Ledger) {
    eprintln!("{what}: longest wait for an acknowledgement {:?}", ledger.longest_wait());
}

#[test]
fn switch_makes_the_follower_lead_and_loses_nothing() {
    let Some(cluster) = Cluster::start(3) else { return };
    let ledger = Ledger::start(&cluster);
    let mut leader = cluster.wait_for_copies();
    for round in 0..4 {
        let follower = cluster.follower(leader);
        let name = cluster.nodes[follower].name.clone();
        ledger.longest_wait();
        let (done, said) = match round {
            // Any node takes the command.
            0 => cluster.nodes[leader].switch(&[]),
            1 => cluster.nodes[follower].switch(&["--to", &name]),
            2 => cluster.nodes[3 - leader - follower].switch(&[]),
            _ => {
                let address = cluster.nodes[3 - leader - follower].cluster.to_string();
                let output = crate::tenbin(&["cluster", "switch", "--address", &address, "--to", &name]);
                (output.status.success(), crate::said(&output))
            }
        };
        assert!(done && said.contains(&format!("{name} leads")), "{said}");
        ledger.wait_for_more(50);
        tell("switch", &ledger);
        assert_eq!(cluster.wait_for_copies(), follower);
        cluster.nodes[follower].log().wait_for(&["Taking over", "hands over"], PATIENCE);
        // The old leader is the follower, and no other node.
        assert_eq!(cluster.follower(follower), leader);
        leader = follower;
    }
    ledger.finish();
}

#[test]
fn clients_are_sent_to_the_listener_of_the_same_name() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut client, _) = cluster.connect(leader, &Connect::new(ProtocolVersion::V5, text("client")));
    let (done, said) = cluster.nodes[leader].switch(&[]);
    assert!(done, "{said}");
    let Packet::Disconnect(disconnect) = client.receive() else { panic!("no DISCONNECT") };
    assert_eq!(disconnect.reason, ReasonCode::UseAnotherServer);
    let server = disconnect.properties.and_then(|properties| properties.server_reference).expect("a Server Reference");
    // Both nodes are on one machine, with other ports.
    assert_eq!(server.as_str(), cluster.nodes[1 - leader].address.to_string());
}

#[test]
fn terminated_leader_hands_over_and_ends() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    let mut leader = cluster.wait_for_copies();
    for _ in 0..4 {
        ledger.longest_wait();
        cluster.nodes[leader].terminate();
        assert!(cluster.nodes[leader].wait_for_exit().success());
        ledger.wait_for_more(50);
        tell("SIGTERM", &ledger);
        assert_eq!(cluster.wait_for_leader(), 1 - leader);
        cluster.nodes[1 - leader].log().wait_for(&["Taking over", "hands over"], PATIENCE);
        cluster.nodes[leader].start();
        leader = cluster.wait_for_copies();
    }
    ledger.finish();
}

#[test]
fn c10_upgrade_by_two_restarts_loses_nothing() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    // The follower first, as docs/cluster.md tells.
    cluster.nodes[1 - leader].terminate();
    assert!(cluster.nodes[1 - leader].wait_for_exit().success());
    ledger.wait_for_more(20);
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].terminate();
    assert!(cluster.nodes[leader].wait_for_exit().success());
    ledger.wait_for_more(20);
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn switch_is_refused_with_the_reason() {
    let Some(mut cluster) = Cluster::start(3) else { return };
    let leader = cluster.wait_for_copies();
    let follower = cluster.follower(leader);
    let spare = 3 - leader - follower;
    let [leads_now, follows, only_relays] = [leader, follower, spare].map(|at| cluster.nodes[at].name.clone());
    for (to, reason) in [
        (leads_now.as_str(), "leads already".to_owned()),
        (only_relays.as_str(), format!("only the follower can lead next, and that is node {follows}")),
        ("nobody", "node \"nobody\" is not in `nodes` of [cluster]".to_owned()),
    ] {
        let (done, said) = cluster.nodes[spare].switch(&["--to", to]);
        assert!(!done && said.contains(&reason), "{said}");
    }
    for at in [follower, spare] {
        cluster.nodes[at].kill();
    }
    // The leader may try the spare node as a follower, until it knows that this node has gone, too.
    let begin = Instant::now();
    loop {
        let (done, said) = cluster.nodes[leader].switch(&[]);
        assert!(!done, "{said}");
        if said.contains("there is no follower") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{said}");
    }
    cluster.wait_for_status(leader, "only copy", |status| leads(status) && status["copies"] == 1);
    let output = crate::tenbin(&["cluster", "switch", "--data", "/nonexistent"]);
    assert!(!output.status.success() && crate::said(&output).contains("no node runs with the data directory"));
    assert!(leads(&cluster.nodes[leader].status().expect("it serves")));
}

#[test]
fn switch_to_a_stopped_follower_keeps_the_leader() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start_at(&cluster, [0, 1], 0);
    let leader = cluster.wait_for_copies();
    cluster.nodes[1 - leader].stop();
    let (done, said) = cluster.nodes[leader].switch(&[]);
    assert!(!done && (said.contains("does not answer") || said.contains("as before")), "{said}");
    ledger.wait_for_more(20);
    cluster.nodes[1 - leader].go_on();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn promotion_beside_a_living_leader_is_refused() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let epoch = |cluster: &Cluster| cluster.nodes[leader].status().expect("it answers")["record"]["epoch"].clone();
    let before = epoch(&cluster);
    for arguments in [&[][..], &["--accept-loss"]] {
        let (done, said) = cluster.nodes[1 - leader].promote(arguments);
        assert!(!done && said.contains("tenbin cluster switch"), "{said}");
    }
    // The follower goes on to follow.
    cluster.wait_for_role(1 - leader, "follower");
    assert_eq!((cluster.wait_for_copies(), epoch(&cluster)), (leader, before));
}
