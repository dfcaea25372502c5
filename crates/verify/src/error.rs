//! Errors of the commands.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::template::Mistakes;

/// Error of the command, with its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {error}{}", path.display(), hint(suggestion.as_deref()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Reason.
        error: io::Error,
        /// Name of a ready verification that is meant.
        suggestion: Option<String>,
    },
    /// A template has mistakes.
    #[error(transparent)]
    Mistakes(#[from] Mistakes),
    /// A file has no such variant.
    #[error("{file} has no variant {name:?}{}", hint(suggestion.as_deref()))]
    UnknownVariant {
        /// The file.
        file: String,
        /// Name of the variant.
        name: String,
        /// Names that it has.
        suggestion: Option<String>,
    },
    /// A file with recorded outcomes has a mistake.
    #[error("{}: {reason}", path.display())]
    Recorded {
        /// The file.
        path: PathBuf,
        /// The mistake, with its place.
        reason: String,
    },
    /// Outcomes of a ready verification have no file to go to.
    #[error("--record wants one file by its path, as in verifications/{0}.yaml")]
    NoFileToRecord(String),
    /// A file of the results cannot be written or read.
    #[error("results: {}: {error}", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// Reason.
        error: io::Error,
    },
    /// A node is not among the hosts that the command line allows.
    #[error("node {node} is another host; allow it with --allow-hosts {address}")]
    NotAllowed {
        /// Name of the node.
        node: String,
        /// Its address.
        address: IpAddr,
    },
    /// The remote end of ssh cannot go on.
    #[error("node: {0}")]
    Node(String),
    /// Clients of a run cannot go on.
    #[error("{0}")]
    Agent(String),
    /// A system did not say which instance leads.
    #[error("no leader known: {0}")]
    Probe(String),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

pub(crate) fn hint(text: Option<&str>) -> String {
    text.map_or(String::new(), |text| format!("; {text}"))
}

impl Error {
    /// Exit code: 2 for unreadable files and arguments, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Output(_) | Self::Results { .. } | Self::Probe(_) | Self::Node(_) | Self::Agent(_) => 1,
            Self::Unreadable { .. }
            | Self::Mistakes(_)
            | Self::UnknownVariant { .. }
            | Self::NotAllowed { .. }
            | Self::Recorded { .. }
            | Self::NoFileToRecord(_) => 2,
        }
    }
}
