//! The dashboard of a cluster, in headless Chromium. `TENBIN_DASHBOARD_SHOTS=DIR` keeps pictures.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tenbin_codec::{Connect, ProtocolVersion, QoS};

use crate::harness::{Cluster, Node};
use crate::support::{lasting, text};

#[test]
fn dashboard_shows_healthy_pair_and_lost_follower() {
    if !has_browser() {
        return;
    }
    let Some(mut cluster) = Cluster::start(2) else { return };
    let leader = cluster.wait_for_copies();
    let name = cluster.nodes[leader].name.clone();
    let line = format!("leader {name}");
    look(&cluster.nodes[leader], "healthy", &line, &["2 of 2 copies", "follower", "all data"]);
    let elsewhere = format!("the broker's figures are at {name}");
    look(&cluster.nodes[1 - leader], "standby", "follower", &["2 of 2 copies", &elsewhere, "Agreement"]);
    cluster.nodes[1 - leader].kill();
    cluster.wait_for_status(leader, "only copy", |status| status["copies"] == 1);
    look(&cluster.nodes[leader], "lost", &line, &["1 of 2 copies", "away", "only copy"]);
}

#[test]
fn dashboard_shows_progress_of_a_join() {
    if !has_browser() {
        return;
    }
    // 20 MB take minutes.
    let Some(mut cluster) = Cluster::plan(3, "copy_bytes_per_second = 65536\n") else { return };
    cluster.nodes[0].start();
    assert_eq!(cluster.wait_for_leader(), 0);
    let (mut reader, _) = cluster.connect(0, &lasting(ProtocolVersion::V5, "reader"));
    reader.subscribe("bulk", QoS::AtLeastOnce);
    reader.disconnect();
    let (mut publisher, _) = cluster.connect(0, &Connect::new(ProtocolVersion::V5, text("publisher")));
    for _ in 0..200 {
        publisher.publish("bulk", &"x".repeat(100_000), QoS::AtLeastOnce);
    }
    cluster.nodes[1].start();
    cluster.wait_for_role(1, "joiner");
    cluster.nodes[2].start();
    look(&cluster.nodes[0], "joining", "leader node-1", &["1 of 2 copies", "joiner", "spare", "iB of "]);
    look(&cluster.nodes[1], "joiner", "joiner", &["is being copied to"]);
}

/// Opens all views at the node.
fn look(node: &Node, name: &str, line: &str, texts: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/dashboard.mjs");
    let (url, texts) = (format!("http://{}", node.admin), serde_json::to_string(texts).expect("texts"));
    let mut command = Command::new("node");
    command.args([script, &url, name, line, &texts]).args(std::env::var_os("TENBIN_DASHBOARD_SHOTS"));
    let output = command.stdin(Stdio::null()).output().expect("installed");
    let said = crate::said(&output);
    assert!(output.status.success() && said.contains("views are readable"), "{name}: {said}");
}

/// Whether Node.js and Chromium are there; without them, the tests are skipped, except in CI.
fn has_browser() -> bool {
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let is_there = |program: &&str| {
        let mut probe = Command::new(program);
        probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let missing = ["node", &chromium].into_iter().find(|program| !is_there(program));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} is not installed");
        // Past the test harness, which would capture the line.
        let _ = writeln!(std::io::stderr(), "skipped: {missing} is not installed");
    }
    missing.is_none()
}
