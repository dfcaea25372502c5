//! Why a connection ends.

use tenbin_codec::{DecodeError, PacketType, ReasonCode};
use tenbin_session::Violation;

use super::authentication::Refusal;
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
    /// The client did not acknowledge a message of a share group in time.
    Overdue,
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
