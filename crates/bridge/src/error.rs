use std::io;

use tenbin_codec::{DecodeError, PacketType, ReasonCode};

use crate::status::Side;

/// Why the bridge has no connections.
#[derive(Debug, thiserror::Error)]
#[error("{} broker {address}: {kind}", side.name())]
pub(crate) struct Failure {
    pub(crate) side: Side,
    pub(crate) address: String,
    pub(crate) kind: FailureKind,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FailureKind {
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    #[error("no answer within {0} s")]
    NoAnswer(u64),
    #[error("it refused the connection: {reason}{}", in_brackets(.detail))]
    Refused { reason: ReasonCode, detail: Option<String> },
    #[error("it closed the connection")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error("it broke a rule: {0}")]
    Malformed(#[from] DecodeError),
    #[error("it broke a rule: {0} is out of place")]
    Unexpected(PacketType),
    #[error("it broke a rule: more than {0} unacknowledged messages, the bridge's Receive Maximum")]
    TooMany(u16),
    #[error("it ended the connection: {reason}{}", in_brackets(.detail))]
    Disconnected { reason: ReasonCode, detail: Option<String> },
}

impl FailureKind {
    /// Whether another client has taken the session over.
    pub(crate) fn is_taken_over(&self) -> bool {
        matches!(self, Self::Disconnected { reason: ReasonCode::SessionTakenOver, .. })
    }

    /// Whether the broker has perhaps ended the connection for a message.
    pub(crate) fn may_be_of_a_message(&self) -> bool {
        match self {
            Self::Closed | Self::Io(_) => true,
            Self::Disconnected { reason, .. } => {
                use ReasonCode::{AdministrativeAction, ServerBusy, ServerShuttingDown, SessionTakenOver};
                !matches!(reason, AdministrativeAction | ServerBusy | ServerShuttingDown | SessionTakenOver)
            }
            _ => false,
        }
    }
}

fn in_brackets(detail: &Option<String>) -> String {
    detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"))
}
