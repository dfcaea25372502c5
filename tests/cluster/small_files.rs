//! Small files beside the store: bans of operators, and topic ids of MQTT-SN.

use std::fs;
use std::net::{SocketAddr, UdpSocket};

use tenbin_codec::{Connect, Packet, ProtocolVersion, QoS, ReasonCode};

use crate::harness::Cluster;
use crate::sensor::{QOS_1, Sensor};
use crate::support::{RawClient, encode, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

#[test]
fn ban_of_operator_holds_at_the_next_leader() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    assert_eq!(admin(&cluster, leader, &["ban", "--client", "thief"]), (true, String::new()));
    // The command has been answered: nothing more is waited for.
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    assert_eq!(reason(&cluster, 1 - leader, "thief"), ReasonCode::Banned);
    assert_eq!(reason(&cluster, 1 - leader, "honest"), ReasonCode::Success);

    // A join copies the bans, and removes those that have ended since.
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    assert_eq!(admin(&cluster, 1 - leader, &["ban", "--remove", "1"]), (true, String::new()));
    assert_eq!(admin(&cluster, 1 - leader, &["ban", "--client", "spy"]), (true, String::new()));
    cluster.nodes[1 - leader].kill();
    assert_eq!(cluster.wait_for_leader(), leader);
    let reasons = ["thief", "spy"].map(|client| reason(&cluster, leader, client));
    assert_eq!(reasons, [ReasonCode::Success, ReasonCode::Banned]);
    cluster.nodes[1 - leader].wipe();
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    assert_eq!(reason(&cluster, 1 - leader, "spy"), ReasonCode::Banned);
}

#[test]
fn ban_without_the_second_copy_is_in_effect_and_says_so() {
    let mut cluster = Cluster::start_manual(2);
    let leader = cluster.wait_for_copies();
    cluster.nodes[1 - leader].kill();
    let (is_done, error) = admin(&cluster, leader, &["ban", "--client", "thief"]);
    assert!(!is_done && error.contains("not yet on the second copy"), "{error}");
    cluster.nodes[1 - leader].start();
    assert_eq!(cluster.wait_for_copies(), leader);
    assert_eq!(reason(&cluster, leader, "thief"), ReasonCode::Banned);
    let copied = fs::read_to_string(cluster.nodes[1 - leader].data.join("bans.json")).expect("a copy");
    assert!(copied.contains("thief"), "{copied}");
}

#[test]
fn topic_ids_of_mqtt_sn_are_known_to_the_next_leader() {
    let listener =
        "[[listeners]]\ntransport = \"mqtt-sn\"\naddress = \"SN_ADDRESS\"\nname = \"field\"\nanonymous = true\n";
    let Some(mut cluster) = Cluster::plan(2, listener) else { return };
    let gateways = [free_udp_address(), free_udp_address()];
    for (node, address) in cluster.nodes.iter_mut().zip(gateways) {
        node.change_config("SN_ADDRESS", &address.to_string());
        node.start();
    }
    let leader = cluster.wait_for_copies();
    let mut sensor = Sensor::connect(gateways[leader], "sensor", 0, 600);
    let id = sensor.register("up/1");
    wait_for_topic(&cluster, 1 - leader, "up/1");
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    let (mut backend, _) = cluster.connect(1 - leader, &Connect::new(V5, text("backend")));
    backend.subscribe("up/#", QoS::AtMostOnce);
    let mut sensor = Sensor::connect(gateways[1 - leader], "sensor", 0, 600);
    assert_eq!(sensor.publish(id, QOS_1, "again"), 0);
    assert_eq!(backend.receive_message().payload, "again");

    // Topics from before a join are in the copy, too.
    let second = sensor.register("up/2");
    cluster.nodes[leader].wipe();
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    wait_for_topic(&cluster, leader, "up/2");
    cluster.nodes[1 - leader].kill();
    assert_eq!(cluster.wait_for_leader(), leader);
    let (mut backend, _) = cluster.connect(leader, &Connect::new(V5, text("backend")));
    backend.subscribe("up/#", QoS::AtMostOnce);
    let mut sensor = Sensor::connect(gateways[leader], "sensor", 0, 600);
    for (id, payload) in [(id, "first"), (second, "second")] {
        assert_eq!(sensor.publish(id, QOS_1, payload), 0);
        assert_eq!(backend.receive_message().payload, payload);
    }
}

/// Waits until the stored topic ids at a node contain a name.
fn wait_for_topic(cluster: &Cluster, at: usize, name: &str) {
    cluster.wait("stored topic", |cluster| {
        let bytes = fs::read(cluster.nodes[at].data.join("sn/field/topic-ids")).unwrap_or_default();
        bytes.windows(name.len()).any(|part| part == name.as_bytes()).then_some(())
    });
}

fn free_udp_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

/// Runs `tenbin admin` at a node. Returns whether it has succeeded, and its errors.
fn admin(cluster: &Cluster, at: usize, arguments: &[&str]) -> (bool, String) {
    let node = &cluster.nodes[at];
    let (url, data) = (format!("http://{}", node.admin), node.data.to_str().expect("a readable name"));
    let output = crate::tenbin(&[&["admin", "--url", &url, "--data", data], arguments].concat());
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Reason Code of the CONNACK for a client at a node that leads.
fn reason(cluster: &Cluster, at: usize, client: &str) -> ReasonCode {
    let connect = Packet::Connect(Box::new(Connect::new(V5, text(client))));
    cluster.wait("CONNACK", |cluster| {
        let mut client = RawClient::try_open(cluster.nodes[at].address, V5)?;
        client.try_send_bytes(&encode(&connect, V5));
        match client.try_receive(std::time::Duration::from_secs(5)).ok()? {
            Packet::ConnAck(connack) => Some(connack.reason),
            _ => None,
        }
    })
}
