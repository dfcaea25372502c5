//! Connections between nodes on the cluster port: one JSON object a line.
//!
//! The node that connects sends a [`Hello`], and the other node answers with a [`HelloAnswer`]. A `log` or `state` connection
//! then belongs to the mirror, and a `link` carries [`FromLeader`] and [`FromStandby`]. Nodes ignore keys and messages that
//! they do not know: newer versions may send them.

pub(crate) mod lines;
pub(crate) mod listen;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout_at};

use lines::{LineError, LinkReader, LinkWriter};
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
    /// Version of the program.
    pub(crate) version: String,
}

fn yes() -> bool {
    true
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
        /// The record that the answering node knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<StoredRecord>,
    },
    /// Answer to [`HelloKind::Status`].
    Status {
        status: Value,
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
    },
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
    /// A message of a newer version.
    #[serde(other)]
    Unknown,
}

/// Why a connection to a node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is no connection. [`io::ErrorKind::ConnectionRefused`] tells that nothing listens there, or a firewall says so.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, io::Error),
    /// The connection ended before the answer.
    #[error("{0}: {1}")]
    Line(String, LineError),
    #[error("{address} refuses: {reason}")]
    Refused { address: String, reason: String, record: Option<Box<StoredRecord>> },
    #[error("{0}: unexpected answer to the hello")]
    Unexpected(String),
}

/// Connects to the cluster port `address` and says hello. No byte behind the answer is read. All of it takes `limit` at most.
///
/// # Errors
/// There is no connection, no answer in time, or the node refuses.
pub(crate) async fn dial(address: &str, hello: &Hello, limit: Duration) -> Result<(TcpStream, Welcome), DialError> {
    match ask(address, hello, limit).await? {
        (stream, HelloAnswer::Welcome(welcome)) => Ok((stream, welcome)),
        (_, HelloAnswer::Refused { reason, record }) => {
            Err(DialError::Refused { address: address.to_owned(), reason, record: record.map(Box::new) })
        }
        (_, HelloAnswer::Status { .. }) => Err(DialError::Unexpected(address.to_owned())),
    }
}

/// Asks the node at the cluster port `address` for its status.
///
/// # Errors
/// As [`dial`].
pub(crate) async fn ask_status(address: &str, limit: Duration) -> Result<Value, DialError> {
    let hello = Hello {
        protocol: PROTOCOL,
        cluster: String::new(),
        node: String::new(),
        kind: HelloKind::Status,
        epoch: 0,
        may_take_over: true,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    match ask(address, &hello, limit).await? {
        (_, HelloAnswer::Status { status }) => Ok(status),
        (_, HelloAnswer::Refused { reason, record }) => {
            Err(DialError::Refused { address: address.to_owned(), reason, record: record.map(Box::new) })
        }
        (_, HelloAnswer::Welcome(_)) => Err(DialError::Unexpected(address.to_owned())),
    }
}

async fn ask(address: &str, hello: &Hello, limit: Duration) -> Result<(TcpStream, HelloAnswer), DialError> {
    let until = Instant::now() + limit;
    let connected = timeout_at(until, async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    let connected = connected.await.map_err(io::Error::from).flatten();
    let mut stream = connected.map_err(|error| DialError::Connect(address.to_owned(), error))?;
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
    stream: TcpStream,
) -> (LinkReader<OwnedReadHalf, M>, LinkWriter<OwnedWriteHalf>) {
    let (read, write) = stream.into_split();
    (LinkReader::new(read), LinkWriter::new(write))
}
