//! A node's status, as `tenbin cluster status` shows it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tenbin_kit::table::aligned;

use super::agreement::StoredRecord;
use super::relay::RelayFigures;

/// The node's view of itself and of the cluster. Keys that a node of another version does not send have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) cluster: String,
    pub(crate) node: String,
    /// Version of the program.
    pub(crate) version: String,
    pub(crate) role: Role,
    /// Whether this node leads and may act now.
    pub(crate) serving: bool,
    /// The record that the node knows.
    pub(crate) record: Option<StoredRecord>,
    /// Nodes that have everything acknowledged.
    pub(crate) copies: u8,
    pub(crate) engine: EngineStatus,
    /// The other nodes.
    pub(crate) peers: Vec<PeerStatus>,
    /// Figures of the relay; `None` = this node serves its clients itself.
    pub(crate) relay: Option<RelayFigures>,
    /// Duration of the last takeover by this node, in milliseconds.
    pub(crate) takeover_ms: Option<u64>,
    /// Facts that an operator should know, a sentence each.
    pub(crate) findings: Vec<String>,
}

/// Role of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// The node has just started, and knows no record.
    Starting,
    Leader,
    Follower,
    Joiner,
    Spare,
    /// A role of a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Role {
    /// The role in a word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Joiner => "joiner",
            Self::Spare => "spare",
            Self::Unknown => "unknown",
        }
    }
}

/// The engine, as the node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EngineStatus {
    /// "etcd" or "manual".
    pub(crate) kind: String,
    /// Error of the last read; `None` = it has succeeded.
    pub(crate) error: Option<String>,
}

/// Another node, as this one sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PeerStatus {
    pub(crate) node: String,
    pub(crate) address: String,
    /// Whether there is a link.
    pub(crate) is_linked: bool,
    /// Bytes that its join has compared or copied; `None` = it is not joining.
    pub(crate) copied_bytes: Option<u64>,
}

impl NodeStatus {
    /// The status as lines of text.
    pub(crate) fn table(&self) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push(vec![name.to_owned(), plain(&value)]);
        line("cluster", self.cluster.clone());
        line("node", format!("{}, version {}", self.node, self.version));
        line("role", self.role.name().to_owned());
        if let Some(record) = &self.record {
            line("epoch", record.epoch.to_string());
            line("leader", record.leader.clone());
            line("follower", record.follower.clone().unwrap_or_else(|| "-".to_owned()));
            if let Some(joiner) = &record.joiner {
                line("joiner", joiner.clone());
            }
        }
        line("copies", self.copies.to_string());
        line(
            "agreement",
            match &self.engine.error {
                None => self.engine.kind.clone(),
                Some(error) => format!("{}, unreachable: {error}", self.engine.kind),
            },
        );
        if let Some(RelayFigures { open, total, refused, bytes }) = self.relay {
            line("relay", format!("{open} clients now, {total} since the start, {refused} refused, {bytes} bytes"));
        }
        if let Some(duration) = self.takeover_ms {
            line("takeover", format!("{duration} ms"));
        }
        for PeerStatus { node, address, is_linked, copied_bytes } in &self.peers {
            let link = if *is_linked { "linked" } else { "not linked" };
            let copied = copied_bytes.map(|bytes| format!(", {bytes} bytes copied")).unwrap_or_default();
            line("peer", format!("{node} at {address}, {link}{copied}"));
        }
        for finding in &self.findings {
            line("finding", finding.clone());
        }
        aligned(&lines, usize::MAX, [0; 2]).into_iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }
}

/// A text without control characters: it may be from another node.
fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_line_for_each_fact() {
        let record =
            StoredRecord { epoch: 7, leader: "a".to_owned(), follower: Some("b".to_owned()), joiner: None, nonce: 1 };
        let status = NodeStatus {
            cluster: "c".to_owned(),
            node: "b".to_owned(),
            version: "0.2.0".to_owned(),
            role: Role::Follower,
            serving: false,
            record: Some(record),
            copies: 2,
            engine: EngineStatus { kind: "etcd".to_owned(), error: Some("no\u{1b}".to_owned()) },
            peers: vec![PeerStatus {
                node: "a".to_owned(),
                address: "a:1".to_owned(),
                is_linked: true,
                copied_bytes: None,
            }],
            relay: Some(RelayFigures { open: 1, total: 2, refused: 3, bytes: 4 }),
            takeover_ms: None,
            findings: vec!["Clocks differ.".to_owned()],
        };
        assert_eq!(
            status.table(),
            "cluster    c\nnode       b, version 0.2.0\nrole       follower\nepoch      7\nleader     a\nfollower   b\ncopies     2\n\
             agreement  etcd, unreachable: no?\nrelay      1 clients now, 2 since the start, 3 refused, 4 bytes\n\
             peer       a at a:1, linked\nfinding    Clocks differ.\n"
        );
    }

    #[test]
    fn status_of_another_version_is_read() {
        let status: NodeStatus =
            serde_json::from_str("{\"node\":\"a\",\"role\":\"captain\",\"colour\":1}").expect("a status");
        assert_eq!((status.node.as_str(), status.role), ("a", Role::Unknown));
        let known = NodeStatus { role: Role::Spare, ..status };
        let text = serde_json::to_string(&known).expect("JSON");
        assert_eq!(serde_json::from_str::<NodeStatus>(&text).expect("a status"), known);
    }
}
