//! Nodes without their engine.

use tenbin_codec::{Connect, Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::harness::{Cluster, attempt, finds, misses_leader};
use crate::ledger::Ledger;
use crate::support::{at_qos, lasting, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn engine_away_stops_nothing_but_takeovers() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [leader, 1 - leader], leader);
    cluster.etcd.as_mut().expect("it agrees by etcd").kill();
    for at in 0..2 {
        cluster.wait_for_status(at, "engine away", |status| status["engine"]["error"].is_string());
    }
    ledger.wait_for_more(50);
    let status = cluster.nodes[leader].status().expect("the leader answers");
    assert_eq!((&status["copies"], &status["serving"]), (&2.into(), &true.into()));

    // Without the engine the leader cannot go on alone, since the follower could have taken over.
    cluster.nodes[1 - leader].kill();
    cluster.wait_for_status(leader, "leader that does not act", |status| {
        status["serving"] == false && finds(status, "reaches neither its follower nor the engine")
    });
    let acknowledged = ledger.acknowledged();
    assert!(attempt(cluster.nodes[leader].address, &Connect::new(V5, text("new"))).is_none());
    assert_eq!(ledger.acknowledged(), acknowledged);

    cluster.etcd.as_mut().expect("it agrees by etcd").start_again();
    ledger.wait_for_more(20);
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1 && status["serving"] == true);
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.finish();
}

#[test]
fn c8_idle_and_waiting_clients_of_a_cut_off_leader_are_ended() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(V5, "sleeper"));
    sleeper.subscribe("waits", QoS::AtLeastOnce);
    sleeper.disconnect();
    let (mut idle, _) = cluster.connect(leader, &Connect::new(V5, text("idle")));
    let (mut old, _) = cluster.connect(leader, &Connect::new(ProtocolVersion::V311, text("old")));
    let (mut waiting, _) = cluster.connect(leader, &Connect::new(V5, text("waiting")));
    cluster.etcd.as_mut().expect("it agrees by etcd").kill();
    cluster.wait_for_status(leader, "engine away", |status| status["engine"]["error"].is_string());
    cluster.nodes[1 - leader].kill();
    let publish = Publish { packet_id: PacketId::new(1), ..at_qos("waits", "1", QoS::AtLeastOnce) };
    waiting.send(&Packet::Publish(publish));
    for client in [&mut waiting, &mut idle, &mut old] {
        client.expect_end(ReasonCode::UseAnotherServer);
    }
}

#[test]
fn leader_killed_without_engine_is_replaced_once_it_returns() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [leader, 1 - leader], leader);
    cluster.etcd.as_mut().expect("it agrees by etcd").kill();
    cluster.wait_for_status(1 - leader, "engine away", |status| status["engine"]["error"].is_string());
    cluster.nodes[leader].kill();
    cluster.wait_for_status(1 - leader, "silence of the leader", misses_leader);
    cluster.wait_for_role(1 - leader, "follower");
    cluster.etcd.as_mut().expect("it agrees by etcd").start_again();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
}
