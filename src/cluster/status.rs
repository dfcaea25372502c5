//! A node's status, as `tenbin cluster status` shows it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tenbin_kit::printable::printable;
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
    /// Highest epoch in which its directory may have acted.
    pub(crate) known_epoch: u64,
    /// Nodes that have everything acknowledged.
    pub(crate) copies: u8,
    pub(crate) engine: EngineStatus,
    /// The other nodes.
    pub(crate) peers: Vec<PeerStatus>,
    /// Figures of the relay; `None` = this node serves its clients itself.
    pub(crate) relay: Option<RelayFigures>,
    /// Duration of the last takeover by this node, in milliseconds.
    pub(crate) takeover_ms: Option<u64>,
    /// When this node began to lead last, in milliseconds since 1970.
    pub(crate) took_over_at_ms: Option<u64>,
    /// URL of the leader's admin HTTP, if it is known.
    pub(crate) leader_admin: Option<String>,
    /// Milliseconds since the leader was heard; `None` = this node leads, or has not heard it yet.
    pub(crate) heard_ms: Option<u64>,
    /// Number of its process; 0 = not told.
    pub(crate) process: u64,
    /// Why the process does not act beside another one with the node's name, as a sentence.
    pub(crate) namesake: Option<String>,
    /// Why new clients find no leader at this node; `None` = they are taken.
    pub(crate) no_clients: Option<String>,
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
    /// The roles of this version.
    pub(crate) const ALL: [Self; 5] = [Self::Starting, Self::Leader, Self::Follower, Self::Joiner, Self::Spare];

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
    /// "etcd", "kubernetes" or "manual".
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
    /// Bytes of the log that the join has to compare or copy; the state comes in addition. `None` = as above.
    pub(crate) log_bytes: Option<u64>,
    /// Why it has not answered this node's last question; `None` = it has, or was not asked.
    pub(crate) error: Option<String>,
}

impl NodeStatus {
    /// Why a load balancer or a rolling restart has to wait; `None` = it need not.
    ///
    /// A node that joins serves clients. But if the leader ended now, they would have to wait for it.
    pub(crate) fn not_ready(&self) -> Option<&str> {
        let has_follower = self.record.as_ref().is_some_and(|record| record.follower.is_some());
        match self.role {
            _ if self.namesake.is_some() => Some("another process has the name of this node"),
            Role::Leader if !self.serving => Some("the leader may not act"),
            Role::Leader | Role::Follower => self.no_clients.as_deref(),
            Role::Spare if has_follower => self.no_clients.as_deref(),
            Role::Spare | Role::Joiner => Some("the leader has no complete copy at another node"),
            Role::Starting | Role::Unknown => Some("the node is starting"),
        }
    }

    /// The status as lines of text.
    pub(crate) fn table(&self) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push(vec![name.to_owned(), printable(&value).into_owned()]);
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
        if let Some(reason) = &self.no_clients {
            line("clients", format!("no new ones: {reason}"));
        }
        if let Some(RelayFigures { open, total, refused, bytes, references, references_failed }) = self.relay {
            line("relay", format!("{open} clients now, {total} since the start, {refused} refused, {bytes} bytes"));
            if references + references_failed > 0 {
                line("from copy", format!("{references} messages to clients, {references_failed} not found"));
            }
        }
        if let Some(duration) = self.takeover_ms {
            line("takeover", format!("{duration} ms"));
        }
        for PeerStatus { node, address, is_linked, copied_bytes, log_bytes, error } in &self.peers {
            let link = if *is_linked { "linked" } else { "not linked" };
            let log = log_bytes.filter(|&bytes| bytes > 0).map(|bytes| format!(" of {bytes}")).unwrap_or_default();
            let copied = copied_bytes.map(|bytes| format!(", {bytes}{log} bytes copied")).unwrap_or_default();
            let error = error.as_ref().map(|error| format!(", does not answer: {error}")).unwrap_or_default();
            line("peer", format!("{node} at {address}, {link}{copied}{error}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_ready_once_a_loss_is_covered() {
        let record = |follower: Option<&str>| {
            let follower = follower.map(ToOwned::to_owned);
            Some(StoredRecord { epoch: 7, leader: "a".to_owned(), follower, nonce: 1, ..StoredRecord::default() })
        };
        let (alone, pair) = (record(None), record(Some("b")));
        for (role, serving, record, is_ready) in [
            (Role::Leader, true, &alone, true),
            (Role::Leader, false, &pair, false),
            (Role::Follower, false, &pair, true),
            (Role::Joiner, false, &alone, false),
            (Role::Spare, false, &pair, true),
            (Role::Spare, false, &alone, false),
            (Role::Spare, false, &None, false),
            (Role::Starting, false, &pair, false),
        ] {
            let status = NodeStatus { role, serving, record: record.clone(), ..NodeStatus::default() };
            assert_eq!(status.not_ready().is_none(), is_ready, "{role:?} {record:?}");
            let reason = "node a hands over";
            let status = NodeStatus { no_clients: Some(reason.to_owned()), ..status };
            assert!(status.not_ready().is_some_and(|told| !is_ready || told == reason), "{role:?} {record:?}");
            let status = NodeStatus { namesake: Some("It runs twice.".to_owned()), ..status };
            assert!(status.not_ready().is_some_and(|reason| reason.contains("name of this node")));
        }
    }

    #[test]
    fn table_has_a_line_for_each_fact() {
        let (leader, follower) = ("a".to_owned(), Some("b".to_owned()));
        let record = StoredRecord { epoch: 7, leader, follower, nonce: 1, ..StoredRecord::default() };
        let status = NodeStatus {
            cluster: "c".to_owned(),
            node: "b".to_owned(),
            version: "0.2.0".to_owned(),
            role: Role::Follower,
            serving: false,
            record: Some(record),
            known_epoch: 7,
            copies: 2,
            engine: EngineStatus { kind: "etcd".to_owned(), error: Some("no\u{1b}".to_owned()) },
            peers: vec![PeerStatus {
                node: "a".to_owned(),
                address: "a:1".to_owned(),
                is_linked: true,
                copied_bytes: None,
                log_bytes: None,
                error: Some("cannot connect to a:1".to_owned()),
            }],
            relay: Some(RelayFigures { open: 1, total: 2, refused: 3, bytes: 4, references: 5, references_failed: 6 }),
            takeover_ms: None,
            took_over_at_ms: None,
            leader_admin: None,
            heard_ms: None,
            process: 7,
            namesake: None,
            no_clients: Some("node a hands over".to_owned()),
            findings: vec!["Clocks differ.".to_owned()],
        };
        assert_eq!(
            status.table(),
            "cluster    c\nnode       b, version 0.2.0\nrole       follower\nepoch      7\nleader     a\nfollower   b\ncopies     2\n\
             agreement  etcd, unreachable: no\\u001b\nclients    no new ones: node a hands over\n\
             relay      1 clients now, 2 since the start, 3 refused, 4 bytes\n\
             from copy  5 messages to clients, 6 not found\npeer       a at a:1, linked, does not answer: cannot connect to a:1\n\
             finding    Clocks differ.\n"
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
