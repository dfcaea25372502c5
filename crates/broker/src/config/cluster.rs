//! Table `[cluster]`: one broker on several machines.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
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
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    /// Where the nodes agree on the leader.
    pub agreement: Agreement,
    /// Servers of etcd.
    pub etcd: Vec<ServiceUrl>,
    etcd_ca: PathBuf,
    etcd_certificate: PathBuf,
    etcd_key: PathBuf,
    /// URL of the API of Kubernetes; empty = as the environment of a pod tells.
    pub kubernetes_url: String,
    /// Directory with the files `token`, `ca.crt` and `namespace` of a service account.
    pub kubernetes_directory: PathBuf,
    lease_ms: Ranged<100, 60_000>,
    dead_after_ms: Ranged<200, 600_000>,
    replace_after_ms: Ranged<0, 86_400_000>,
    copies_minimum: Ranged<1, 2>,
    copy_bytes_per_second: Ranged<65_536, 1_099_511_627_776>,
    check_interval_seconds: Ranged<0, 31_536_000>,
    /// Whether slow receivers of MQTT 5.0 are asked to the follower.
    pub move_slow_receivers: bool,
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
    /// In a ConfigMap of Kubernetes.
    Kubernetes,
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
        self.tls_files().is_none() && self.plain_from.iter().any(|network| network.contains(peer))
    }

    /// Files of mutual TLS between nodes: certificate, key and authorities. `None` = there is no TLS.
    pub fn tls_files(&self) -> Option<[&Path; 3]> {
        given([&self.certificate, &self.key, &self.ca])
    }

    /// File with the authorities of etcd's certificates.
    pub fn etcd_ca(&self) -> Option<&Path> {
        given([&self.etcd_ca]).map(|[ca]| ca)
    }

    /// Files that prove this node to etcd: certificate and key.
    pub fn etcd_identity(&self) -> Option<[&Path; 2]> {
        given([&self.etcd_certificate, &self.etcd_key])
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

    /// Time between two comparisons of the follower's copy with the leader's data; `None` = they are off.
    pub fn check_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.check_interval_seconds.get())).filter(|time| !time.is_zero())
    }

    /// Checks the keys of a cluster together. `store`: the directory of the store.
    ///
    /// # Errors
    /// They contradict each other. The error names a key.
    pub(super) fn check(&self, store: &Path) -> Result<(), ConfigError> {
        let error = |message: String| Err(ConfigError::in_cluster(message));
        if !self.is_on() {
            // A node without its name would acknowledge messages alone, beside its cluster.
            return match [("nodes", self.nodes.is_empty()), ("node", self.node.is_empty())]
                .iter()
                .find(|(_, none)| !none)
            {
                Some((key, _)) => error(format!("name: is missing, and {key} needs it: it is the name of the cluster")),
                None => Ok(()),
            };
        }
        if !is_word(&self.name, b"._-", NAME_MAX) {
            return error(format!("name: {:?} is no name of a cluster: valid are {WORD}", shortened(&self.name)));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(other) = self.nodes[..at].iter().find(|other| other.is_alike(node)) {
                return error(format!("nodes: {node} and {other} have the same name or address"));
            }
        }
        let least = self.lease_ms.get() + DEAD_AFTER_LEASE_MS;
        if self.nodes.len() > NODES_MAX {
            error(format!("nodes: has {} nodes, and {NODES_MAX} are possible", self.nodes.len()))
        } else if self.nodes.len() < 2 {
            error("nodes: needs at least two nodes, as in [\"a=10.0.0.1:7883\", \"b=10.0.0.2:7883\"]".to_owned())
        } else if self.own().is_none() {
            let (own, known) = (self.own_name(), self.nodes.iter().map(|node| &node.name[..]).collect::<Vec<_>>());
            error(format!("node: {:?} is not in nodes, which has {}", shortened(&own), known.join(", ")))
        } else if self.dead_after_ms.get() < least {
            error(format!("dead_after_ms: needs to be at least {least}: lease_ms and {DEAD_AFTER_LEASE_MS}"))
        } else if self.agreement == Agreement::Etcd && self.etcd.is_empty() {
            error("etcd: needs at least one URL with agreement = \"etcd\"".to_owned())
        } else if let Some(reason) = self.contradiction_of_tls() {
            error(reason)
        } else if self.agreement == Agreement::Kubernetes && !is_object_name(&self.name) {
            let name = &self.name;
            error(format!(
                "name: {name:?} cannot be a part of a ConfigMap's name: valid are a-z, 0-9 and -, 1 to 50 of them"
            ))
        } else if !self.kubernetes_url.is_empty() && ServiceUrl::try_from(self.kubernetes_url.clone()).is_err() {
            error("kubernetes_url: needs to be https://HOST:PORT, http://HOST:PORT or empty".to_owned())
        } else if store.as_os_str().is_empty() {
            error("name: a cluster needs store.directory".to_owned())
        } else {
            Ok(())
        }
    }
}

