use std::path::PathBuf;
use std::{error::Error, fmt, io};

use tenbin_client::{ClientError, DisconnectReason, ReasonCode};

/// Reason why nothing was shown. Each displays as one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExplainError {
    /// The password file could not be read.
    PasswordFile(PathBuf, io::Error),
    /// The broker could not be reached, or refused.
    Client(ClientError),
    /// The user may not read the reports on the group.
    NotAuthorized {
        /// The subscription that was refused.
        filter: String,
    },
    /// The broker refused the subscription for another reason.
    Refused(ReasonCode),
    /// The broker is Tenbin and has reported no such group.
    NoSuchGroup {
        /// The requested group, as a shared subscription.
        group: String,
    },
    /// The broker is not Tenbin.
    NotTenbin {
        /// Version that it reports.
        version: String,
    },
    /// The broker reported nothing at all.
    Nothing {
        /// Seconds of waiting before this error.
        seconds: u32,
    },
    /// The connection ended.
    Disconnected(Option<DisconnectReason>),
    /// The broker sent a report that cannot be parsed, e.g. because it is of another version.
    NotUnderstood(serde_json::Error),
    /// Input or output failed.
    Io(io::Error),
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PasswordFile(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Client(error) => error.fmt(f),
            Self::NotAuthorized { filter } => {
                write!(f, "not authorised: the broker's ACL does not allow this user to subscribe to {filter}")
            }
            Self::Refused(reason) => write!(f, "the broker refused the subscription: {reason}"),
            Self::NoSuchGroup { group } => write!(f, "no such share group: the broker tells of no {group}"),
            Self::NotTenbin { version } => write!(f, "the broker is {version:?}, not Tenbin"),
            Self::Nothing { seconds } => write!(
                f,
                "the broker told nothing in {seconds} s: there is no such group, or it is not Tenbin, tells nothing \
                 ([sys] interval_seconds = 0), or does not let this user read it"
            ),
            Self::Disconnected(None) => f.write_str("the connection ended"),
            Self::Disconnected(Some(reason)) => write!(f, "the connection ended: {reason}"),
            Self::NotUnderstood(error) => write!(f, "what the broker told is not understood: {error}"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl Error for ExplainError {}

impl From<ClientError> for ExplainError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<io::Error> for ExplainError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
