//! Strangers at the cluster port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::harness::Cluster;
use crate::ledger::Ledger;
use crate::support::{Dice, PATIENCE, seed};

#[test]
fn foreign_node_and_foreign_cluster_are_refused() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    for at in 0..2 {
        let address = cluster.nodes[at].cluster;
        let known = &cluster.nodes[1 - leader].name;
        for kind in ["link", "log", "state"] {
            let answer = hello(address, 1, "others", known, kind);
            assert!(is_refused(&answer, "belongs to the cluster"), "{answer}");
            let answer = hello(address, 1, "tests", "stranger", kind);
            assert!(is_refused(&answer, "stranger"), "{answer}");
        }
        let answer = hello(address, 99, "tests", known, "link");
        assert!(is_refused(&answer, "protocol"), "{answer}");
        let answer = hello(address, 1, "tests", known, "dance");
        assert!(is_refused(&answer, "kind"), "{answer}");
    }
    assert_eq!(cluster.wait_for_copies(), leader);
    // The directory of another cluster.
    let follower = &mut cluster.nodes[1 - leader];
    follower.kill();
    follower.change_config("name = \"tests\"", "name = \"others\"");
    follower.start();
    assert!(!follower.wait_for_exit().success());
    let said = follower.log().to_end(PATIENCE).join("\n");
    assert!(said.contains("belongs to cluster \"tests\""), "{said}");
    follower.change_config("name = \"others\"", "name = \"tests\"");
    follower.start();
    assert_eq!(cluster.wait_for_copies(), leader);
}

#[test]
fn hostile_bytes_at_the_cluster_port_do_not_disturb() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let ledger = Ledger::start(&cluster);
    let mut dice = Dice::new(seed("TENBIN_HOSTILE_SEED"), 0);
    let mut silent = Vec::new();
    for node in &cluster.nodes {
        for _ in 0..8 {
            let bytes: Vec<u8> = (0..200).map(|_| dice.within(0..256) as u8).collect();
            send(node.cluster, &bytes);
            send(node.cluster, &[b"\r\n\r\n\0\r\nQUIT\n", &bytes[..]].concat());
            send(node.cluster, &[b"{", &bytes[..]].concat());
        }
        send(node.cluster, b"{\"protocol\":1,\"cluster\":\"tests\",\"no");
        send(node.cluster, &[b"{".repeat(100_000), b"\n".to_vec()].concat());
        // A PROXY header that is longer than its content, and a relayed client that speaks no MQTT.
        send(node.cluster, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff");
        send(node.cluster, b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00garbage");
        silent.extend((0..200).map(|_| open(node.cluster)));
        silent.push(half_open(node.cluster, b"{\"protocol\":1,\"cluster\":\"tests\",\"no"));
        silent.push(half_open(node.cluster, b"\r\n\r\n\0\r\nQU"));
    }
    ledger.wait_for_more(50);
    assert_eq!(cluster.wait_for_copies(), leader);
    cluster.nodes[leader].kill();
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(20);
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    drop(silent);
    ledger.finish();
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket of ours");
    stream
}

fn half_open(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = open(address);
    stream.write_all(bytes).expect("the node listens");
    stream
}

/// Sends bytes, and reads until the node closes.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) {
    let mut stream = open(address);
    // The node may close before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let is_open = read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!is_open, "the node closes a stranger's connection");
}

/// Says hello, and returns the answer.
pub(crate) fn hello(address: SocketAddr, protocol: u32, cluster: &str, node: &str, kind: &str) -> Value {
    let mut stream = open(address);
    let hello = serde_json::json!({
        "protocol": protocol, "cluster": cluster, "node": node, "kind": kind, "epoch": 1, "version": "0",
    });
    stream.write_all(format!("{hello}\n").as_bytes()).expect("the node listens");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

fn is_refused(answer: &Value, reason: &str) -> bool {
    answer["type"] == "refused" && answer["reason"].as_str().is_some_and(|said| said.contains(reason))
}