impl Cluster {
    /// A sentence if other nodes connect to another port than the one at which this node listens.
    pub(super) fn other_port(&self) -> Option<String> {
        let own = self.own().filter(|own| self.is_on() && own.port() != self.listen.port())?;
        Some(format!(
            "listen: {} has another port than this node in nodes, which is {own}: a mapping of ports has to lead here",
            self.listen
        ))
    }

    /// Why the keys about TLS contradict each other.
    fn contradiction_of_tls(&self) -> Option<String> {
        let keys = [("certificate", &self.certificate), ("key", &self.key), ("ca", &self.ca)];
        let (with, without): (Vec<_>, Vec<_>) = keys.iter().partition(|(_, path)| !path.as_os_str().is_empty());
        if let (Some((given, _)), Some((missing, _))) = (with.first(), without.first()) {
            return Some(format!(
                "{missing}: is missing, and {given} needs it: mutual TLS has all of certificate, key and ca"
            ));
        }
        if !with.is_empty() && self.plain_from != Self::default().plain_from {
            return Some("plain_from: has no effect with certificate, key and ca: delete it".to_owned());
        }
        if self.etcd_certificate.as_os_str().is_empty() != self.etcd_key.as_os_str().is_empty() {
            return Some("etcd_key: etcd_certificate and etcd_key need each other".to_owned());
        }
        let is_tls = |url: &ServiceUrl| url.expose().starts_with("https://");
        let has_ca = self.etcd_ca().is_some();
        if self.agreement == Agreement::Etcd && !has_ca && self.etcd.iter().any(is_tls) {
            return Some("etcd_ca: is missing, and https:// in etcd needs it".to_owned());
        }
        let is_useless = has_ca || self.etcd_identity().is_some();
        (is_useless && !self.etcd.iter().all(is_tls))
            .then(|| "etcd: needs https:// in all URLs with etcd_ca or etcd_certificate".to_owned())
    }
}

/// Most nodes of a cluster.
const NODES_MAX: usize = 64;

/// The paths, if none is empty.
fn given<const N: usize>(paths: [&PathBuf; N]) -> Option<[&Path; N]> {
    paths.iter().all(|path| !path.as_os_str().is_empty()).then(|| paths.map(PathBuf::as_path))
}

/// Longest name of a cluster or of a node, in bytes. It is a part of keys in the engine, and of log lines.
const NAME_MAX: usize = 64;
/// Longest name of a host, in bytes, as DNS has it.
const HOST_MAX: usize = 253;
/// Legal names, in words.
const WORD: &str = "letters, digits, -, _ and ., 1 to 64 of them";

/// Whether `word` has 1 to `longest` letters, digits and bytes of `others`.
fn is_word(word: &str, others: &[u8], longest: usize) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    (1..=longest).contains(&word.len()) && word.bytes().all(is_legal)
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> String {
    let end = text.char_indices().nth(NAME_MAX).map_or(text.len(), |(at, _)| at);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

/// Whether a name may be a part of the name of an object of Kubernetes.
fn is_object_name(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 50 && name.bytes().all(is_legal) && !name.starts_with('-')
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
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            ca: PathBuf::new(),
            agreement: Agreement::Etcd,
            etcd: etcd.into_iter().collect(),
            etcd_ca: PathBuf::new(),
            etcd_certificate: PathBuf::new(),
            etcd_key: PathBuf::new(),
            kubernetes_url: String::new(),
            kubernetes_directory: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            lease_ms: Ranged(400),
            dead_after_ms: Ranged(750),
            replace_after_ms: Ranged(10_000),
            copies_minimum: Ranged(1),
            copy_bytes_per_second: Ranged(100 << 20),
            check_interval_seconds: Ranged(86_400),
            move_slow_receivers: false,
        }
    }
}

