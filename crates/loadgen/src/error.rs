use std::path::PathBuf;
use std::process::ExitStatus;
use std::{fmt, io};

use tenbin_kit::programs::NotFound;
use tenbin_simulator::scenario::ScenarioError;

/// Why a run gave no result. Each error reads as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum LoadgenError {
    /// Arguments that contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// The runtime could not be built.
    #[error("cannot start the runtime: {0}")]
    Runtime(#[source] io::Error),
    /// A broker program could not be started.
    #[error("cannot start {program}: {source}")]
    Start { program: PathBuf, source: io::Error },
    /// This project's broker is not installed.
    #[error(transparent)]
    NoBroker(#[from] NotFound),
    /// A started broker did not report its address, or never accepted a connection.
    #[error("{program} does not listen after 10 s{}", in_one_line(.said))]
    NotListening { program: PathBuf, said: String },
    /// A started broker ended unexpectedly.
    #[error("the broker ended by itself ({status}){}", in_one_line(.said))]
    BrokerExited { status: ExitStatus, said: String },
    /// A worker's program did not report its subscription.
    #[error("{worker}: {program} has not said that it is ready")]
    NotReady { worker: String, program: PathBuf },
    /// A scenario cannot be used.
    #[error("{0}")]
    Scenario(#[source] ScenarioError),
    /// No connection to the broker.
    #[error("cannot connect to {address}: {reason}{}", no_broker(.reason))]
    Connect { address: String, reason: String },
    /// A connection ended early.
    #[error("{client} lost its connection: {reason}")]
    ConnectionLost { client: String, reason: String },
    /// A client's program failed.
    #[error("{client}: {reason}")]
    Program { client: String, reason: String },
    /// An agent cannot be reached, refuses, has failed or is lost; or cannot listen.
    #[error("agent {address}: {reason}")]
    Agent { address: String, reason: String },
    /// An NTP server gives no time.
    #[error("NTP server {server}: {reason}")]
    Ntp { server: String, reason: String },
    /// A file cannot be read, or has the wrong content.
    #[error("cannot use {path}: {reason}")]
    Unusable { path: PathBuf, reason: String },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    /// Assertions on the run failed. The failed ones have been printed.
    #[error("{}", assertions(.failed, .of))]
    Assertions { failed: usize, of: usize },
    /// The requested bound does not hold at any publishing rate.
    #[error("{bound} does not hold at any rate that was tried")]
    NoRate { bound: String },
    /// Results could not be printed.
    #[error("cannot print the results: {0}")]
    Print(#[source] io::Error),
    /// Stopped by a signal.
    #[error("interrupted")]
    Interrupted,
}

impl LoadgenError {
    /// No connection to `address`, because of `reason`.
    pub(crate) fn connect(address: &str, reason: impl fmt::Display) -> Self {
        Self::Connect { address: address.to_owned(), reason: reason.to_string() }
    }

    /// The agent at `address` cannot go on, because of `reason`.
    pub(crate) fn agent(address: &str, reason: String) -> Self {
        Self::Agent { address: address.to_owned(), reason }
    }

    /// The connection of `client` ended, because of `reason`.
    pub(crate) fn lost(client: &str, reason: impl fmt::Display) -> Self {
        Self::ConnectionLost { client: client.to_owned(), reason: reason.to_string() }
    }
}

/// Advice after a refused connection.
fn no_broker(reason: &str) -> &'static str {
    let is_refused = reason.contains("refused (os error");
    if is_refused { "; no broker listens there: `tenbin broker` starts one on this machine" } else { "" }
}

/// A program's last output, on the same line as the error; empty if there was none.
fn in_one_line(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {}", said.replace('\n', " | ")) }
}

fn assertions(failed: &usize, of: &usize) -> String {
    if *of == 1 { "the assertion failed".to_owned() } else { format!("{failed} of {of} assertions failed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_connection_says_how_to_start_a_broker() {
        let refused = io::Error::from_raw_os_error(111);
        let error = LoadgenError::connect("127.0.0.1:1883", format_args!("pub-0: {refused}")).to_string();
        assert!(error.starts_with("cannot connect to 127.0.0.1:1883: pub-0: ") && error.contains("`tenbin broker`"));
        assert!(!LoadgenError::connect("h", "no answer within 10 s").to_string().contains("tenbin broker"));
    }
}
