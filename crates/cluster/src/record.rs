//! The record of the cluster, and the mark of a directory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node::{Names, Node, TooManyNames};

/// Leader and copies of the cluster. It is stored in the agreement engine, or in marks if the agreement is manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Number of the record: each change adds 1. No node acts in epoch 1, which only nominates the first leader.
    pub epoch: u64,
    /// The node that runs the broker.
    pub leader: Node,
    /// The node that has everything acknowledged and may take over.
    pub follower: Option<Node>,
    /// The node that is being copied to. It may not take over.
    pub joiner: Option<Node>,
    /// Differs for each process and epoch: tells whose write the record is.
    pub nonce: u64,
}

/// Role of a node in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs the broker.
    Leader,
    /// Has everything acknowledged and may take over.
    Follower,
    /// Is being copied to and may not take over.
    Joiner,
    /// Only relays.
    Spare,
}

impl Record {
    /// Number of copies that have everything acknowledged.
    pub fn copies(&self) -> u8 {
        1 + u8::from(self.follower.is_some())
    }

    /// Role of a node.
    pub fn role_of(&self, node: Node) -> Role {
        if self.leader == node {
            Role::Leader
        } else if self.follower == Some(node) {
            Role::Follower
        } else if self.joiner == Some(node) {
            Role::Joiner
        } else {
            Role::Spare
        }
    }
}

/// The mark of this node's directory, as the machine needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The record in which the node acted last.
    pub record: Record,
    /// True if the machine has not been booted since the mark was written.
    pub is_same_boot: bool,
}

/// A record with names: the value in the engine, and in messages between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecord {
    /// See [`Record::epoch`].
    pub epoch: u64,
    /// See [`Record::leader`].
    pub leader: String,
    /// See [`Record::follower`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follower: Option<String>,
    /// See [`Record::joiner`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joiner: Option<String>,
    /// See [`Record::nonce`].
    pub nonce: u64,
}

impl StoredRecord {
    /// The record with names.
    pub fn new(record: &Record, names: &Names) -> Self {
        let name = |node: Node| names.name(node).to_owned();
        Self {
            epoch: record.epoch,
            leader: name(record.leader),
            follower: record.follower.map(name),
            joiner: record.joiner.map(name),
            nonce: record.nonce,
        }
    }

    /// The record with the numbers of a process.
    ///
    /// # Errors
    ///
    /// The table of names is full.
    pub fn record(&self, names: &mut Names) -> Result<Record, TooManyNames> {
        Ok(Record {
            epoch: self.epoch,
            leader: names.number(&self.leader)?,
            follower: self.follower.as_deref().map(|name| names.number(name)).transpose()?,
            joiner: self.joiner.as_deref().map(|name| names.number(name)).transpose()?,
            nonce: self.nonce,
        })
    }
}

/// Content of the mark's file. The file is replaced atomically, and synced with its directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMark {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node that wrote the mark.
    pub node: String,
    /// The record in which the node acts.
    pub record: StoredRecord,
    /// The kernel's boot id when the mark was written.
    pub boot_id: String,
}

impl StoredMark {
    /// The mark as the machine of `node` needs it, in this `cluster` and boot.
    ///
    /// # Errors
    ///
    /// The directory belongs to another cluster or node, or the table of names is full.
    pub fn mark(&self, cluster: &str, node: &str, boot_id: &str, names: &mut Names) -> Result<Mark, MarkError> {
        if self.cluster != cluster {
            return Err(MarkError::Cluster(self.cluster.clone()));
        }
        if self.node != node {
            return Err(MarkError::Node(self.node.clone()));
        }
        let record = self.record.record(names).map_err(MarkError::Names)?;
        Ok(Mark { record, is_same_boot: self.boot_id == boot_id })
    }
}

/// A mark that says nothing of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The directory belongs to this other cluster.
    Cluster(String),
    /// The directory belongs to this other node.
    Node(String),
    /// Too many names.
    Names(TooManyNames),
}

impl fmt::Display for MarkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(name) => write!(f, "the directory belongs to cluster {name:?}: use another directory"),
            Self::Node(name) => write!(f, "the directory belongs to node {name:?}: use another directory"),
            Self::Names(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MarkError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> (Names, Record, StoredMark) {
        let names = Names::new(["a", "b"]).unwrap();
        let record = Record { epoch: 3, leader: Node(1), follower: Some(Node(0)), joiner: None, nonce: 7 };
        let record_text = StoredRecord::new(&record, &names);
        let stored = StoredMark { cluster: "c".into(), node: "a".into(), record: record_text, boot_id: "x".into() };
        (names, record, stored)
    }

    #[test]
    fn a_mark_survives_its_text_form() {
        let (mut names, record, stored) = mark();
        let text = serde_json::to_string(&stored).unwrap();
        let expected =
            r#"{"cluster":"c","node":"a","record":{"epoch":3,"leader":"b","follower":"a","nonce":7},"boot_id":"x"}"#;
        assert_eq!(text, expected);
        let read: StoredMark = serde_json::from_str(&text).unwrap();
        assert_eq!(read.mark("c", "a", "x", &mut names), Ok(Mark { record, is_same_boot: true }));
    }

    #[test]
    fn a_mark_of_another_boot_says_so() {
        let (mut names, _, stored) = mark();
        assert!(!stored.mark("c", "a", "y", &mut names).unwrap().is_same_boot);
    }

    #[test]
    fn a_foreign_mark_is_refused() {
        let (mut names, _, stored) = mark();
        assert!(matches!(stored.mark("d", "a", "x", &mut names), Err(MarkError::Cluster(_))));
        assert!(matches!(stored.mark("c", "b", "x", &mut names), Err(MarkError::Node(_))));
    }

    #[test]
    fn copies_are_two_while_there_is_a_follower() {
        let (_, record, _) = mark();
        assert_eq!(record.copies(), 2);
        assert_eq!(Record { follower: None, joiner: Some(Node(0)), ..record }.copies(), 1);
    }
}
