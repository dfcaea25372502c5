//! Directories of standalone brokers and of copies.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::harness::Cluster;
use crate::ledger::Ledger;
use crate::support::{BrokerProcess, PATIENCE, lasting, retained, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn standalone_directory_becomes_a_cluster() {
    let Some(mut cluster) = Cluster::plan(2, "") else { return };
    let data = cluster.nodes[0].data.to_str().expect("a readable name").to_owned();
    let mut broker = BrokerProcess::start(&["--data", &data]);
    let mut reader = broker.connect(lasting(V5, "reader"));
    reader.subscribe("t", QoS::ExactlyOnce);
    reader.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..100 {
        assert_eq!(publisher.publish("t", &format!("{number}"), QoS::ExactlyOnce), ReasonCode::Success);
    }
    publisher.publish_with(retained("kept", "yes"));
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());

    cluster.nodes[0].start();
    assert_eq!(cluster.wait_for_leader(), 0);
    cluster.nodes[1].start();
    assert_eq!(cluster.wait_for_copies(), 0);
    cluster.nodes[0].kill();
    let (mut reader, connack) = cluster.connect(1, &lasting(V5, "reader"));
    assert!(connack.session_present);
    let messages = reader.receive_messages(100);
    let numbers: Vec<_> = messages.iter().map(|message| String::from_utf8_lossy(&message.payload)).collect();
    assert_eq!(numbers, (0..100).map(|number| format!("{number}")).collect::<Vec<_>>());
    let (mut other, _) = cluster.connect(1, &Connect::new(V5, text("other")));
    other.subscribe("kept", QoS::AtLeastOnce);
    assert_eq!(other.receive_message().payload, "yes");
}

#[test]
fn store_check_accepts_the_copy() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("ledger/#", QoS::ExactlyOnce);
    sleeper.disconnect();
    let mut ledger = Ledger::start(&cluster);
    ledger.wait_for_more(200);
    // One copy ends in order while messages flow, the other one by a kill.
    let follower = &mut cluster.nodes[1 - leader];
    follower.terminate();
    assert!(follower.wait_for_exit().success());
    check(&cluster, 1 - leader);
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(100);
    cluster.nodes[1 - leader].kill();
    check(&cluster, 1 - leader);
    ledger.stop_publishing();
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.finish();
    // Nothing changes any more: both have the same messages.
    cluster.nodes[leader].kill();
    cluster.nodes[1 - leader].kill();
    let dumps = [0, 1].map(|at| {
        check(&cluster, at);
        store(&cluster, at, "dump")
    });
    assert!(dumps[0].contains("sleeper"), "{}", dumps[0]);
}

/// Checks the store of a node that does not run.
fn check(cluster: &Cluster, at: usize) {
    let said = store(cluster, at, "check");
    assert!(said.contains("fine: "), "{said}");
}

fn store(cluster: &Cluster, at: usize, command: &str) -> String {
    let output = crate::tenbin(&["store", command, cluster.nodes[at].data.to_str().expect("a readable name")]);
    let said = crate::said(&output);
    assert!(output.status.success(), "store {command}: {said}");
    said
}
