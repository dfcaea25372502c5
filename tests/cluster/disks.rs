//! Disks that fail or are full, at the leader.

use std::fs::{File, remove_file};
use std::io::Write as _;
use std::process::Command;

use crate::harness::Cluster;
use crate::ledger::Ledger;
use crate::support::PATIENCE;

#[test]
fn leader_with_a_broken_disk_hands_over() {
    let Some(cluster) = Cluster::start(2) else { return };
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    cluster.nodes[leader].break_disk(true);
    cluster.nodes[leader].log().wait_for(&["the disk of this leader cannot be used", "failed"], PATIENCE);
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(50);
    cluster.nodes[leader].break_disk(false);
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
}

#[test]
fn leader_with_a_full_disk_hands_over() {
    let Some(cluster) = with_small_disks() else { return };
    let ledger = Ledger::start(&cluster);
    let leader = cluster.wait_for_copies();
    let node = &cluster.nodes[leader];
    // As the node sees it: the file system is its own.
    let file = format!("/proc/{}/root{}/spool/fills", node.pid(), node.data.display());
    let mut fills = File::create(&file).expect("a file in the node's file system");
    while fills.write_all(&[0; 1 << 16]).is_ok() {}
    // The space is taken until the file is closed, and the node does not see the name.
    remove_file(&file).expect("it is there");
    node.log().wait_for(&["the disk of this leader cannot be used", "full"], PATIENCE);
    assert_eq!(cluster.wait_for_leader(), 1 - leader);
    ledger.wait_for_more(50);
    // No message is refused: the full disk is no copy that counts.
    node.log().wait_for(&["leads in epoch"], PATIENCE);
    drop(fills);
    assert_eq!(cluster.wait_for_copies(), 1 - leader);
    ledger.wait_for_more(20);
    ledger.finish();
}

/// A pair; each node has a file system for its log alone. `None` if the system refuses that, or etcd is missing.
fn with_small_disks() -> Option<Cluster> {
    let probe = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        // Past the test harness, which would capture the line.
        let _ = writeln!(std::io::stderr(), "skipped: this user can mount no file system");
        return None;
    }
    let script = "mkdir -p \"$1/spool\" && mount -t tmpfs -o size=256m none \"$1/spool\" && shift && exec \"$@\"";
    Cluster::start_through(2, |node| {
        ["unshare", "-rm", "sh", "-c", script, "sh", node.data.to_str().expect("text")].join("\n")
    })
}
