use alloc::vec::Vec;

use crate::DecodeError;
use crate::frame::{put_header, split};

/// Message type of an encapsulated message.
pub(crate) const FORWARDED: u8 = 0xFE;

/// A message in the envelope of a forwarder, which names the wireless node behind it (MQTT-SN 1.2 §5.5).
///
/// ```text
///   length | 0xFE | Ctrl: radius in bits 1 and 0 | wireless node id | the message, with its length
///   └────────── length covers this part ──────────────────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded<'a> {
    /// Broadcast radius, 0 to 3.
    pub radius: u8,
    /// Identifies the node at its forwarder; any bytes, or none.
    pub node_id: &'a [u8],
    /// The message itself, for `Message::decode`.
    pub message: &'a [u8],
}

impl<'a> Forwarded<'a> {
    /// Whether a datagram has this envelope, judged by its message type.
    pub fn is_envelope(datagram: &[u8]) -> bool {
        matches!(split(datagram), Ok((FORWARDED, ..)))
    }

    /// Opens one envelope. Does not decode the message in it.
    ///
    /// # Errors
    /// The envelope is damaged, empty, or holds a further envelope.
    pub fn decode(datagram: &'a [u8]) -> Result<Self, DecodeError> {
        let (kind, header, message) = split(datagram)?;
        if kind != FORWARDED {
            return Err(DecodeError::ReservedType(kind));
        }
        let (&ctrl, node_id) = header.split_first().ok_or(DecodeError::Truncated)?;
        if message.is_empty() {
            return Err(DecodeError::Truncated);
        }
        if Self::is_envelope(message) {
            return Err(DecodeError::Nested); // [SN-FORWARD-2]
        }
        Ok(Self { radius: ctrl & 3, node_id, message })
    }

    /// Appends envelope and message. Appends nothing if the node id is too long for a message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if put_header(FORWARDED, 1 + self.node_id.len(), out) {
            out.push(self.radius & 3);
            out.extend_from_slice(self.node_id);
            out.extend_from_slice(self.message);
        }
    }
}
