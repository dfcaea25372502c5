//! Connections between nodes on the cluster port: one JSON object a line.
//!
//! The node that connects sends a [`Hello`], and the other node answers with a [`HelloAnswer`]. A `log` or `state` connection
//! then belongs to the mirror, and a `link` carries [`FromLeader`] and [`FromStandby`]. Nodes ignore keys and messages that
//! they do not know: newer versions may send them.

mod formats;
pub(crate) mod lines;
pub(crate) mod listen;
pub(crate) mod secure;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod unclassified;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout_at};

pub(crate) use formats::{Formats, Readable};
use lines::{LineError, LinkReader, LinkWriter};
use secure::NodeTls;
use stream::NodeStream;
use tenbin_cluster::StoredRecord;

/// Version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;
/// Longest first line, in bytes. Only known nodes may send longer lines, up to [`lines::LINE_BYTES_MAX`].
const HELLO_BYTES_MAX: usize = 4096;

/// First line of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    /// Name of the cluster; empty = any, for `status` alone.
    pub(crate) cluster: String,
    /// Name of the node that connects.
    pub(crate) node: String,
    pub(crate) kind: HelloKind,
    /// Highest epoch that the node knows. Of connections of the mirror: the session of the copy.
    pub(crate) epoch: u64,
    /// False is a promise: the node never takes over in this epoch.
    #[serde(default = "yes")]
    pub(crate) may_take_over: bool,
    /// False if the node could not lead with a copy: it gets none.
    #[serde(default = "yes")]
    pub(crate) may_join: bool,
    /// True if the node has had no link to this leader before. Of links alone.
    #[serde(default)]
    pub(crate) is_first: bool,
    /// Number of the node's data directory, which outlives its process; 0 = not told.
    #[serde(default)]
    pub(crate) directory: u64,
    /// Number of the process; 0 = not told.
    #[serde(default)]
    pub(crate) process: u64,
    /// Version of the program.
    pub(crate) version: String,
    /// The node that is to lead, for `switch`; `None` = the follower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    /// Formats that the node reads, if it is copied to.
    #[serde(default)]
    pub(crate) reads: Readable,
    /// Ports for clients, by the names of the listeners. Of links alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) ports: BTreeMap<String, u16>,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_yes(value: &bool) -> bool {
    *value
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelloKind {
    /// Beacons and their answers.
    Link,
    /// The mirror of the log.
    Log,
    /// The mirror of the state.
    State,
    /// One answer with the node's status.
    Status,
    /// The node that leads is to hand over. One answer, once another node leads.
    Switch,
    /// A purpose of a newer version.
    #[serde(other)]
    Unknown,
}

/// Answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum HelloAnswer {
    Welcome(Welcome),
    /// The connection ends.
    Refused {
        reason: String,
        /// The node does not lead. It accepts the same hello when it does.
        #[serde(default)]
        not_leading: bool,
        /// Another process with the name of the node is linked.
        #[serde(default)]
        namesake: bool,
        /// The record that the answering node knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<StoredRecord>,
    },
    /// Answer to [`HelloKind::Status`].
    Status {
        status: Value,
    },
    /// Answer to [`HelloKind::Switch`]: the command is carried out. The text is for the operator.
    Done {
        message: String,
    },
}

/// Acceptance of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Name of the answering node.
    pub(crate) node: String,
    /// Version of its program.
    pub(crate) version: String,
    /// The record that it knows.
    pub(crate) record: Option<StoredRecord>,
    /// Formats that it writes.
    #[serde(default)]
    pub(crate) formats: Formats,
    /// URL of its admin HTTP, if other machines reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<String>,
}

/// Message of the leader on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromLeader {
    Beacon {
        /// Grows with each beacon of the link.
        number: u64,
        record: StoredRecord,
        /// The leader's clock: time since 1970, in milliseconds.
        #[serde(default)]
        clock_ms: u64,
        /// Whether the leader takes new clients.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        takes_clients: bool,
    },
    /// The node hands over: the follower may take over at once. It acts no more unless it sends a later beacon that the
    /// follower answers.
    Handover { record: StoredRecord },
    /// The node does not act any more. The link ends.
    Farewell,
    /// A message of a newer version.
    #[serde(other)]
    Unknown,
}

/// Message of a standby on a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromStandby {
    /// Answer to a beacon: it promises the lease.
    Answer {
        /// Number of the beacon.
        number: u64,
        /// Whether the standby's mark says that it is the follower.
        #[serde(default)]
        is_marked: bool,
        /// The standby's clock: time since 1970, in milliseconds.
        #[serde(default)]
        clock_ms: u64,
    },
    /// The standby waits for the leader to mark a moment for a backup of the copy.
    Moment { number: u64 },
    /// The process lives.
    Here,
    /// A message of a newer version.
    #[serde(other)]
    Unknown,
}

impl HelloAnswer {
    /// A refusal that stays until an operator changes something.
    pub(crate) fn refused(reason: String) -> Self {
        Self::Refused { reason, not_leading: false, namesake: false, record: None }
    }
}

