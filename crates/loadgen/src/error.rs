use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::{error::Error, fmt};

use tenbin_simulator::scenario::ScenarioError;

/// Why a run gave no result. Each error reads as one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadgenError {
    /// Arguments that contradict each other.
    Arguments(String),
    /// The runtime could not be built.
    Runtime(io::Error),
    /// A broker program could not be started.
    Start {
        /// The program.
        program: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// A started broker did not report its address, or never accepted a connection.
    NotListening {
        /// The program.
        program: PathBuf,
        /// Its last output.
        said: String,
    },
    /// A started broker ended unexpectedly.
    BrokerExited {
        /// Exit status.
        status: ExitStatus,
        /// Its last output.
        said: String,
    },
    /// A worker's program did not report its subscription.
    NotReady {
        /// Name of the worker.
        worker: String,
        /// Its program.
        program: PathBuf,
    },
    /// A scenario cannot be used.
    Scenario(ScenarioError),
    /// No connection to the broker.
    Connect {
        /// Address of the broker.
        address: String,
        /// Reason.
        reason: String,
    },
    /// A connection ended early.
    ConnectionLost {
        /// Client Identifier or name of the client.
        client: String,
        /// Reason.
        reason: String,
    },
    /// An agent cannot be reached, refuses, has failed or is lost; or cannot listen.
    Agent {
        /// Address of the agent.
        address: String,
        /// Reason.
        reason: String,
    },
    /// An NTP server gives no time.
    Ntp {
        /// Address of the server.
        server: String,
        /// Reason.
        reason: String,
    },
    /// A file cannot be read, or has the wrong content.
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// A file could not be written.
    Write {
        /// Path of the file.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// Assertions on the run failed. The failed ones have been printed.
    Assertions {
        /// Number of failed assertions.
        failed: usize,
        /// Number of all assertions.
        of: usize,
    },
    /// The requested bound does not hold at any publishing rate.
    NoRate {
        /// The requested bound.
        bound: String,
    },
    /// Results could not be printed.
    Print(io::Error),
    /// Stopped by a signal.
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

impl fmt::Display for LoadgenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(what) => f.write_str(what),
            Self::Runtime(source) => write!(f, "cannot start the runtime: {source}"),
            Self::Start { program, source } => write!(f, "cannot start {}: {source}", program.display()),
            Self::NotListening { program, said } => {
                write!(f, "{} does not listen after 10 s{}", program.display(), Said(said))
            }
            Self::BrokerExited { status, said } => write!(f, "the broker ended by itself ({status}){}", Said(said)),
            Self::NotReady { worker, program } => {
                write!(f, "{worker}: {} has not said that it is ready", program.display())
            }
            Self::Scenario(error) => error.fmt(f),
            Self::Connect { address, reason } => {
                write!(f, "cannot connect to {address}: {reason}{}", no_broker(reason))
            }
            Self::ConnectionLost { client, reason } => write!(f, "{client} lost its connection: {reason}"),
            Self::Agent { address, reason } => write!(f, "agent {address}: {reason}"),
            Self::Ntp { server, reason } => write!(f, "NTP server {server}: {reason}"),
            Self::Unusable { path, reason } => write!(f, "cannot use {}: {reason}", path.display()),
            Self::Write { path, source } => write!(f, "cannot write {}: {source}", path.display()),
            Self::Assertions { failed, of: 1 } if *failed == 1 => f.write_str("the assertion failed"),
            Self::Assertions { failed, of } => write!(f, "{failed} of {of} assertions failed"),
            Self::NoRate { bound } => write!(f, "{bound} does not hold at any rate that was tried"),
            Self::Print(source) => write!(f, "cannot print the results: {source}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl Error for LoadgenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Runtime(source) | Self::Start { source, .. } | Self::Write { source, .. } | Self::Print(source) => {
                Some(source)
            }
            Self::Scenario(error) => Some(error),
            _ => None,
        }
    }
}

/// Advice after a refused connection.
fn no_broker(reason: &str) -> &'static str {
    let is_refused = reason.contains("refused (os error");
    if is_refused { "; no broker listens there: `tenbin broker` starts one on this machine" } else { "" }
}

/// A program's last output on the same line; empty if there was none.
struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0.replace('\n', " | ")) }
    }
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
