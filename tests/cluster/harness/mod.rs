//! A cluster: its nodes, its engine, and waits for conditions.

mod etcd;
mod node;
mod ports;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tenbin_codec::{ConnAck, Connect, Packet, ReasonCode};

use crate::support::{KubernetesApi, PATIENCE, RawClient, encode};
pub(crate) use etcd::Etcd;
pub(crate) use node::Node;
pub(crate) use ports::free_address;

/// Nodes of one cluster, numbered from 0, and their engine.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// `None` with manual agreement.
    pub(crate) etcd: Option<Etcd>,
    directory: TempDir,
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

    /// Starts nodes with mutual TLS by certificates of the documented commands, see [`certify`]. `None` if etcd is not
    /// installed.
    pub(crate) fn start_secure(count: usize) -> Option<Self> {
        let directory = directory();
        let etcd = Etcd::start(directory.path())?;
        let names: Vec<_> = (1..=count).map(|number| format!("node-{number}")).collect();
        certify(directory.path(), &names.join(" "));
        let file = |name: &str| directory.path().join(name).to_str().expect("a readable name").to_owned();
        let agreement = format!(
            "etcd = [{:?}]\ncertificate = {:?}\nkey = {:?}\nca = {:?}\n",
            etcd.url(),
            file("{node}.pem"),
            file("{node}.key"),
            file("ca.pem")
        );
        let mut cluster = Self::of(directory, Some(etcd), count, &agreement, "");
        cluster.start_all();
        cluster.wait_for_copies();
        Some(cluster)
    }

    /// Directory of the test.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
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
        let mut cluster = Self::plan_manual(copies_minimum);
        cluster.start_all();
        cluster.wait_for_copies();
        cluster
    }

    /// Two nodes with manual agreement, which have not been started.
    pub(crate) fn plan_manual(copies_minimum: u8) -> Self {
        let agreement = format!("agreement = \"manual\"\ncopies_minimum = {copies_minimum}\n");
        Self::of(directory(), None, 2, &agreement, "")
    }

    /// Starts nodes that agree by a ConfigMap of `api`, and waits for a leader with two copies. Their service account is
    /// in [`Cluster::account`].
    pub(crate) fn start_kubernetes(count: usize, api: &KubernetesApi) -> Self {
        let directory = directory();
        let account = directory.path().join("account");
        KubernetesApi::write_account(&account, "first", "");
        let url = api.url();
        let agreement =
            format!("agreement = \"kubernetes\"\nkubernetes_url = {url:?}\nkubernetes_directory = {account:?}\n");
        let mut cluster = Self::of(directory, None, count, &agreement, "");
        cluster.start_all();
        cluster.wait_for_copies();
        cluster
    }

    /// Directory of the nodes' service account.
    pub(crate) fn account(&self) -> PathBuf {
        self.directory.path().join("account")
    }

    /// Nodes of these names, whose configurations `text` makes. They have not been started.
    pub(crate) fn configured(names: &[String], text: impl Fn(&Path, &[Node], &Node) -> String) -> Self {
        let directory = directory();
        let nodes: Vec<_> = names.iter().map(|name| Node::plan(directory.path(), name)).collect();
        for node in &nodes {
            node.write_whole_config(&text(directory.path(), &nodes, node));
        }
        Self { nodes, etcd: None, directory }
    }

    fn of(directory: TempDir, etcd: Option<Etcd>, count: usize, agreement: &str, tables: &str) -> Self {
        let mut nodes: Vec<_> =
            (1..=count).map(|number| Node::plan(directory.path(), &format!("node-{number}"))).collect();
        let members: Vec<_> = nodes.iter().map(|node| format!("\"{}={}\"", node.name, node.cluster)).collect();
        let shared = format!("name = \"tests\"\nnodes = [{}]\n{agreement}", members.join(", "));
        for node in &mut nodes {
            node.write_config(&shared, tables);
        }
        Self { nodes, etcd, directory }
    }

    /// As [`Cluster::start`]. Each node starts through a command, a word a line.
    pub(crate) fn start_through(count: usize, command: impl Fn(&Node) -> String) -> Option<Self> {
        let mut cluster = Self::plan(count, "")?;
        for node in &mut cluster.nodes {
            let command = command(node);
            node.start_through(&command.lines().collect::<Vec<_>>());
        }
        cluster.start_all();
        cluster.wait_for_copies();
        Some(cluster)
    }

    /// Adds a process with the name of the node `at`, and with other ports and another directory, as by a copied configuration
    /// file. Returns its number.
    pub(crate) fn add_namesake(&mut self, at: usize) -> usize {
        let namesake = self.nodes[at].plan_namesake(self.directory.path());
        self.nodes.push(namesake);
        self.nodes.len() - 1
    }

    pub(crate) fn start_all(&mut self) {
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
    /// Prints the course of events if the test has failed.
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

/// True if the node has not heard its leader for 2 s or longer: by then a follower knows that the leader is gone.
pub(crate) fn misses_leader(status: &Value) -> bool {
    let findings = status["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    let seconds = |finding: &Value| {
        let begins = ["The leader was heard ", "No leader was heard since the start, "];
        let rest = begins.iter().find_map(|begin| finding.as_str()?.strip_prefix(begin))?;
        rest.strip_suffix(" s ago.")?.parse::<u64>().ok()
    };
    findings.iter().filter_map(seconds).any(|seconds| seconds >= 2)
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

/// Runs the commands of docs/cluster.md that make an authority and certificates of these nodes, in `directory`.
pub(crate) fn certify(directory: &Path, nodes: &str) {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cluster.md")).expect("a page");
    let commands = page.split("```sh\n").find(|block| block.starts_with("openssl req -x509")).expect("the commands");
    let commands = commands.split("```").next().expect("a block");
    assert!(commands.contains("for node in a b;"), "{commands}");
    openssl(directory, &commands.replace("for node in a b;", &format!("for node in {nodes};")));
}

/// Runs shell commands in `directory`.
pub(crate) fn openssl(directory: &Path, commands: &str) {
    let mut shell = Command::new("sh");
    let done = shell.args(["-e", "-c", commands]).current_dir(directory).output().expect("a shell");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn directory() -> TempDir {
    // Names of unix sockets are short.
    TempDir::with_prefix_in("c", env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write")
}

const POLL_EVERY: Duration = Duration::from_millis(10);
/// Wait for CONNACK before a client tries another node.
const CONNACK_WITHIN: Duration = Duration::from_millis(1500);
