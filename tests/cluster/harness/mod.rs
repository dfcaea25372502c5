//! A cluster: its nodes, its engine, and waits for conditions.

mod etcd;
mod node;
mod ports;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tenbin_codec::{ConnAck, Connect, Packet, ReasonCode};

use crate::support::{PATIENCE, RawClient, encode};
pub(crate) use etcd::Etcd;
pub(crate) use node::Node;

/// Nodes of one cluster, numbered from 0, and their engine.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// `None` with manual agreement.
    pub(crate) etcd: Option<Etcd>,
    _directory: TempDir,
}

impl Cluster {
    /// Starts nodes that agree by etcd, and waits for a leader with two copies. `None` if etcd is not installed.
    pub(crate) fn start(count: usize) -> Option<Self> {
        Self::start_with(count, "")
    }

    /// As [`Cluster::start`], with further tables of the configuration.
    pub(crate) fn start_with(count: usize, tables: &str) -> Option<Self> {
        let mut cluster = Self::plan(count, tables)?;
        cluster.start_all();
        cluster.wait_for_copies();
        Some(cluster)
    }

    /// A cluster with etcd whose nodes have not been started. `None` if etcd is not installed.
    pub(crate) fn plan(count: usize, tables: &str) -> Option<Self> {
        let directory = directory();
        let etcd = Etcd::start(directory.path())?;
        let agreement = format!("etcd = [{:?}]\n", etcd.url());
        Some(Self::of(directory, Some(etcd), count, &agreement, tables))
    }

    /// Starts two nodes with manual agreement, and waits for two copies.
    pub(crate) fn start_manual(copies_minimum: u8) -> Self {
        let agreement = format!("agreement = \"manual\"\ncopies_minimum = {copies_minimum}\n");
        let mut cluster = Self::of(directory(), None, 2, &agreement, "");
        cluster.start_all();
        cluster.wait_for_copies();
        cluster
    }

    fn of(directory: TempDir, etcd: Option<Etcd>, count: usize, agreement: &str, tables: &str) -> Self {
        let mut nodes: Vec<_> = (1..=count).map(|number| Node::plan(directory.path(), number)).collect();
        let members: Vec<_> = nodes.iter().map(|node| format!("\"{}={}\"", node.name, node.cluster)).collect();
        let shared = format!("name = \"tests\"\nnodes = [{}]\n{agreement}", members.join(", "));
        for node in &mut nodes {
            node.write_config(&shared, tables);
        }
        Self { nodes, etcd, _directory: directory }
    }

    fn start_all(&mut self) {
        for node in &mut self.nodes {
            node.start();
        }
    }

    /// Addresses of all nodes for clients, beginning with the node `first`.
    pub(crate) fn addresses_from(&self, first: usize) -> Vec<SocketAddr> {
        let count = self.nodes.len();
        (0..count).map(|at| self.nodes[(first + at) % count].address).collect()
    }

    /// Waits until `found` returns a value.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub(crate) fn wait<T>(&self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(Instant::now() < until, "no {what} within {PATIENCE:?}");
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Waits until a node leads and another node has a complete copy. Returns the leader.
    pub(crate) fn wait_for_copies(&self) -> usize {
        self.wait("leader with two copies", |cluster| {
            let is_wanted = |status: &Value| leads(status) && status["copies"] == 2;
            (0..cluster.nodes.len()).find(|&at| cluster.nodes[at].status().is_some_and(|status| is_wanted(&status)))
        })
    }

    /// Waits until a node leads. Returns its number.
    pub(crate) fn wait_for_leader(&self) -> usize {
        self.wait("leader", |cluster| {
            (0..cluster.nodes.len()).find(|&at| cluster.nodes[at].status().is_some_and(|status| leads(&status)))
        })
    }

    /// Waits until the status of a node meets a condition.
    pub(crate) fn wait_for_status(&self, at: usize, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.wait(what, |cluster| cluster.nodes[at].status().filter(|status| holds(status)))
    }

    /// Waits until a node follows or joins.
    pub(crate) fn wait_for_role(&self, at: usize, role: &str) {
        self.wait_for_status(at, role, |status| status["role"] == role);
    }

    /// The follower of the record that the node `at` knows.
    pub(crate) fn follower(&self, at: usize) -> usize {
        let status = self.nodes[at].status().expect("the node answers");
        let name = status["record"]["follower"].as_str().expect("there is a follower").to_owned();
        self.nodes.iter().position(|node| node.name == name).expect("a node of the cluster")
    }

    /// Connects to any of the nodes, beginning with `first`, as soon as one accepts the client.
    pub(crate) fn reach(&self, first: usize, connect: &Connect) -> (RawClient, ConnAck) {
        let until = Instant::now() + PATIENCE;
        loop {
            for address in self.addresses_from(first) {
                if let Some(connected) = attempt(address, connect) {
                    return connected;
                }
            }
            assert!(Instant::now() < until, "no node accepts a client within {PATIENCE:?}");
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Connects to the node `at`, as soon as it accepts the client.
    pub(crate) fn connect(&self, at: usize, connect: &Connect) -> (RawClient, ConnAck) {
        self.wait("node that accepts a client", |cluster| attempt(cluster.nodes[at].address, connect))
    }
}

impl Drop for Cluster {
    /// Tells what has happened if the test has failed.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut out = std::io::stderr().lock();
        for node in &self.nodes {
            let _ = writeln!(out, "==== {}, status {:#}", node.name, node.status().unwrap_or_default());
            for line in node.log_lines() {
                let _ = writeln!(out, "{line}");
            }
        }
    }
}

/// True if the status is of a node that leads and may act.
pub(crate) fn leads(status: &Value) -> bool {
    status["role"] == "leader" && status["serving"] == true
}

/// True if a finding of the status contains this text.
pub(crate) fn finds(status: &Value, text: &str) -> bool {
    let findings = status["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    findings.iter().any(|finding| finding.as_str().is_some_and(|finding| finding.contains(text)))
}

/// Tries once to connect. `None` if the node is not there, refuses, or does not answer soon.
pub(crate) fn attempt(address: SocketAddr, connect: &Connect) -> Option<(RawClient, ConnAck)> {
    let mut client = RawClient::try_open(address, connect.version)?;
    client.try_send_bytes(&encode(&Packet::Connect(Box::new(connect.clone())), connect.version));
    match client.try_receive(CONNACK_WITHIN).ok()? {
        Packet::ConnAck(connack) if connack.reason == ReasonCode::Success => Some((client, *connack)),
        _ => None,
    }
}

fn directory() -> TempDir {
    // Names of unix sockets are short.
    TempDir::with_prefix_in("c", env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write")
}

const POLL_EVERY: Duration = Duration::from_millis(10);
/// Wait for CONNACK before a client tries another node.
const CONNACK_WITHIN: Duration = Duration::from_millis(1500);