/// Why a connection to a node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is no connection. [`io::ErrorKind::ConnectionRefused`] tells that nothing listens there, or a firewall says so.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, io::Error),
    #[error("TLS with {0} fails: {1}")]
    Tls(String, io::Error),
    /// The connection ended before the answer.
    #[error("{0}: {1}")]
    Line(String, LineError),
    #[error("{address} refuses: {reason}")]
    Refused { address: String, reason: String, not_leading: bool, namesake: bool, record: Option<Box<StoredRecord>> },
    #[error("{0}: unexpected answer to the hello")]
    Unexpected(String),
}

impl DialError {
    /// Whether a next attempt is likely to fail alike: something listens there, and does not accept this node with any
    /// record. Reasons are certificates, TLS at one of both, names, addresses.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::Connect(..) => false,
            Self::Refused { not_leading, .. } => !not_leading,
            Self::Tls(..) | Self::Line(..) | Self::Unexpected(_) => true,
        }
    }
}

/// Connects to the cluster port `address` and says hello. No byte behind the answer is read. All of it takes `limit` at most.
///
/// # Errors
/// There is no connection, no answer in time, or the node refuses.
pub(crate) async fn dial(
    address: &str,
    tls: Option<&NodeTls>,
    hello: &Hello,
    limit: Duration,
) -> Result<(NodeStream, Welcome), DialError> {
    match ask(address, tls, hello, limit).await? {
        (stream, HelloAnswer::Welcome(welcome)) => Ok((stream, welcome)),
        (_, answer) => Err(no_answer(address, answer)),
    }
}

/// Asks the node at the cluster port `address` for its status.
///
/// # Errors
/// As [`dial`].
pub(crate) async fn ask_status(address: &str, tls: Option<&NodeTls>, limit: Duration) -> Result<Value, DialError> {
    match ask(address, tls, &question(HelloKind::Status, "", "", None), limit).await? {
        (_, HelloAnswer::Status { status }) => Ok(status),
        (_, answer) => Err(no_answer(address, answer)),
    }
}

/// Asks the node at the cluster port `address` to let the follower lead. `node`: the node that asks; empty = a command,
/// which a node that does not lead passes on to the leader. Returns a text for the operator.
///
/// # Errors
/// As [`dial`].
pub(crate) async fn ask_switch(
    address: &str,
    tls: Option<&NodeTls>,
    cluster: &str,
    node: &str,
    to: Option<String>,
    limit: Duration,
) -> Result<String, DialError> {
    match ask(address, tls, &question(HelloKind::Switch, cluster, node, to), limit).await? {
        (_, HelloAnswer::Done { message }) => Ok(message),
        (_, answer) => Err(no_answer(address, answer)),
    }
}

/// A hello without the identity of a process.
pub(crate) fn question(kind: HelloKind, cluster: &str, node: &str, to: Option<String>) -> Hello {
    Hello {
        protocol: PROTOCOL,
        cluster: cluster.to_owned(),
        node: node.to_owned(),
        kind,
        epoch: 0,
        may_take_over: true,
        may_join: true,
        is_first: false,
        directory: 0,
        process: 0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        to,
        reads: Readable::OWN,
        ports: BTreeMap::new(),
    }
}

fn no_answer(address: &str, answer: HelloAnswer) -> DialError {
    match answer {
        HelloAnswer::Refused { reason, not_leading, namesake, record } => {
            let (address, record) = (address.to_owned(), record.map(Box::new));
            DialError::Refused { address, reason, not_leading, namesake, record }
        }
        _ => DialError::Unexpected(address.to_owned()),
    }
}

async fn ask(
    address: &str,
    tls: Option<&NodeTls>,
    hello: &Hello,
    limit: Duration,
) -> Result<(NodeStream, HelloAnswer), DialError> {
    let until = Instant::now() + limit;
    let connected = timeout_at(until, stream::connect(address)).await.map_err(io::Error::from).flatten();
    let stream = connected.map_err(|error| DialError::Connect(address.to_owned(), error))?;
    let secured = timeout_at(until, NodeStream::begin(address, stream, tls)).await.map_err(io::Error::from).flatten();
    let mut stream = secured.map_err(|error| DialError::Tls(address.to_owned(), error))?;
    let answered = timeout_at(until, async {
        lines::write(&mut stream, hello).await?;
        // A status is longer than a hello.
        lines::read_exact_line(&mut stream, lines::LINE_BYTES_MAX).await
    });
    let answer = answered.await.unwrap_or(Err(LineError::Silent(limit)));
    answer.map(|answer| (stream, answer)).map_err(|error| DialError::Line(address.to_owned(), error))
}

/// Splits a connection of kind [`HelloKind::Link`] behind its hello and answer.
pub(crate) fn open<M: DeserializeOwned>(
    stream: NodeStream,
) -> (LinkReader<ReadHalf<NodeStream>, M>, LinkWriter<WriteHalf<NodeStream>>) {
    let (read, write) = tokio::io::split(stream);
    (LinkReader::new(read), LinkWriter::new(write))
}
