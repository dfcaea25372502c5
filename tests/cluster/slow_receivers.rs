//! Messages by reference: the follower's relay puts payloads of its copy into packets.

use std::path::PathBuf;

use bytes::Bytes;
use tenbin_codec::{Ack, Connect, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::harness::Cluster;
use crate::support::{PATIENCE, RawClient, Silence, at_qos, encode, lasting, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

/// Payload of a message: no two are alike, and its bytes are found in a file.
fn payload(number: usize, size: usize) -> Bytes {
    let mut bytes = format!("<message {number:06}>").into_bytes();
    bytes.extend((bytes.len()..size).map(|at| (at * 31 + number * 7) as u8));
    bytes.truncate(size.max(16));
    bytes.into()
}

/// Sizes around the smallest message by reference, and around the size of a piece.
const SIZES: [usize; 9] = [100, 4060, 4080, 4096, 4200, 65_530, 65_536, 70_000, 1 << 20];

fn sizes() -> impl Iterator<Item = usize> {
    // The first page of a returning session comes whole.
    [30_000; 3].into_iter().chain(SIZES).chain([5_000; 40]).chain(SIZES)
}

/// Leaves a session with messages on disk. Returns their payloads.
fn leave_messages(cluster: &Cluster, leader: usize, connect: &Connect, qos: QoS) -> Vec<Bytes> {
    let (mut client, _) = cluster.connect(leader, connect);
    client.subscribe("large/#", qos);
    client.disconnect();
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    let payloads: Vec<_> = sizes().enumerate().map(|(number, size)| payload(number, size)).collect();
    for payload in &payloads {
        let publish = Publish { payload: payload.clone(), ..at_qos("large/topic", "", qos) };
        assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
    }
    payloads
}

/// Figure of the relay of a node.
fn figure(cluster: &Cluster, at: usize, name: &str) -> u64 {
    cluster.nodes[at].status().and_then(|status| status["relay"][name].as_u64()).expect("a relay")
}

fn receive_all(client: &mut RawClient, payloads: &[Bytes]) {
    for (number, payload) in payloads.iter().enumerate() {
        let message = client.receive_message();
        assert!(message.payload == payload, "message {number} of {} bytes differs", payload.len());
    }
    client.expect_nothing_waiting();
}

#[test]
fn messages_by_reference_are_whole_and_in_order() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let mut before = 0;
    for version in [V5, ProtocolVersion::V311] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let connect = lasting(version, &format!("reader-{version}-{}", qos.bits()));
            let payloads = leave_messages(&cluster, leader, &connect, qos);
            cluster.wait_for_role(1 - leader, "follower");
            let (mut client, connack) = cluster.connect(1 - leader, &connect);
            assert!(connack.session_present);
            receive_all(&mut client, &payloads);
            let references = figure(&cluster, 1 - leader, "references");
            assert!(references >= before + 50, "{references} after {before}");
            before = references;
            // The session's own leader sends everything whole.
            client.disconnect();
        }
    }
    assert_eq!(figure(&cluster, 1 - leader, "references_failed"), 0);
    assert_eq!(cluster.wait_for_copies(), leader);
}

/// Receives a part of the messages, and acknowledges some of them.
fn receive_part(cluster: &Cluster, at: usize, connect: &Connect, payloads: &[Bytes]) -> (RawClient, usize) {
    cluster.wait_for_role(at, "follower");
    let (mut client, connack) = cluster.connect(at, connect);
    assert!(connack.session_present);
    let acknowledged = 20;
    for payload in &payloads[..acknowledged] {
        assert!(client.receive_message().payload == payload);
    }
    for payload in &payloads[acknowledged..acknowledged + 5] {
        assert!(client.receive_publish().payload == payload);
    }
    assert!(figure(cluster, at, "references") > 0);
    (client, acknowledged)
}

/// Receives the messages that are left, of which some were sent before.
fn receive_rest(client: &mut RawClient, payloads: &[Bytes]) {
    let resent = loop {
        match client.receive() {
            Packet::Publish(publish) => break publish,
            // Of a message that the other node has not seen completed.
            Packet::PubRel(ack) => client.send(&Packet::PubComp(ack)),
            other => panic!("{other:?} instead of PUBLISH"),
        }
    };
    assert!(resent.dup && resent.payload == payloads[0], "{} bytes", resent.payload.len());
    client.acknowledge(&resent);
    receive_all(client, &payloads[1..]);
}

#[test]
fn loss_of_the_leader_during_references_loses_nothing() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let connect = lasting(V5, "reader");
    let payloads = leave_messages(&cluster, leader, &connect, QoS::ExactlyOnce);
    let (mut client, acknowledged) = receive_part(&cluster, 1 - leader, &connect, &payloads);
    cluster.nodes[leader].kill();
    while client.try_receive(PATIENCE).is_ok() {}
    let (mut client, connack) = cluster.connect(1 - leader, &connect);
    assert!(connack.session_present);
    receive_rest(&mut client, &payloads[acknowledged..]);
}

