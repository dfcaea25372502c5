//! Sessions, Wills and share groups, at any node and across takeovers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode, Will};

use crate::harness::{Cluster, attempt};
use crate::support::{ClientStream, RawClient, encode, exchange, lasting, retained, share, text, topic};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn c5_session_moves_to_new_leader_and_exists_once() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut client, connack) = cluster.connect(leader, &lasting(V5, "moving"));
    assert!(!connack.session_present);
    client.subscribe("news", QoS::ExactlyOnce);
    client.disconnect();
    let (mut publisher, _) = cluster.connect(1 - leader, &Connect::new(V5, text("publisher")));
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(publisher.publish("news", "queued", qos), ReasonCode::Success);
    }
    cluster.nodes[leader].kill();
    let (mut moved, connack) = cluster.connect(1 - leader, &lasting(V5, "moving"));
    assert!(connack.session_present);
    let messages = moved.receive_messages(2);
    assert!(messages.iter().all(|message| message.payload == "queued"));
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    // The same Client Identifier at another node ends the first connection.
    let (mut through_relay, connack) = cluster.connect(leader, &lasting(V5, "moving"));
    assert!(connack.session_present);
    moved.expect_end(ReasonCode::SessionTakenOver);
    let (_direct, connack) = cluster.connect(1 - leader, &lasting(V5, "moving"));
    assert!(connack.session_present);
    through_relay.expect_end(ReasonCode::SessionTakenOver);
}

#[test]
fn c7_will_is_published_after_client_and_leader_are_lost() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let (mut heir, _) = cluster.connect(leader, &lasting(V5, "heir"));
    heir.subscribe("wills", QoS::ExactlyOnce);
    heir.disconnect();
    let will = Will {
        topic: topic("wills"),
        payload: Bytes::from_static(b"gone"),
        qos: QoS::ExactlyOnce,
        retain: false,
        delay_interval: None,
        properties: None,
    };
    let connect = Connect { will: Some(will), ..Connect::new(V5, text("mortal")) };
    let (mortal, _) = cluster.connect(1 - leader, &connect);
    cluster.nodes[leader].kill();
    drop(mortal);
    let (mut heir, connack) = cluster.connect(1 - leader, &lasting(V5, "heir"));
    assert!(connack.session_present);
    assert_eq!(heir.receive_message().payload, "gone");
    heir.expect_nothing_waiting();
}

#[test]
fn c9_any_node_serves_any_client() {
    let Some(cluster) = Cluster::start(3) else { return };
    let mut members: Vec<_> = (0..3).map(|at| client_at(&cluster, at, &format!("member-{at}"))).collect();
    let mut readers: Vec<_> = (0..3).map(|at| client_at(&cluster, at, &format!("reader-{at}"))).collect();
    let mut publishers: Vec<_> = (0..3).map(|at| client_at(&cluster, at, &format!("publisher-{at}"))).collect();
    for member in &mut members {
        member.subscribe(&share("g", "t"), QoS::AtLeastOnce);
    }
    for reader in &mut readers {
        reader.subscribe("t", QoS::ExactlyOnce);
    }
    let mut sent = Vec::new();
    for round in 0..20 {
        for (at, publisher) in publishers.iter_mut().enumerate() {
            let payload = format!("{round} of {at}");
            assert_eq!(publisher.publish("t", &payload, QoS::ExactlyOnce), ReasonCode::Success);
            sent.push(payload);
        }
    }
    for reader in &mut readers {
        let received: Vec<_> = (0..sent.len()).map(|_| payload_of(reader)).collect();
        assert_eq!(received, sent);
        reader.expect_nothing_waiting();
    }
    let shares: Vec<_> = members.iter_mut().map(RawClient::drain_payloads).collect();
    assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
    let mut shared = shares.concat();
    shared.sort();
    sent.sort();
    assert_eq!(shared, sent);
}

