use core::fmt;

/// Reason why a datagram is no message. A receiver drops it and does not answer, with one exception:
/// [`DecodeError::ProtocolId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeError {
    /// A datagram without bytes.
    Empty,
    /// A length that does not even cover itself and the message type.
    LengthTooShort(u16),
    /// A length other than the size of the datagram.
    LengthMismatch {
        /// Length that the message states.
        length: u16,
        /// Size of the datagram in bytes.
        size: usize,
    },
    /// A message type that the specification reserves.
    ReservedType(u8),
    /// The message ends within a field.
    Truncated,
    /// Bytes after the last field.
    SurplusBytes,
    /// A text is not well-formed UTF-8.
    InvalidUtf8,
    /// A text holds U+0000.
    NulCharacter,
    /// QoS −1 where a QoS of 0 to 2 is due.
    QoSReserved,
    /// TopicIdType 3 in SUBSCRIBE or UNSUBSCRIBE.
    TopicIdTypeReserved,
    /// MsgId 0 in a message that is acknowledged, or in its acknowledgement.
    MessageIdZero,
    /// An empty topic name, which only WILLTOPIC and WILLTOPICUPD may leave out.
    TopicEmpty,
    /// A ReturnCode that the specification reserves.
    ReturnCode(u8),
    /// CONNECT of another protocol version. The gateway answers "not supported".
    ProtocolId(u8),
    /// An encapsulated message within an encapsulated message.
    Nested,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "empty datagram"),
            Self::LengthTooShort(length) => write!(f, "length {length} is too short for any message"),
            Self::LengthMismatch { length, size } => write!(f, "length {length} in a datagram of {size} bytes"),
            Self::ReservedType(kind) => write!(f, "reserved message type 0x{kind:02X}"),
            Self::Truncated => write!(f, "field runs past the end"),
            Self::SurplusBytes => write!(f, "bytes after the last field"),
            Self::InvalidUtf8 => write!(f, "text is not well-formed UTF-8"),
            Self::NulCharacter => write!(f, "text holds U+0000"),
            Self::QoSReserved => write!(f, "QoS -1 is not allowed here"),
            Self::TopicIdTypeReserved => write!(f, "topic id type 3"),
            Self::MessageIdZero => write!(f, "message id 0"),
            Self::TopicEmpty => write!(f, "empty topic name"),
            Self::ReturnCode(code) => write!(f, "reserved return code 0x{code:02X}"),
            Self::ProtocolId(id) => write!(f, "protocol id {id} is not supported"),
            Self::Nested => write!(f, "nested encapsulation"),
        }
    }
}

impl core::error::Error for DecodeError {}
