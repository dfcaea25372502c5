use std::io;
use std::path::PathBuf;

use tenbin_client::{ClientError, DisconnectReason, ReasonCode};

/// Reason why nothing was shown. Each displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The password file could not be read.
    #[error("cannot read {0}: {1}")]
    PasswordFile(PathBuf, io::Error),
    /// The broker could not be reached, or refused.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The user may not read the reports on the group.
    #[error("not authorised: the broker's ACL does not allow this user to subscribe to {filter}")]
    NotAuthorized {
        /// The subscription that was refused.
        filter: String,
    },
    /// The broker refused the subscription for another reason.
    #[error("the broker refused the subscription: {0}")]
    Refused(ReasonCode),
    /// The broker is Tenbin and has reported no such group.
    #[error("no such share group: the broker does not know {group}")]
    NoSuchGroup {
        /// The requested group, as a shared subscription.
        group: String,
    },
    /// The broker is not Tenbin.
    #[error("the broker is {version:?}, not Tenbin")]
    NotTenbin {
        /// Version that it reports.
        version: String,
    },
    /// The broker reported nothing at all.
    #[error(
        "the broker reports nothing in {seconds} s: there is no such group, the broker is not Tenbin, reports nothing \
         ([sys] interval_seconds = 0), or does not let this user read reports"
    )]
    Nothing {
        /// Seconds of waiting before this error.
        seconds: u32,
    },
    /// The connection ended.
    #[error("the connection ended{}", .0.as_ref().map_or(String::new(), |reason| format!(": {reason}")))]
    Disconnected(Option<DisconnectReason>),
    /// The broker sent a report that cannot be parsed, e.g. because it is of another version.
    #[error("cannot understand a report of the broker: {0}")]
    NotUnderstood(serde_json::Error),
    /// Input or output failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}