#[test]
fn client_goes_on_at_the_leader_after_the_loss_of_the_follower() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let connect = lasting(ProtocolVersion::V311, &format!("reader-{}", qos.bits()));
        let payloads = leave_messages(&cluster, leader, &connect, qos);
        let (mut client, acknowledged) = receive_part(&cluster, 1 - leader, &connect, &payloads);
        cluster.nodes[1 - leader].kill();
        while client.try_receive(PATIENCE).is_ok() {}
        let (mut client, connack) = cluster.connect(leader, &connect);
        assert!(connack.session_present);
        receive_rest(&mut client, &payloads[acknowledged..]);
        cluster.nodes[1 - leader].start();
        assert_eq!(cluster.wait_for_copies(), leader);
    }
}

#[test]
fn damaged_message_of_the_copy_never_reaches_a_client() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let connect = lasting(V5, "reader");
    let payloads = leave_messages(&cluster, leader, &connect, QoS::AtLeastOnce);
    // One of 5,000 bytes, behind the first page.
    let damaged = 30;
    flip_payload(&cluster, 1 - leader, &payloads[damaged]);
    cluster.wait_for_role(1 - leader, "follower");
    let (mut client, _) = cluster.connect(1 - leader, &connect);
    let mut received = 0;
    let end = loop {
        match client.try_receive(PATIENCE) {
            Ok(Packet::Publish(publish)) => {
                assert!(publish.payload == payloads[received], "message {received} differs");
                let puback = Packet::PubAck(Ack::new(publish.packet_id.expect("QoS 1"), ReasonCode::Success));
                client.try_send_bytes(&encode(&puback, V5));
                received += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(silence) => break silence,
        }
    };
    // The end may overtake messages that were not read yet.
    assert!(end == Silence::Closed && received <= damaged, "{end:?} after {received}");
    assert_eq!(figure(&cluster, 1 - leader, "references_failed"), 1);
    let says = "its message is not in this node's copy";
    assert!(cluster.nodes[1 - leader].log().count(says, 1, PATIENCE) >= 1);
    // The leader sends it whole, through the same node.
    let (mut client, connack) = cluster.connect(1 - leader, &connect);
    assert!(connack.session_present);
    let mut next = received;
    while next < payloads.len() {
        let publish = client.receive_message();
        // Messages whose acknowledgements were lost come again.
        next = payloads[..=next].iter().rposition(|payload| *payload == publish.payload).expect("a known payload") + 1;
    }
    assert_eq!(figure(&cluster, 1 - leader, "references_failed"), 1);
}

#[test]
fn slow_receiver_is_asked_to_the_follower_and_misses_nothing() {
    let Some(cluster) = Cluster::start_with(2, "move_slow_receivers = true\n") else { return };
    let leader = cluster.wait_for_copies();
    let connect = lasting(V5, "slow");
    let (mut client, _) = cluster.connect(leader, &connect);
    client.subscribe("large/#", QoS::AtLeastOnce);
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    let mut payloads = Vec::new();
    let is_asked = |line: &String| line.contains("asking a slow receiver to the follower");
    while !cluster.nodes[leader].log().all().iter().any(is_asked) {
        assert!(payloads.len() < 1_000, "the receiver is not found slow");
        let payload = payload(payloads.len(), 100_000);
        let publish = Publish { payload: payload.clone(), ..at_qos("large/topic", "", QoS::AtLeastOnce) };
        assert_eq!(publisher.publish_with(publish), ReasonCode::Success);
        payloads.push(payload);
    }
    let mut received = 0;
    let disconnect = loop {
        match client.receive() {
            Packet::Publish(publish) => {
                assert!(publish.payload == payloads[received] && !publish.dup, "message {received}");
                client.acknowledge(&publish);
                received += 1;
            }
            Packet::Disconnect(disconnect) => break disconnect,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(disconnect.reason, ReasonCode::UseAnotherServer);
    cluster.wait_for_role(1 - leader, "follower");
    let server = disconnect.properties.and_then(|properties| properties.server_reference).expect("a Server Reference");
    assert_eq!(server.as_str(), cluster.nodes[1 - leader].address.to_string());
    let (mut client, connack) = cluster.connect(1 - leader, &connect);
    assert!(connack.session_present && received < payloads.len(), "{received}");
    for (number, payload) in payloads.iter().enumerate().skip(received) {
        let message = client.receive_message();
        assert!(message.payload == payload && !message.dup, "message {number}");
    }
    client.expect_nothing_waiting();
    assert!(figure(&cluster, 1 - leader, "references") > 0);
}

/// Changes a byte of a payload in the copy of a node.
fn flip_payload(cluster: &Cluster, at: usize, payload: &[u8]) {
    let spool = cluster.nodes[at].data.join("spool");
    let segments: Vec<PathBuf> = std::fs::read_dir(&spool)
        .expect("a spool")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    let mut found = 0;
    for path in segments {
        let mut bytes = std::fs::read(&path).expect("a segment");
        if let Some(place) = bytes.windows(16).position(|window| window == &payload[..16]) {
            use std::os::unix::fs::FileExt as _;
            bytes[place + 4000] ^= 1;
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a segment");
            file.write_all_at(&bytes[place + 4000..=place + 4000], place as u64 + 4000).expect("it is ours");
            found += 1;
        }
    }
    assert_eq!(found, 1, "one copy of the message");
}
