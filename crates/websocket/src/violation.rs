use std::fmt;

/// Status code of a Close frame (RFC 6455 §7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// The connection has done its work.
    pub const NORMAL: Self = Self(1000);
    /// The peer violated RFC 6455.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// The peer sent text, which MQTT forbids.
    pub const UNSUPPORTED_DATA: Self = Self(1003);

    /// Whether an endpoint may send the code.
    pub(crate) fn is_legal(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// Rule that the peer broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A text frame `[MQTT-6.0.0-1]`.
    Text,
    /// An opcode without a meaning, or a bit of an extension.
    Reserved,
    /// A client's frame without a mask.
    Unmasked,
    /// A server's frame with a mask.
    Masked,
    /// A fragmented control frame, or one of more than 125 bytes.
    Control,
    /// A continuation of no message, or a message within another one.
    Fragment,
    /// A length of 2^63 or more.
    Length,
    /// A Close frame with half a code, or with a code that must not be sent.
    CloseCode,
}

impl Violation {
    /// Code of the Close frame that tells the peer.
    pub fn code(self) -> CloseCode {
        if self == Self::Text { CloseCode::UNSUPPORTED_DATA } else { CloseCode::PROTOCOL_ERROR }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "WebSocket: text frame; MQTT uses binary frames [MQTT-6.0.0-1]",
            Self::Reserved => "WebSocket: reserved opcode or bit",
            Self::Unmasked => "WebSocket: frame of a client without mask",
            Self::Masked => "WebSocket: frame of a server with mask",
            Self::Control => "WebSocket: control frame that is fragmented or longer than 125 bytes",
            Self::Fragment => "WebSocket: fragment out of order",
            Self::Length => "WebSocket: frame of 2^63 bytes or more",
            Self::CloseCode => "WebSocket: Close frame with an illegal code",
        })
    }
}

impl std::error::Error for Violation {}
