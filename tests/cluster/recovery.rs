//! Backups, and clusters that an operator repairs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use crate::harness::{Cluster, finds, misses_leader};
use crate::support::{BrokerProcess, lasting, retained, text};

const V5: ProtocolVersion = ProtocolVersion::V5;

/// Runs `tenbin cluster` with the data directory of a node. Returns whether it has succeeded, and its output.
fn command(cluster: &Cluster, at: usize, arguments: &[&str]) -> (bool, String) {
    let data = cluster.nodes[at].data.to_str().expect("a readable name");
    let output = crate::tenbin(&[&["cluster"], arguments, &["--data", data]].concat());
    (output.status.success(), crate::said(&output))
}

/// Lets a session wait for messages of `filter`.
fn sleeper(cluster: &Cluster, at: usize, filter: &str) {
    let (mut sleeper, _) = cluster.connect(at, &lasting(V5, "sleeper"));
    sleeper.subscribe(filter, QoS::AtLeastOnce);
    sleeper.disconnect();
}

#[test]
fn backup_under_load_has_everything_acknowledged_before() {
    let Some(cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    sleeper(&cluster, leader, "load");
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    publisher.publish_with(retained("kept", "yes"));
    let (acknowledged, is_over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let (count, stop) = (Arc::clone(&acknowledged), Arc::clone(&is_over));
    let load = std::thread::spawn(move || {
        for number in 1.. {
            if stop.load(Ordering::Acquire) {
                return;
            }
            assert_eq!(publisher.publish("load", &format!("{number}"), QoS::AtLeastOnce), ReasonCode::Success);
            count.store(number, Ordering::Release);
        }
    });
    cluster.wait("load", |_| (acknowledged.load(Ordering::Acquire) >= 300).then_some(()));
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a readable name").to_owned();
    let (file, data) = (path("file"), path("restored/data"));
    cluster.wait_for_role(1 - leader, "follower");
    // The file of the follower replaces the leader's, and is restored.
    let mut before = 0;
    for at in [leader, 1 - leader] {
        before = acknowledged.load(Ordering::Acquire);
        let (done, said) = command(&cluster, at, &["backup", &file]);
        assert!(done && said.contains("cluster tests"), "{said}");
    }
    let after = acknowledged.load(Ordering::Acquire);
    is_over.store(true, Ordering::Release);
    load.join().expect("the publisher has not panicked");
    assert_eq!(fs::metadata(&file).expect("a backup").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1, "no other file is left");
    assert_eq!(cluster.wait_for_copies(), leader);

    let restored = crate::tenbin(&["cluster", "restore", &file, "--data", &data]);
    assert!(restored.status.success(), "{}", crate::said(&restored));
    let checked = crate::tenbin(&["store", "check", &data]);
    assert!(checked.status.success(), "{}", crate::said(&checked));
    let broker = BrokerProcess::start(&["--data", &data]);
    let mut reader = broker.connect(lasting(V5, "sleeper"));
    for number in 1..=before {
        // More may follow, up to the moment of the backup.
        let message = reader.receive_message();
        assert_eq!(message.payload, number.to_string(), "acknowledged: {before} before the backup, {after} after it");
    }
    let mut other = broker.v5("other");
    other.subscribe("kept", QoS::AtLeastOnce);
    assert_eq!(other.receive_message().payload, "yes");

    let again = crate::tenbin(&["cluster", "restore", &file, "--data", &data]);
    assert!(!again.status.success() && crate::said(&again).contains("not empty"), "{}", crate::said(&again));
    let mut bytes = fs::read(&file).expect("a backup");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).expect("ours");
    let refused = crate::tenbin(&["cluster", "restore", &file, "--data", &path("other")]);
    assert!(!refused.status.success() && crate::said(&refused).contains(&file), "{}", crate::said(&refused));
    assert!(!directory.path().join("other").exists());
}

#[test]
fn restored_node_joins_its_old_cluster_by_force_alone() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    sleeper(&cluster, leader, "t");
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    assert_eq!(publisher.publish("t", "old", QoS::AtLeastOnce), ReasonCode::Success);
    let file = cluster.nodes[leader].data.with_file_name("backup");
    let file = file.to_str().expect("a readable name");
    let (done, said) = command(&cluster, leader, &["backup", file]);
    assert!(done, "{said}");
    assert_eq!(publisher.publish("t", "new", QoS::AtLeastOnce), ReasonCode::Success);
    // A restored directory in the place of both nodes: the record names them, and none of them leads with it.
    let other = 1 - leader;
    // So the leader writes no record without the follower.
    cluster.nodes[leader].stop();
    cluster.nodes[other].kill();
    cluster.nodes[leader].kill();
    for node in &mut cluster.nodes {
        node.wipe();
        let data = node.data.to_str().expect("a readable name");
        let restored = crate::tenbin(&["cluster", "restore", file, "--data", data]);
        assert!(restored.status.success(), "{}", crate::said(&restored));
    }
    cluster.nodes[other].start();
    cluster.wait_for_status(other, "silence of the leader", |status| {
        status["record"]["epoch"].is_u64() && status["role"] != "leader" && misses_leader(status)
    });
    let (done, said) = command(&cluster, other, &["force"]);
    assert!(!done && said.contains("--accept-loss"), "{said}");
    let (done, said) = command(&cluster, other, &["force", "--accept-loss"]);
    assert!(done && said.contains("leads"), "{said}");
    assert_eq!(cluster.wait_for_leader(), other);
    let (mut reader, connack) = cluster.connect(other, &lasting(V5, "sleeper"));
    assert!(connack.session_present);
    assert_eq!(reader.receive_message().payload, "old");
    // The other one has a store of no cluster: it is set aside.
    cluster.nodes[leader].start();
    assert_eq!(cluster.wait_for_copies(), other);
    cluster.wait_for_status(leader, "old store", |status| finds(status, "An old store was set aside"));
    let (done, said) = command(&cluster, leader, &["force", "--accept-loss"]);
    assert!(!done && said.contains("is not gone"), "{said}");
}

