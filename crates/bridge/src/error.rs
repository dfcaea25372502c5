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
    #[error("it does not read its acknowledgements")]
    Unread,
    #[error("it ended the connection: {reason}{}", in_brackets(.detail))]
    Disconnected { reason: ReasonCode, detail: Option<String> },
}

impl FailureKind {
    /// Whether another client has taken the session over.
    pub(crate) fn is_taken_over(&self) -> bool {
        matches!(self, Self::Disconnected { reason: ReasonCode::SessionTakenOver, .. })
    }

    /// Whether the broker says that it ends the connection for a packet.
    ///
    /// A connection that ends without DISCONNECT says nothing: so does a broker that is killed.
    pub(crate) fn is_of_a_packet(&self) -> bool {
        use ReasonCode::*;
        let Self::Disconnected { reason, .. } = self else { return false };
        matches!(
            reason,
            UnspecifiedError
                | MalformedPacket
                | ProtocolError
                | ImplementationSpecificError
                | NotAuthorized
                | TopicNameInvalid
                | PacketTooLarge
                | QuotaExceeded
                | PayloadFormatInvalid
                | RetainNotSupported
                | QoSNotSupported
        )
    }
}

fn in_brackets(detail: &Option<String>) -> String {
    detail.as_ref().map_or(String::new(), |detail| format!(" ({detail})"))
}
