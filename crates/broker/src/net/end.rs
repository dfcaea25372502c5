//! Why a connection ends.

use tenbin_codec::{DecodeError, PacketType, ReasonCode};
use tenbin_session::Violation;

use super::authentication::Refusal;
use crate::hooks::Ending;
use crate::outbox::Control;
use crate::values::Bound;

/// Reason for the end of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The client sent DISCONNECT.
    Disconnect(ReasonCode),
    /// The socket is closed or broken.
    Closed(std::io::Error),
    /// The client violated the protocol.
    Violation(Violation),
    /// Requested by another part of the broker.
    Control(Control),
    /// Re-authentication failed.
    Refused(Refusal),
    /// Its credentials are not valid any more.
    Revoked,
    /// Its credentials have expired.
    Expired,
    /// A partly received packet made no progress.
    Stalled,
    /// A packet of this many bytes exceeds the memory limit of its owner's account, which is this bound.
    NoMemory(usize, Bound),
    /// A published message had no room, and the client's version has no refusal.
    Unanswered,
    /// An answer that the client needs exceeds its Maximum Packet Size.
    AnswerTooLarge(PacketType),
    /// A hook has refused a packet, or has panicked.
    Hook(ReasonCode),
}

impl End {
    /// The connection of a hook that has panicked.
    pub(super) const HOOK_PANICKED: Self = Self::Hook(ReasonCode::ImplementationSpecificError);

    /// Whether the client still reads answers to earlier packets. A client that repeats unanswered packets would
    /// otherwise meet the same limit with the same packets for ever.
    pub(super) fn leaves_client_reading(&self) -> bool {
        match self {
            Self::Disconnect(_) => false,
            Self::Closed(error) => error.kind() == std::io::ErrorKind::InvalidData,
            // Another task waits for this connection's end.
            Self::Control(Control::TakenOver | Control::ShuttingDown) => false,
            _ => true,
        }
    }

    /// The bound that ends the connection.
    pub(super) fn bound(&self) -> Option<Bound> {
        match self {
            Self::NoMemory(_, bound) => Some(*bound),
            Self::Violation(Violation::Decode(error)) => bound_of(*error, Bound::PacketBytes),
            Self::Violation(Violation::ReceiveMaximum(_)) => Some(Bound::ReceiveMaximum),
            Self::Violation(Violation::TopicAliasTooHigh(_)) => Some(Bound::TopicAliases),
            _ => None,
        }
    }

    /// How hooks see it.
    pub(super) fn ending(&self) -> Ending {
        Ending { reason: self.reason(), by_client: matches!(self, Self::Disconnect(_)) }
    }

    /// Reason Code of the DISCONNECT of either side; `None` for a lost connection.
    pub(super) fn reason(&self) -> Option<ReasonCode> {
        Some(match self {
            Self::Closed(_) => return None,
            Self::Disconnect(reason) | Self::Hook(reason) => *reason,
            Self::Violation(violation) => violation.reason(),
            #[cfg(feature = "admin")]
            Self::Control(Control::Kicked(reason)) => *reason,
            #[cfg(feature = "admin")]
            Self::Control(Control::Asked) => return None, // ends nothing
            Self::Control(Control::TakenOver) => ReasonCode::SessionTakenOver,
            Self::Control(Control::ShuttingDown) => ReasonCode::ServerShuttingDown,
            Self::Control(Control::TooSlow) | Self::NoMemory(..) | Self::Unanswered => ReasonCode::QuotaExceeded,
            Self::Refused(refusal) => refusal.reason.unwrap_or(ReasonCode::NotAuthorized),
            Self::Control(Control::RightsChanged) | Self::Revoked => ReasonCode::NotAuthorized,
            Self::Expired => ReasonCode::MaximumConnectTime,
            Self::Stalled => ReasonCode::KeepAliveTimeout,
            Self::AnswerTooLarge(_) => ReasonCode::PacketTooLarge,
        })
    }
}

/// The bound that refuses a packet; `packet_bytes`: the bound of its size.
pub(super) fn bound_of(error: DecodeError, packet_bytes: Bound) -> Option<Bound> {
    match error {
        DecodeError::PacketTooLarge { .. } => Some(packet_bytes),
        DecodeError::TooManyUserProperties => Some(Bound::UserProperties),
        DecodeError::TooManyFilters => Some(Bound::Subscriptions),
        _ => None,
    }
}