#[test]
fn forced_node_leads_and_old_directories_are_set_aside() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let other = 1 - leader;
    sleeper(&cluster, leader, "t");
    let (mut publisher, _) = cluster.connect(leader, &Connect::new(V5, text("publisher")));
    assert_eq!(publisher.publish("t", "in both copies", QoS::AtLeastOnce), ReasonCode::Success);
    cluster.nodes[other].kill();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1 && status["serving"] == true);
    assert_eq!(publisher.publish("t", "in one copy", QoS::AtLeastOnce), ReasonCode::Success);
    cluster.nodes[leader].kill();
    cluster.nodes[other].start();
    let status = cluster.wait_for_status(other, "silence of the leader", misses_leader);
    assert_eq!(status["role"], "spare");
    let (done, said) = command(&cluster, other, &["force", "--accept-loss"]);
    assert!(done && said.contains("leads"), "{said}");
    let (mut reader, _) = cluster.connect(other, &lasting(V5, "sleeper"));
    assert_eq!(reader.receive_message().payload, "in both copies");
    cluster.nodes[leader].start();
    let status = cluster.wait_for_status(leader, "old store", |status| finds(status, "An old store was set aside"));
    assert!(status["record"]["epoch"].as_u64().is_some_and(|epoch| epoch > 1 << 20), "{status}");
    assert_eq!(cluster.wait_for_copies(), other);
    let aside = fs::read_dir(&cluster.nodes[leader].data).expect("a directory").flatten();
    let mut aside = aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("aside-"));
    let aside = aside.next().expect("the old directory").path();
    let dump = crate::tenbin(&["store", "dump", aside.to_str().expect("a readable name"), "--messages", "--payloads"]);
    assert!(dump.status.success(), "{}", crate::said(&dump));
}

#[test]
fn record_is_adopted_after_the_engine_has_lost_it() {
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let other = 1 - leader;
    let (done, said) = command(&cluster, leader, &["adopt"]);
    assert!(!done && said.contains("nothing is to be adopted"), "{said}");
    // A running leader goes on.
    cluster.etcd.as_mut().expect("it agrees by etcd").lose_data();
    cluster.nodes[other].kill();
    cluster.wait_for_status(leader, "lost record", |status| finds(status, "The engine has no record"));
    cluster.nodes[other].start();
    cluster.wait_for_status(other, "lost record", |status| finds(status, "The engine has no record"));
    let (done, said) = command(&cluster, leader, &["adopt"]);
    assert!(done && said.contains("leader"), "{said}");
    assert_eq!(cluster.wait_for_copies(), leader);

    // Nodes that were down need the word of both.
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.etcd.as_mut().expect("it agrees by etcd").lose_data();
    cluster.nodes[other].start();
    cluster.wait_for_status(other, "lost record", |status| finds(status, "The engine has no record"));
    let (done, said) = command(&cluster, other, &["adopt"]);
    let name = &cluster.nodes[leader].name;
    assert!(!done && said.contains(&format!("node {name} cannot be asked")) && said.contains("--yes"), "{said}");
    cluster.nodes[leader].start();
    cluster.wait_for_status(leader, "lost record", |status| finds(status, "The engine has no record"));
    // The node that was killed later may have changed the record.
    let (done, said) = match command(&cluster, other, &["adopt"]) {
        (false, said) if said.contains("run it there") => command(&cluster, leader, &["adopt"]),
        answer => answer,
    };
    assert!(done, "{said}");
    cluster.wait_for_copies();
}
