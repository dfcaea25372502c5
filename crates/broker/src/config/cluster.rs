//! Table `[cluster]`: one broker on several machines.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::range::Ranged;
use super::{ConfigError, ServiceUrl};
use crate::values::Network;

/// One broker on several machines. Without a name the broker is alone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Name of the cluster; empty = no cluster.
    pub name: String,
    node: String,
    /// All nodes of the cluster.
    pub nodes: Vec<ClusterNode>,
    /// Address for other nodes: links, mirror and relayed clients.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
    #[serde(serialize_with = "texts")]
    plain_from: Vec<Network>,
    /// Where the nodes agree on the leader.
    pub agreement: Agreement,
    /// Servers of etcd.
    pub etcd: Vec<ServiceUrl>,
    lease_ms: Ranged<100, 60_000>,
    dead_after_ms: Ranged<200, 600_000>,
    replace_after_ms: Ranged<0, 86_400_000>,
    copies_minimum: Ranged<1, 2>,
    copy_bytes_per_second: Ranged<65_536, 1_099_511_627_776>,
}

/// A node of a cluster. Its text is `NAME=HOST:PORT`, or `HOST:PORT` if its name is its host.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterNode {
    /// Name, which no other node of the cluster has.
    pub name: String,
    /// Host and port of the node's cluster port. The host may be a name.
    pub address: String,
}

/// Where the nodes of a cluster agree on the leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Agreement {
    /// In etcd.
    #[default]
    Etcd,
    /// Nowhere: an operator names the leader.
    Manual,
}

impl Cluster {
    /// Whether the broker is one of several nodes.
    pub fn is_on(&self) -> bool {
        !self.name.is_empty()
    }

    /// This node: the entry of `nodes` with the configured name or host, or with the host name of the machine.
    /// `None` = there is none, which a parsed configuration with a cluster does not have.
    pub fn own(&self) -> Option<&ClusterNode> {
        let own = self.own_name();
        self.nodes.iter().find(|node| node.name == own).or_else(|| self.nodes.iter().find(|node| node.host() == own))
    }

    fn own_name(&self) -> String {
        match &self.node[..] {
            "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            configured => configured.to_owned(),
        }
    }

    /// Networks whose peers the cluster port accepts without TLS.
    pub fn plain_from(&self) -> &[Network] {
        &self.plain_from
    }

    /// Whether the cluster port accepts this peer without TLS.
    pub fn accepts_plain(&self, peer: IpAddr) -> bool {
        self.plain_from.iter().any(|network| network.contains(peer))
    }

    /// How long the follower's answer keeps it from taking over.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.get())
    }

    /// Silence after which a node counts as dead.
    pub fn dead_after(&self) -> Duration {
        Duration::from_millis(self.dead_after_ms.get())
    }

    /// How long a follower may be absent before a spare takes its place.
    pub fn replace_after(&self) -> Duration {
        Duration::from_millis(self.replace_after_ms.get())
    }

    /// Copies without which nothing is acknowledged: 1 or 2.
    pub fn copies_minimum(&self) -> u8 {
        self.copies_minimum.get() as u8
    }

    /// Rate at which a joining node gets the files of the store.
    pub fn copy_bytes_per_second(&self) -> u64 {
        self.copy_bytes_per_second.get()
    }

    /// Checks the keys of a cluster together. `store`: the directory of the store.
    ///
    /// # Errors
    /// They contradict each other. The error names a key.
    pub(super) fn check(&self, store: &Path) -> Result<(), ConfigError> {
        if !self.is_on() {
            return Ok(());
        }
        let error = |message: String| Err(ConfigError::in_cluster(message));
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(other) = self.nodes[..at].iter().find(|other| other.is_alike(node)) {
                return error(format!("nodes: {node} and {other} have the same name or address"));
            }
        }
        let least = self.lease_ms.get() + DEAD_AFTER_LEASE_MS;
        if self.nodes.len() < 2 {
            error("nodes: needs at least two nodes, as in [\"a=10.0.0.1:7883\", \"b=10.0.0.2:7883\"]".to_owned())
        } else if self.own().is_none() {
            let (own, known) = (self.own_name(), self.nodes.iter().map(|node| &node.name[..]).collect::<Vec<_>>());
            error(format!("node: {own:?} is not in nodes, which has {}", known.join(", ")))
        } else if self.dead_after_ms.get() < least {
            error(format!("dead_after_ms: needs to be at least {least}: lease_ms and {DEAD_AFTER_LEASE_MS}"))
        } else if self.agreement == Agreement::Etcd && self.etcd.is_empty() {
            error("etcd: needs at least one URL with agreement = \"etcd\"".to_owned())
        } else if self.etcd.iter().any(|url| !url.expose().starts_with("http://")) {
            error("etcd: TLS to etcd is not supported: use http://HOST:PORT".to_owned())
        } else if store.as_os_str().is_empty() {
            error("name: a cluster needs store.directory".to_owned())
        } else {
            Ok(())
        }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        let etcd = ServiceUrl::try_from("http://127.0.0.1:2379".to_owned());
        Self {
            name: String::new(),
            node: String::new(),
            nodes: Vec::new(),
            listen: ([127, 0, 0, 1], 7883).into(),
            plain_from: loopback.iter().filter_map(|network| network.parse().ok()).collect(),
            agreement: Agreement::Etcd,
            etcd: etcd.into_iter().collect(),
            lease_ms: Ranged(400),
            dead_after_ms: Ranged(750),
            replace_after_ms: Ranged(10_000),
            copies_minimum: Ranged(1),
            copy_bytes_per_second: Ranged(100 << 20),
        }
    }
}