#[test]
fn c9_relayed_client_has_its_own_address_at_the_leader() {
    let tables = "[[ban]]\nnetwork = \"127.0.0.3\"\n";
    let Some(cluster) = Cluster::start_with(2, tables) else { return };
    let leader = cluster.wait_for_copies();
    let admin = cluster.nodes[leader].admin;
    for (at, connected) in [(leader, "direct"), (1 - leader, "relayed")] {
        let (_client, reason) = connect_from([127, 0, 0, 2], &cluster, at, connected);
        assert_eq!(reason, ReasonCode::Success);
        let request = format!("GET /api/v1/clients/{connected} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        let answer = exchange(admin, request.as_bytes()).expect("an answer");
        assert!(answer.body.contains("127.0.0.2:"), "{}", answer.body);
        let client: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_ne!(client["state"], "offline");
        let (_client, reason) = connect_from([127, 0, 0, 3], &cluster, at, "banned");
        assert_eq!(reason, ReasonCode::Banned);
    }
}

#[test]
fn connecting_clients_do_not_disturb_the_copy() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let epoch =
        |cluster: &Cluster| cluster.nodes[leader].status().expect("the leader answers")["record"]["epoch"].clone();
    let before = epoch(&cluster);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let address = cluster.nodes[1 - leader].address;
        assert!(attempt(address, &Connect::new(V5, text("short"))).is_some());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(epoch(&cluster), before, "the follower was lost meanwhile");
}

#[test]
fn retained_messages_and_offline_sessions_survive_two_takeovers() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let mut leader = cluster.wait_for_copies();
    let (mut sleeper, _) = cluster.connect(leader, &lasting(ProtocolVersion::V311, "sleeper"));
    sleeper.subscribe("dreams/#", QoS::AtLeastOnce);
    sleeper.disconnect();
    for round in 0..2 {
        let (mut publisher, _) = cluster.reach(0, &Connect::new(V5, text("publisher")));
        assert!(!publisher.publish_with(retained("kept", &format!("{round}"))).is_error());
        assert_eq!(publisher.publish("dreams/1", &format!("{round}"), QoS::AtLeastOnce), ReasonCode::Success);
        cluster.nodes[leader].kill();
        assert_eq!(cluster.wait_for_leader(), 1 - leader);
        cluster.nodes[leader].start();
        leader = cluster.wait_for_copies();
    }
    let (mut reader, _) = cluster.connect(leader, &Connect::new(V5, text("reader")));
    reader.subscribe("kept", QoS::AtLeastOnce);
    let kept = reader.receive_message();
    assert_eq!((&kept.payload[..], kept.retain), (&b"1"[..], true));
    let (mut sleeper, connack) = cluster.connect(1 - leader, &lasting(ProtocolVersion::V311, "sleeper"));
    assert!(connack.session_present);
    let dreams = sleeper.receive_messages(2);
    assert_eq!(dreams.iter().map(|dream| &dream.payload[..]).collect::<Vec<_>>(), [b"0", b"1"]);
}

fn client_at(cluster: &Cluster, at: usize, client_id: &str) -> RawClient {
    cluster.connect(at, &Connect::new(V5, text(client_id))).0
}

fn payload_of(client: &mut RawClient) -> String {
    String::from_utf8_lossy(&client.receive_message().payload).into_owned()
}

/// Connects from another loopback address. Returns the Reason Code of CONNACK.
fn connect_from(source: [u8; 4], cluster: &Cluster, at: usize, client_id: &str) -> (RawClient, ReasonCode) {
    let source = IpAddr::V4(Ipv4Addr::from(source));
    let mut client = RawClient::on(ClientStream::tcp_from(source, cluster.nodes[at].address), V5);
    let connect = Connect::new(V5, text(client_id));
    client.send_bytes(&encode(&Packet::Connect(Box::new(connect)), V5));
    match client.receive() {
        Packet::ConnAck(connack) => (client, connack.reason),
        other => panic!("{other:?} instead of CONNACK"),
    }
}
