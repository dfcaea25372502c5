//! Several processes with the name of one node: an operator has copied a configuration file.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::harness::{Cluster, attempt, finds, leads};
use crate::support::{PATIENCE, exchange, lasting, text};

const V5: ProtocolVersion = ProtocolVersion::V5;
const DOES_NOT_ACT: &str = "this process neither leads nor follows";

/// The process does not act, and says so in one line of its log, in its status and to load balancers.
fn assert_does_not_act(cluster: &Cluster, at: usize) {
    let status = cluster.wait_for_status(at, "namesake", |status| finds(status, DOES_NOT_ACT));
    assert!(finds(&status, "`node = \"node-") || finds(&status, "node \"node-"), "{status}");
    assert_eq!(status["serving"], false, "{status}");
    let node = &cluster.nodes[at];
    let ready = exchange(node.admin, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("an answer");
    assert_eq!(ready.status, 503, "{}", ready.body);
    assert!(ready.body.contains(DOES_NOT_ACT), "{}", ready.body);
    let data = node.data.to_str().expect("a readable name");
    let ready = crate::tenbin(&["cluster", "status", "--ready", "--data", data]);
    assert!(!ready.status.success() && crate::said(&ready).contains("name of this node"), "{}", crate::said(&ready));
    let lines = node.log().all().into_iter().filter(|line| line.contains(DOES_NOT_ACT)).count();
    // One of the record, and one of the other process's answer.
    assert!((1..=2).contains(&lines), "{:?}", node.log().all());
}

/// A client at the process gets no session, and no acknowledgement.
fn assert_acknowledges_nothing(cluster: &Cluster, at: usize) {
    assert!(attempt(cluster.nodes[at].address, &Connect::new(V5, text("misled"))).is_none(), "it accepts a client");
}

#[test]
fn one_of_two_processes_of_a_name_leads() {
    let Some(mut cluster) = Cluster::plan(2, "") else { return };
    let second = cluster.add_namesake(0);
    let both = [0, second];
    both.into_iter().for_each(|at| cluster.nodes[at].start());
    let leader = cluster.wait_for_leader();
    let other = second - leader;
    assert_does_not_act(&cluster, other);
    let epoch = cluster.nodes[leader].status().expect("it answers")["record"]["epoch"].clone();
    let (mut publisher, _) = cluster.connect(leader, &lasting(V5, "publisher"));
    for number in 0..100 {
        assert!(!publisher.publish("t", &format!("{number}"), QoS::AtLeastOnce).is_error());
    }
    assert_acknowledges_nothing(&cluster, other);
    let status = cluster.nodes[leader].status().expect("it answers");
    assert!(leads(&status), "{status}");
    assert_eq!(status["record"]["epoch"], epoch, "no other process has changed the record");
    // A restart of the one that led leads again, beside the other process.
    cluster.nodes[leader].kill();
    cluster.nodes[leader].start();
    cluster.wait_for_status(leader, "leader", leads);
    assert_does_not_act(&cluster, other);
}

#[test]
fn second_process_of_a_follower_replaces_it_neither_way() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let follower = cluster.follower(leader);
    let epoch = cluster.nodes[leader].status().expect("it answers")["record"]["epoch"].clone();
    let second = cluster.add_namesake(follower);
    cluster.nodes[second].start();
    assert_does_not_act(&cluster, second);

    // A process that does not look at its own address.
    let name = cluster.nodes[follower].name.clone();
    for _ in 0..5 {
        let answer = link(&cluster, leader, &name);
        assert_eq!((&answer["type"], &answer["namesake"]), (&"refused".into(), &true.into()), "{answer}");
        assert!(answer["reason"].as_str().is_some_and(|reason| reason.contains("from 127.0.0.1")), "{answer}");
    }
    let status = cluster.wait_for_status(leader, "finding", |status| finds(status, "A second process"));
    assert_eq!((&status["copies"], &status["record"]["epoch"]), (&2.into(), &epoch), "{status}");
    let lines = cluster.nodes[leader].log().all();
    let refusals = lines.iter().filter(|line| line.contains("refusing a second process")).count();
    assert!((1..=2).contains(&refusals), "{lines:?}");

    cluster.nodes[leader].kill();
    cluster.wait_for_status(follower, "takeover", leads);
    assert_does_not_act(&cluster, second);
}

#[test]
fn process_asks_its_namesake_before_it_adopts_a_record() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let second = cluster.add_namesake(leader);
    cluster.nodes[second].start();
    assert_does_not_act(&cluster, second);
    // Without its data the engine lets no node take over.
    cluster.etcd.as_mut().expect("it agrees by etcd").lose_data();
    cluster.nodes[leader].kill();
    let node = &cluster.nodes[second];
    let adopt = crate::tenbin(&["cluster", "adopt", "--data", node.data.to_str().expect("a readable name")]);
    let (name, said) = (&cluster.nodes[leader].name, crate::said(&adopt));
    assert!(!adopt.status.success() && said.contains(&format!("node {name} cannot be asked")), "{said}");
    // It is the address of this process's own node.
    let lines = node.log().all();
    assert!(!lines.iter().any(|line| line.contains("cannot ask a node for its status")), "{lines:?}");
}

/// Opens a link as another process of a node, and returns the answer.
fn link(cluster: &Cluster, leader: usize, name: &str) -> Value {
    let mut stream = TcpStream::connect(cluster.nodes[leader].cluster).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let formats = json!({ "log": 1, "state": 1, "small_files": 1, "mirror": 1 });
    let hello = json!({
        "protocol": 1, "cluster": "tests", "node": name, "kind": "link", "epoch": 0, "version": "9.0.0", "is_first": true,
        "directory": 5, "process": 5, "reads": { "oldest": formats, "newest": formats },
    });
    stream.write_all(format!("{hello}\n").as_bytes()).expect("the node listens");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn second_process_of_a_manual_leader_leads_no_cluster() {
    let mut cluster = Cluster::start_manual(1);
    let leader = cluster.wait_for_copies();
    let second = cluster.add_namesake(leader);
    cluster.nodes[second].start();
    assert_does_not_act(&cluster, second);
    let (done, said) = cluster.nodes[second].promote(&["--accept-loss"]);
    assert!(!done && said.contains("name of this node"), "{said}");
    assert_acknowledges_nothing(&cluster, second);
    assert_eq!(cluster.wait_for_copies(), leader);
}
