//! Calls of the controller to a node, and its answers: lines of JSON.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tenbin_loadgen::run::Secret;

use crate::groups::Limit;
use crate::line::{Line, Programs};
use crate::plan::Plan;
use crate::runtime::LinkFault;

/// A call of the controller. All but [`Call::Alive`] are answered by their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Numbered {
    pub(super) id: u64,
    pub(super) call: Call,
}

/// Calls of the controller.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Call {
    /// Shows that the controller is alive. The answer shows the same of the node.
    Alive,
    /// Starts the lab with the machines of this node.
    Start {
        plan: Box<Plan>,
        node: String,
        #[serde(serialize_with = "exposed")]
        token: Secret<String>,
        /// Hash of the broker, if the plan starts it.
        tenbin: Option<String>,
    },
    /// Listens for the trunks of these nodes; answers with the port.
    Listen { address: IpAddr, peers: Vec<String> },
    /// Opens the trunk to a node that listens.
    Join { peer: String, address: SocketAddr },
    /// Waits for the trunks of [`Call::Listen`].
    AwaitPeers,
    /// Writes a part of a file below the node's working directory. The first one makes the file anew.
    Write { path: PathBuf, from: u64, content: String, mode: Option<u32> },
    /// Asks for the files in the results of an instance or client: names and sizes.
    Results { machine: String },
    /// Asks for a part of a file below the node's working directory, as [`text_of`] makes it. An empty one is the end.
    Read { path: PathBuf, from: u64 },
    /// Starts a process with the controller's number. With a stream, the answer is the socket to attach to.
    Spawn { process: u64, machine: String, line: Line, log: usize, with_stream: bool },
    /// Sends a signal to a process.
    Signal { process: u64, signal: Signal },
    /// Asks for the usage of a process with its descendants.
    Usage { process: u64 },
    /// Runs a command to its end.
    Exec { machine: String, line: Line },
    /// Adds a fault to links whose senders are of this node.
    Impair { links: Vec<(String, String)>, shape: LinkFault, time: Option<Duration> },
    /// Ends a fault of links.
    Lift { fault: u64 },
    /// Limits processor time or memory of an instance or client.
    Limit { machine: String, limit: Limit },
    /// Writes the limit back that held before.
    EndLimit { number: u64 },
    /// Cuts the power of machines.
    PowerCut { machines: Vec<String> },
    /// Asks for the counters of all links.
    Links,
    /// Undoes everything; answers with the failures.
    End,
}

/// Writes a secret itself, for the node.
fn exposed<S: Serializer>(secret: &Secret<String>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.expose().serialize(serializer)
}

/// Signals to a process; see [`Proc`](crate::runtime::Proc).
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Signal {
    Terminate,
    Kill,
    Stop(Option<Duration>),
    Resume,
}

/// Lines of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Answer to a call.
    Done { id: u64, value: Value },
    /// The call failed.
    Failed { id: u64, reason: String },
    /// More of a log, as [`text_of`] makes it.
    Output { log: usize, text: String },
    /// A process ended.
    Ended { process: u64, how: String },
    /// A part of the network is lost.
    Lost { reason: String },
}

/// Answer to [`Call::Start`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Started {
    /// Programs on the node.
    pub(super) programs: Programs,
    /// Processors of the node.
    pub(super) processors: u32,
    /// Machines of the node.
    pub(super) machines: Vec<Directories>,
}

/// Directories of a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Directories {
    pub(super) machine: String,
    pub(super) data: PathBuf,
    pub(super) files: PathBuf,
    pub(super) results: PathBuf,
}

/// Writes one line of JSON at once.
pub(super) fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Bytes as text: each is the character of its number. Logs may contain anything, and may be cut anywhere.
pub(super) fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes of [`text_of`]. Other characters become question marks.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|character| u8::try_from(character).unwrap_or(b'?')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_pass_as_one_line() {
        let bytes: Vec<u8> = (0..=255).chain("größer\n".bytes()).collect();
        let mut line = Vec::new();
        write_line(&mut line, &Said::Output { log: 3, text: text_of(&bytes) }).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let said: Said = serde_json::from_slice(&line).unwrap();
        let Said::Output { log: 3, text } = said else { panic!("{said:?}") };
        assert_eq!(bytes_of(&text), bytes);
    }
}
