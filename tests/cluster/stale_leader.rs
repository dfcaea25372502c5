//! A leader that was stopped, and goes on when another node leads.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, PacketId, ProtocolVersion, Publish, QoS};

use crate::harness::{Cluster, leads};
use crate::ledger::{FILTER, Ledger};
use crate::support::{PATIENCE, RawClient, Silence, at_qos, encode, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn c6_stopped_leader_acknowledges_nothing_after_it_continues() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [leader, 1 - leader], 1 - leader);
    let (mut direct, _) = cluster.connect(leader, &Connect::new(V5, text("direct")));
    assert!(!direct.publish("nobody", "before", QoS::AtLeastOnce).is_error());
    let (mut stale_reader, _) = cluster.connect(leader, &Connect::new(V5, text("stale-reader")));
    stale_reader.subscribe("stale", QoS::AtLeastOnce);

    cluster.nodes[leader].stop();
    let stopped = Instant::now();
    for number in 1..=20 {
        send_publish(&mut direct, 1000 + number);
    }
    cluster.wait_for_status(1 - leader, "takeover", leads);
    let (mut late, _) = cluster.connect(1 - leader, &Connect::new(V5, text("late")));
    late.subscribe(FILTER, QoS::ExactlyOnce);
    let sent = ledger.sent();
    ledger.wait_for_more(100);
    while stopped.elapsed() < Duration::from_secs(3) {
        ledger.wait_for_more(10);
    }
    for number in 21..=40 {
        send_publish(&mut direct, 1000 + number);
    }

    assert_eq!(direct.try_receive(Duration::from_millis(1)), Err(Silence::TimedOut));
    cluster.nodes[leader].go_on();
    let packets = direct.read_to_end();
    assert!(packets.iter().all(|packet| !matches!(packet, Packet::PubAck(_))), "{packets:?}");
    let packets = stale_reader.read_to_end();
    assert!(packets.iter().all(|packet| !matches!(packet, Packet::Publish(_))), "{packets:?}");
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    cluster.wait_for_role(leader, "follower");
    ledger.wait_for_more(20);

    let mut missing: HashSet<_> = ledger.acknowledged_behind(sent).into_iter().collect();
    assert!(missing.len() >= 200);
    let until = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        assert!(Instant::now() < until, "the subscriber of the new leader lacks {missing:?}");
        let message = late.receive_message();
        missing.remove(&String::from_utf8_lossy(&message.payload).into_owned());
    }
    ledger.finish();
}

/// A follower that was stopped costs a copy, and comes back.
#[test]
fn stopped_follower_joins_again_after_it_continues() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start_at(&cluster, [leader, leader], leader);
    cluster.nodes[1 - leader].stop();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1);
    ledger.wait_for_more(50);
    cluster.nodes[1 - leader].go_on();
    assert_eq!(cluster.wait_for_copies(), leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].kill();
    ledger.finish();
}

/// Sends a QoS 1 message to a node that may not read it.
fn send_publish(client: &mut RawClient, id: u16) {
    let packet_id = PacketId::new(id);
    let publish = Publish { packet_id, ..at_qos("stale", "too late", QoS::AtLeastOnce) };
    client.try_send_bytes(&encode(&Packet::Publish(publish), V5));
}