impl ClusterNode {
    /// Host of the address, without brackets around IPv6.
    pub fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&self.address[..], |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    fn is_alike(&self, other: &Self) -> bool {
        self.name == other.name || self.address == other.address
    }
}

impl FromStr for ClusterNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no node: valid are NAME=HOST:PORT and HOST:PORT");
        let (name, address) = text.split_once('=').map_or((None, text), |(name, address)| (Some(name), address));
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_v6 = address.parse::<SocketAddr>().is_ok_and(|address| address.is_ipv6());
        let is_word = |word: &str, others: &[u8]| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
        };
        let is_legal = is_port && (is_v6 || is_word(host, b".-_")) && name.is_none_or(|name| is_word(name, b".-_:"));
        let node = Self { name: String::new(), address: address.to_owned() };
        let name = name.unwrap_or_else(|| node.host()).to_owned();
        is_legal.then_some(Self { name, ..node }).ok_or_else(wrong)
    }
}

impl fmt::Display for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name == self.host() {
            true => f.write_str(&self.address),
            false => write!(f, "{}={}", self.name, self.address),
        }
    }
}

impl Serialize for ClusterNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClusterNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = |_| format!("{text:?} is no IP address with a port, as in 127.0.0.1:7883");
    text.parse().map_err(wrong).map_err(serde::de::Error::custom)
}

fn texts<S: Serializer>(networks: &[Network], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(networks.iter().map(ToString::to_string))
}

/// Time that a dead node's lease has been over for.
const DEAD_AFTER_LEASE_MS: u64 = 100;

#[cfg(test)]
mod tests {
    use crate::Config;

    use super::*;

    const NODES: &str =
        "[cluster]\nname = \"c\"\nnodes = [\"a=10.0.0.1:7883\", \"b.example.org:7883\", \"[::1]:7883\"]\n";

    fn parse(more: &str) -> Result<Config, String> {
        Config::parse(&format!("{NODES}{more}")).map_err(|error| error.to_string())
    }

    #[test]
    fn cluster_of_three_nodes_is_read() {
        let cluster = parse("node = \"a\"\nplain_from = [\"10.0.0.0/8\"]\nlease_ms = 500\n").unwrap().cluster;
        let nodes: Vec<_> = cluster.nodes.iter().map(|node| [&node.name[..], node.host(), &node.address]).collect();
        assert_eq!(
            nodes,
            [
                ["a", "10.0.0.1", "10.0.0.1:7883"],
                ["b.example.org", "b.example.org", "b.example.org:7883"],
                ["::1", "::1", "[::1]:7883"]
            ]
        );
        assert!(cluster.is_on() && cluster.own() == Some(&cluster.nodes[0]));
        assert!(cluster.accepts_plain([10, 9, 9, 9].into()) && !cluster.accepts_plain([127, 0, 0, 1].into()));
        assert_eq!([cluster.lease(), cluster.dead_after()], [500, 750].map(Duration::from_millis));
        let by_host = parse("node = \"10.0.0.1\"\n").unwrap().cluster;
        assert_eq!(by_host.own(), Some(&by_host.nodes[0]));
        assert!(!Config::default().cluster.is_on());
    }

    #[test]
    fn node_is_the_host_name_by_default() {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let text = format!("[cluster]\nname = \"c\"\nnodes = [\"other:1\", \"{host}=10.0.0.1:7883\"]\n");
        let cluster = Config::parse(&text).unwrap().cluster;
        assert_eq!(cluster.own().unwrap().address, "10.0.0.1:7883");
    }

    #[test]
    fn errors_name_the_key() {
        for (more, words) in [
            ("node = \"x\"\n", "cluster: node: \"x\" is not in nodes"),
            ("node = \"a\"\nlease_ms = 700\n", "cluster: dead_after_ms: needs to be at least 800"),
            ("node = \"a\"\nlease_ms = 5\n", "lease_ms"),
            ("node = \"a\"\ncopies_minimum = 3\n", "copies_minimum"),
            ("node = \"a\"\netcd = []\n", "cluster: etcd: needs at least one URL"),
            ("node = \"a\"\netcd = [\"host:1\"]\n", "etcd: needs to be an URL"),
            ("node = \"a\"\netcd = [\"https://host:1\"]\n", "cluster: etcd: TLS to etcd is not supported"),
            ("node = \"a\"\nlisten = \"host:1\"\n", "listen: \"host:1\" is no IP address"),
            ("node = \"a\"\nagreement = \"raft\"\n", "agreement"),
            ("node = \"a\"\n[store]\ndirectory = \"\"\n", "cluster: name: a cluster needs store.directory"),
        ] {
            let error = parse(more).unwrap_err();
            assert!(error.contains(words), "{more}: {error}");
        }
        for (nodes, words) in [
            ("[\"a:1\"]", "nodes: needs at least two nodes"),
            ("[\"a:1\", \"a=b:1\"]", "nodes: a=b:1 and a:1 have the same name or address"),
            ("[\"a:1\", \"b=a:1\"]", "nodes: b=a:1 and a:1"),
            ("[\"a:1\", \"b\"]", "\"b\" is no node"),
            ("[\"a:1\", \"b:0\"]", "\"b:0\" is no node"),
            ("[\"a:1\", \"=b:1\"]", "\"=b:1\" is no node"),
            ("[\"a:1\", \"::1:7\"]", "\"::1:7\" is no node"),
        ] {
            let error =
                Config::parse(&format!("[cluster]\nname = \"c\"\nnode = \"a\"\nnodes = {nodes}\n")).unwrap_err();
            assert!(error.to_string().contains(words), "{nodes}: {error}");
        }
        assert!(parse("node = \"a\"\netcd = []\nagreement = \"manual\"\n").is_ok());
    }
}
