//! Manual agreement: only commands make a follower the leader.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::harness::{Cluster, finds, misses_leader};
use crate::ledger::Ledger;
use crate::support::{lasting, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn manual_agreement_takes_over_by_promote_only() {
    let mut cluster = Cluster::start_manual(2);
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [leader, 1 - leader], leader);
    let (done, said) = cluster.nodes[leader].promote(&[]);
    assert!(!done && said.contains("leads already"), "{said}");
    cluster.nodes[leader].kill();
    let status = cluster.wait_for_status(1 - leader, "silence of the leader", misses_leader);
    cluster.wait_for_status(1 - leader, "error of the other node", |status| {
        status["peers"][0]["error"].as_str().is_some_and(|error| error.contains("cannot connect"))
    });
    assert_eq!((&status["role"], &status["serving"]), (&"follower".into(), &false.into()));
    // With two copies it has everything acknowledged, so that nothing can be lost.
    let (done, said) = cluster.nodes[1 - leader].promote(&[]);
    assert!(done && said.contains("leads"), "{said}");
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    // The new leader acknowledges nothing before it has a second copy.
    cluster.wait_for_status(1 - leader, "hold", |status| finds(status, "wait for a second copy"));
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn manual_leader_is_deposed_when_it_continues() {
    let mut cluster = Cluster::start_manual(2);
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [1 - leader, 1 - leader], 1 - leader);
    cluster.nodes[leader].stop();
    let (done, said) = cluster.nodes[1 - leader].promote(&[]);
    assert!(done && said.contains("leads"), "{said}");
    cluster.nodes[leader].go_on();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    cluster.wait_for_role(leader, "follower");
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn promote_needs_accept_loss_when_the_leader_was_alone() {
    let mut cluster = Cluster::start_manual(1);
    let leader = cluster.wait_for_copies();
    let (mut reader, _) = cluster.connect(leader, &lasting(V5, "reader"));
    reader.subscribe("t", QoS::AtLeastOnce);
    reader.disconnect();
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    assert_eq!(publisher.publish("t", "in both copies", QoS::AtLeastOnce), ReasonCode::Success);
    cluster.nodes[1 - leader].kill();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1 && status["serving"] == true);
    assert_eq!(publisher.publish("t", "in one copy", QoS::AtLeastOnce), ReasonCode::Success);
    cluster.nodes[leader].kill();

    cluster.nodes[1 - leader].start();
    cluster.wait_for_status(1 - leader, "start", |status| status["role"] != "starting");
    let (done, said) = cluster.nodes[1 - leader].promote(&[]);
    assert!(!done && said.contains("--accept-loss"), "{said}");
    let (done, said) = cluster.nodes[1 - leader].promote(&["--accept-loss"]);
    assert!(done && said.contains("leads"), "{said}");
    let (mut reader, connack) = cluster.connect(1 - leader, &lasting(V5, "reader"));
    assert!(connack.session_present);
    assert_eq!(reader.receive_messages(1)[0].payload, "in both copies");

    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    // The old leader's directory has a message that no other node has.
    let aside = std::fs::read_dir(&cluster.nodes[leader].data).expect("a directory");
    let names: Vec<_> = aside.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    let aside: Vec<_> = names.iter().filter(|name| name.starts_with("aside-")).collect();
    assert_eq!(aside.len(), 1, "{names:?}");
    let aside = cluster.nodes[leader].data.join(aside[0]);
    let checked = crate::tenbin(&["store", "check", aside.to_str().expect("a readable name")]);
    assert!(checked.status.success(), "{}", crate::said(&checked));
}
