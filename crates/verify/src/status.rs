//! Status of the nodes of a pair or cluster of Tenbin. Each node tells it at a unix socket in its data directory.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeRole {
    /// It runs the broker.
    Leader,
    /// It has everything acknowledged, and may take over.
    Follower,
    /// It is being copied to, and may not take over.
    Joiner,
    /// It only relays.
    Spare,
    /// A role of a later version, or none.
    #[serde(other)]
    Other,
}

impl NodeRole {
    /// Name in files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Joiner => "joiner",
            Self::Spare => "spare",
            Self::Other => "other",
        }
    }
}

/// Answer of a node. Keys that are not here are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Its role.
    pub(crate) role: NodeRole,
    /// Name of the leader, if the node knows one.
    #[serde(default)]
    pub(crate) leader: Option<String>,
    /// Epoch of the record that the node knows.
    #[serde(default)]
    pub(crate) epoch: u64,
    /// Copies of the data: 2 while the leader has a follower.
    #[serde(default)]
    pub(crate) copies: u32,
    /// Whether it serves clients: a leader whose lease has ended does not. `None` if the node does not tell.
    #[serde(default)]
    pub(crate) serving: Option<bool>,
}

impl Status {
    /// Reads the line of a node, or a status as this program writes it.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut answer: serde_json::Value = serde_json::from_str(line).ok()?;
        if let Some(status) = answer.get_mut("status").map(serde_json::Value::take) {
            answer = status;
        }
        // The record has the epoch and the leader.
        for key in ["epoch", "leader"] {
            if let Some(value) = answer.get("record").and_then(|record| record.get(key)).cloned() {
                answer[key] = value;
            }
        }
        serde_json::from_value(answer).ok()
    }

    /// True for a leader that serves clients.
    pub(crate) fn serves(&self) -> bool {
        self.role == NodeRole::Leader && self.serving.unwrap_or(true)
    }
}

/// Most time for one answer. A stopped node gives none.
const PATIENCE: Duration = Duration::from_millis(200);

/// Question to a node.
const QUESTION: &[u8] = b"{\"command\":\"status\"}\n";

/// The line with which the node at `socket` answers now.
///
/// # Errors
/// Nothing listens there, or the node does not answer in time.
pub(crate) fn ask(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(QUESTION)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Line for a node that does not answer.
const SILENCE: &str = "-\n";

/// Asks the node at `socket` once for each line of `input`; writes its answer, or `-`, to `out`.
///
/// # Errors
/// Those of `input` and `out`.
pub(crate) fn serve(socket: &Path, input: impl BufRead, mut out: impl Write) -> io::Result<()> {
    for line in input.lines() {
        line?;
        out.write_all(ask(socket).unwrap_or_else(|_| SILENCE.to_owned()).as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// A node that gives `answers` in turn; `None` closes the connection without an answer.
    pub(crate) fn node(socket: &Path, answers: &[Option<&'static str>]) -> thread::JoinHandle<()> {
        let (listener, answers) = (UnixListener::bind(socket).unwrap(), answers.to_vec());
        thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                assert_eq!(question.as_bytes(), QUESTION);
                if let Some(answer) = answer {
                    writeln!(&stream, "{answer}").unwrap();
                }
            }
        })
    }

    const LEADER: &str = concat!(
        r#"{"type":"status","status":{"role":"leader","serving":true,"copies":2,"since":5,"#,
        r#""record":{"leader":"b-1","epoch":3,"nonce":1}}}"#
    );

    #[test]
    fn a_node_tells_role_epoch_and_copies() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cluster.sock");
        assert!(ask(&socket).is_err(), "nobody listens");
        let node = node(&socket, &[Some(LEADER), None]);
        let status = Status::parse(&ask(&socket).unwrap()).unwrap();
        assert_eq!((status.role, status.leader.as_deref(), status.epoch), (NodeRole::Leader, Some("b-1"), 3));
        assert!(status.copies == 2 && status.serves());
        assert!(ask(&socket).is_err(), "no answer");
        node.join().unwrap();
    }

    #[test]
    fn a_leader_without_lease_does_not_serve() {
        let of = |text: &str| Status::parse(text).map(|status| (status.serves(), status.role));
        assert_eq!(of(r#"{"role":"leader","epoch":3,"serving":false}"#), Some((false, NodeRole::Leader)));
        assert_eq!(of(r#"{"role":"follower","leader":null}"#), Some((false, NodeRole::Follower)));
        assert_eq!(of(r#"{"role":"sealed"}"#), Some((false, NodeRole::Other)));
        assert_eq!(of("-"), None);
    }

    #[test]
    fn each_line_of_input_asks_once() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cluster.sock");
        let node = node(&socket, &[Some(LEADER), None, Some(LEADER)]);
        let mut out = Vec::new();
        serve(&socket, &b"\n\n\n"[..], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{LEADER}\n-\n{LEADER}\n"));
        node.join().unwrap();
    }
}
