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
    /// Number of the leader's data directory, see [`Settings::directory`](crate::Settings::directory); 0: it is not told, as
    /// in records of earlier versions.
    pub leader_directory: u64,
    /// The same, of the follower or of the joiner.
    pub copy_directory: u64,
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

    /// True if this is the same record as `other` with numbers of directories, which a process of an earlier version has dropped
    /// in `other`.
    pub(crate) fn adds_directories_to(&self, other: Self) -> bool {
        *self != other && Self { leader_directory: 0, copy_directory: 0, ..*self } == other
    }

    /// The record for the mark of a node whose directory has no copy. It names the node as no leader and follower. `None`: no
    /// other node has one.
    pub(crate) fn without_copy_of(&self, node: Node) -> Option<Self> {
        let leader = Some(self.leader).filter(|leader| *leader != node).or(self.follower)?;
        let follower = self.follower.filter(|follower| *follower != node && *follower != leader);
        let leader_directory = if leader == self.leader { self.leader_directory } else { self.copy_directory };
        Some(Self { leader, follower, leader_directory, ..*self })
    }

    /// Role of the node with this data directory. Another process with the same name has another directory.
    pub fn role_in(&self, node: Node, directory: u64) -> Role {
        let (role, named) = (self.role_of(node), self.directory_of(node));
        if named == directory || named == 0 || directory == 0 { role } else { Role::Spare }
    }

    /// Directory of the node with this name; 0: it is not told, or the node has no role.
    pub fn directory_of(&self, node: Node) -> u64 {
        match self.role_of(node) {
            Role::Leader => self.leader_directory,
            Role::Follower | Role::Joiner => self.copy_directory,
            Role::Spare => 0,
        }
    }

    /// Role of a node by its name alone. The mark of a directory tells of this directory.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// See [`Record::leader_directory`].
    #[serde(default, skip_serializing_if = "is_untold")]
    pub leader_directory: u64,
    /// See [`Record::copy_directory`].
    #[serde(default, skip_serializing_if = "is_untold")]
    pub copy_directory: u64,
}

fn is_untold(directory: &u64) -> bool {
    *directory == 0
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
            leader_directory: record.leader_directory,
            copy_directory: record.copy_directory,
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
            leader_directory: self.leader_directory,
            copy_directory: self.copy_directory,
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
        let record = Record {
            epoch: 3,
            leader: Node(1),
            follower: Some(Node(0)),
            joiner: None,
            nonce: 7,
            leader_directory: 11,
            copy_directory: 12,
        };
        let record_text = StoredRecord::new(&record, &names);
        let stored = StoredMark { cluster: "c".into(), node: "a".into(), record: record_text, boot_id: "x".into() };
        (names, record, stored)
    }

    #[test]
    fn a_mark_survives_its_text_form() {
        let (mut names, record, stored) = mark();
        let text = serde_json::to_string(&stored).unwrap();
        let expected = concat!(
            r#"{"cluster":"c","node":"a","record":{"epoch":3,"leader":"b","follower":"a","nonce":7,"#,
            r#""leader_directory":11,"copy_directory":12},"boot_id":"x"}"#
        );
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
    fn a_node_without_a_copy_is_no_leader_or_follower() {
        let (_, record, _) = mark();
        assert_eq!(record.without_copy_of(Node(1)).map(|record| record.role_of(Node(1))), Some(Role::Spare));
        assert_eq!(record.without_copy_of(Node(0)).map(|record| record.role_of(Node(0))), Some(Role::Spare));
        assert_eq!(record.without_copy_of(Node(2)), Some(record));
        assert_eq!(Record { follower: None, ..record }.without_copy_of(Node(1)), None);
    }

    #[test]
    fn record_names_directories() {
        let (mut names, record, _) = mark();
        let roles = [(1, 11), (1, 12), (0, 12), (0, 11), (2, 11)];
        let roles = roles.map(|(node, directory)| record.role_in(Node(node), directory));
        assert_eq!(roles, [Role::Leader, Role::Spare, Role::Follower, Role::Spare, Role::Spare]);
        let swapped = record.without_copy_of(Node(1)).unwrap();
        assert_eq!((swapped.leader, swapped.leader_directory), (Node(0), 12));
        // A record of an earlier version names no directory, and keeps its form.
        let text = r#"{"epoch":3,"leader":"b","follower":"a","nonce":7}"#;
        let stored: StoredRecord = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&stored).unwrap(), text);
        let old = stored.record(&mut names).unwrap();
        assert_eq!(old.role_in(Node(1), 12), Role::Leader);
    }

    #[test]
    fn copies_are_two_while_there_is_a_follower() {
        let (_, record, _) = mark();
        assert_eq!(record.copies(), 2);
        assert_eq!(Record { follower: None, joiner: Some(Node(0)), ..record }.copies(), 1);
    }
}
