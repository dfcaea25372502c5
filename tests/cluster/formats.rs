//! Nodes of other versions: a peer that tells other formats in its hello, beside real nodes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Cluster, finds};
use crate::support::PATIENCE;

/// The formats of a version, whose log has this version.
fn formats(log: u32) -> Value {
    json!({ "log": log, "state": 1, "small_files": 1, "mirror": 1 })
}

/// A node that reads these versions of the log, and has a link to the leader.
struct Peer {
    lines: Arc<Mutex<Vec<Value>>>,
    _stream: TcpStream,
}

impl Peer {
    fn link(leader: SocketAddr, name: &str, [oldest, newest]: [u32; 2]) -> Self {
        let (answer, stream) = hello(leader, name, "link", [oldest, newest]);
        assert_eq!(answer["type"], "welcome", "{answer}");
        assert_eq!(answer["formats"], formats(1));
        let lines = Arc::<Mutex<Vec<Value>>>::default();
        let (heard, from) = (Arc::clone(&lines), stream.try_clone().expect("a socket of ours"));
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { return };
                heard.lock().expect("no panic").push(serde_json::from_str(&line).expect("JSON"));
            }
        });
        Self { lines, _stream: stream }
    }

    /// Whether a beacon has had a record with this joiner.
    fn has_heard_of_joiner(&self, name: &str) -> bool {
        self.lines.lock().expect("no panic").iter().any(|line| line["record"]["joiner"] == name)
    }

    fn has_heard(&self) -> bool {
        !self.lines.lock().expect("no panic").is_empty()
    }
}

/// Says hello as a node, and returns the answer.
fn hello(leader: SocketAddr, name: &str, kind: &str, [oldest, newest]: [u32; 2]) -> (Value, TcpStream) {
    let mut stream = TcpStream::connect(leader).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let hello = json!({
        "protocol": 1, "cluster": "tests", "node": name, "kind": kind, "epoch": 0, "version": "9.0.0",
        "reads": { "oldest": formats(oldest), "newest": formats(newest) },
    });
    stream.write_all(format!("{hello}\n").as_bytes()).expect("the node listens");
    let mut line = String::new();
    BufReader::new(stream.try_clone().expect("a socket of ours")).read_line(&mut line).expect("an answer");
    (serde_json::from_str(&line).expect("JSON"), stream)
}

#[test]
fn node_that_cannot_read_the_leader_stays_a_spare() {
    let Some(mut cluster) = Cluster::plan(3, "") else { return };
    cluster.nodes[0].start();
    cluster.wait_for_leader();
    let (leader, name) = (cluster.nodes[0].cluster, cluster.nodes[1].name.clone());
    let peer = Peer::link(leader, &name, [2, 9]);
    let status = cluster.wait_for_status(0, "finding", |status| finds(status, "Node node-2 gets no copy"));
    assert!(finds(&status, "version 1 of the format \"log\", and it reads 2 to 9"), "{status}");
    let (answer, _) = hello(leader, &name, "log", [2, 9]);
    assert!(answer["reason"].as_str().is_some_and(|reason| reason.contains("gets no copy")), "{answer}");
    // Without the formats the leader would copy to this node at once, and to the other one after ten seconds.
    cluster.wait("beacon", |_| peer.has_heard().then_some(()));
    cluster.nodes[2].start();
    assert_eq!(cluster.wait_for_copies(), 0);
    assert_eq!(cluster.follower(0), 2);
    cluster.wait("beacon of the join", |_| peer.has_heard_of_joiner("node-3").then_some(()));
    assert!(!peer.has_heard_of_joiner(&name));
}

#[test]
fn newer_node_joins_an_older_leader() {
    let Some(mut cluster) = Cluster::plan(2, "") else { return };
    cluster.nodes[0].start();
    cluster.wait_for_leader();
    let peer = Peer::link(cluster.nodes[0].cluster, &cluster.nodes[1].name, [1, 9]);
    cluster.wait("beacon of the join", |_| peer.has_heard_of_joiner("node-2").then_some(()));
}

#[test]
fn standby_of_a_newer_leader_says_that_it_gets_no_copy() {
    let mut cluster = Cluster::plan_manual(1);
    let leader = TcpListener::bind(cluster.nodes[0].cluster).expect("a free port");
    std::thread::spawn(move || {
        for stream in leader.incoming().flatten() {
            std::thread::spawn(move || lead(stream));
        }
    });
    cluster.nodes[1].start();
    let status = cluster.wait_for_status(1, "finding", |status| finds(status, "This node gets no copy"));
    assert!(finds(&status, "the leader writes version 9 of the format \"log\", and it reads 1 to 1"), "{status}");
    assert_eq!(status["role"], "spare");
}

/// Answers a node as a leader whose log has version 9.
fn lead(mut stream: TcpStream) {
    let mut from = BufReader::new(stream.try_clone().expect("a socket of ours"));
    let mut line = String::new();
    if from.read_line(&mut line).is_err() {
        return;
    }
    let Ok(hello) = serde_json::from_str::<Value>(&line) else { return };
    let record = json!({ "epoch": 5, "leader": "node-1", "nonce": 1 });
    let answer = match hello["kind"].as_str() {
        Some("status") => json!({ "type": "status", "status": { "record": record } }),
        _ => json!({ "type": "welcome", "node": "node-1", "version": "9", "record": record, "formats": formats(9) }),
    };
    // The node may have left. Up to its end the link stays open.
    let _ = stream.write_all(format!("{answer}\n").as_bytes());
    let _ = from.lines().count();
}