impl ClusterNode {
    /// Host of the address, without brackets around IPv6.
    pub fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&self.address[..], |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Port of the address; `FromStr` has checked it.
    fn port(&self) -> u16 {
        self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }

    fn is_alike(&self, other: &Self) -> bool {
        self.name == other.name || self.address == other.address
    }
}

impl FromStr for ClusterNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let text = shortened(text);
            format!("{text:?} is no node: valid are NAME=HOST:PORT and HOST:PORT, and a NAME is {WORD}")
        };
        let (name, address) = text.split_once('=').map_or((None, text), |(name, address)| (Some(name), address));
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        let is_v6 = address.parse::<SocketAddr>().is_ok_and(|address| address.is_ipv6());
        let is_host = is_v6 || is_word(host, b".-_", HOST_MAX);
        // A name may be an IPv6 address, as it is without NAME.
        let is_legal = is_port && is_host && name.is_none_or(|name| is_word(name, b".-_:", NAME_MAX));
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
        let secure = parse("node = \"a\"\ncertificate = \"c\"\nkey = \"k\"\nca = \"a\"\n").unwrap().cluster;
        assert_eq!(secure.tls_files(), Some(["c", "k", "a"].map(Path::new)));
        assert!(!secure.accepts_plain([127, 0, 0, 1].into()), "TLS alone");
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
            (
                "node = \"a\"\netcd = [\"https://host:1\"]\n",
                "cluster: etcd_ca: is missing, and https:// in etcd needs it",
            ),
            ("node = \"a\"\netcd_ca = \"f\"\n", "cluster: etcd: needs https:// in all URLs"),
            ("node = \"a\"\netcd_key = \"f\"\n", "cluster: etcd_key: etcd_certificate and etcd_key need each other"),
            ("node = \"a\"\nkey = \"f\"\n", "cluster: certificate: is missing, and key needs it"),
            ("node = \"a\"\ncertificate = \"f\"\nkey = \"f\"\n", "cluster: ca: is missing, and certificate needs it"),
            (
                "node = \"a\"\ncertificate = \"f\"\nkey = \"f\"\nca = \"f\"\nplain_from = [\"10.0.0.0/8\"]\n",
                "cluster: plain_from: has no effect with certificate",
            ),
            ("node = \"a\"\nkubernetes_url = \"host:1\"\n", "cluster: kubernetes_url: needs to be https://HOST:PORT"),
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
            ("[\"a:1\", \"b/c=b:1\"]", "\"b/c=b:1\" is no node: valid are NAME=HOST:PORT"),
            (&format!("[\"a:1\", \"{}=b:1\"]", "b".repeat(65)), "a NAME is letters, digits, -, _ and ., 1 to 64"),
            (&format!("[\"a:1\", \"{}:1\"]", "b".repeat(254)), "is no node"),
        ] {
            let error =
                Config::parse(&format!("[cluster]\nname = \"c\"\nnode = \"a\"\nnodes = {nodes}\n")).unwrap_err();
            assert!(error.to_string().contains(words), "{nodes}: {error}");
        }
        assert!(parse("node = \"a\"\netcd = []\nagreement = \"manual\"\n").is_ok());
        let named = |name: &str| {
            parse("node = \"a\"\nagreement = \"kubernetes\"\n").map(drop)?;
            let text = NODES.replace("\"c\"", &format!("{name:?}")) + "node = \"a\"\nagreement = \"kubernetes\"\n";
            Config::parse(&text).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(named("shop-1"), Ok(()));
        assert!(named(&"a".repeat(51)).is_err());
        assert!(named("Shop").unwrap_err().contains("cluster: name: \"Shop\" cannot be a part of a ConfigMap's name"));
    }

    #[test]
    fn name_of_a_cluster_is_a_short_word() {
        let named = |name: &str| {
            let text = NODES.replace("\"c\"", &format!("{name:?}")) + "node = \"a\"\n";
            Config::parse(&text).map(drop).map_err(|error| error.to_string())
        };
        for name in ["c", "Shop_1.north-2", &"n".repeat(64)] {
            assert_eq!(named(name), Ok(()));
        }
        for name in ["a/b", "a b", "ä", "a\nb", "a\tb", &"n".repeat(65), &"ü".repeat(5000)] {
            let error = named(name).unwrap_err();
            assert!(error.contains("line 2: cluster: name: ") && error.contains("1 to 64 of them"), "{error}");
            assert!(error.len() < 500 && !error.contains('\n'), "{error}");
        }
    }
}
