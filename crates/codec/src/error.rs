use std::fmt;

use crate::{PacketType, PropertyId, ReasonCode};

/// Bytes that are not a legal control packet: always a violation by the peer, and the end of its connection.
///
/// An incomplete packet is no error, see [`crate::Decoded::NeedMore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// A Variable Byte Integer of more than four bytes, or longer than it needs to be.
    Varint,
    /// A Remaining Length of more than four bytes, which leaves the end of the packet unknown.
    RemainingLength,
    /// Packet type 0, or AUTH at 3.1.1.
    ReservedPacketType(u8),
    /// The first packet of a connection is not CONNECT.
    ConnectExpected(PacketType),
    /// A packet that only the other side sends.
    WrongDirection(PacketType),
    /// AUTH from a Client that named no Authentication Method in CONNECT.
    UnexpectedAuth,
    /// Flags in the fixed header other than the packet type's own.
    FixedHeaderFlags(PacketType),
    /// Larger than the Maximum Packet Size of the receiver; known from the fixed header alone.
    PacketTooLarge {
        /// Size of the whole packet, in bytes.
        size: u32,
        /// Allowed size, in bytes.
        maximum: u32,
    },
    /// A field runs past the end of the packet, or of the properties.
    Truncated,
    /// Bytes after the packet's last field.
    SurplusBytes,
    /// A string is not well-formed UTF-8.
    InvalidUtf8,
    /// A string holds U+0000.
    NulCharacter,
    /// Packet Identifier 0.
    PacketIdZero,
    /// QoS 3.
    QoSReserved,
    /// DUP on a QoS 0 PUBLISH.
    DupAtQoS0,
    /// A Topic Name with `+` or `#`.
    TopicNameWildcard,
    /// An empty Topic Name, and no Topic Alias in its place.
    TopicNameEmpty,
    /// A Topic Filter that is empty or has a wildcard out of place.
    TopicFilter,
    /// A filter that starts with `$share/` and is no shared subscription.
    SharedFilter,
    /// A property that the standard does not define, or that is illegal in SUBSCRIBE, UNSUBSCRIBE or an extended
    /// PINGREQ.
    PropertyNotAllowed(u32),
    /// A property that is illegal in this packet, which is none of SUBSCRIBE, UNSUBSCRIBE and extended PINGREQ.
    PropertyMisplaced(PropertyId),
    /// A property that occurs twice.
    PropertyTwice(PropertyId),
    /// An illegal value of a property.
    PropertyValue(PropertyId),
    /// More User Properties than the receiver accepts.
    TooManyUserProperties,
    /// More Topic Filters in a SUBSCRIBE or UNSUBSCRIBE than the receiver accepts.
    TooManyFilters,
    /// Authentication Data without Authentication Method.
    AuthenticationDataAlone,
    /// CONNECT's protocol name is not "MQTT".
    ProtocolName,
    /// CONNECT requests an unsupported version of the protocol.
    ProtocolVersion(u8),
    /// CONNECT's reserved flag is set.
    ConnectFlagReserved,
    /// Will QoS or Will Retain without Will Flag, or Will QoS 3.
    WillFlags,
    /// A missing user name or password although its flag is set, or a user name that is not text.
    Credentials,
    /// Password without user name at 3.1.1.
    PasswordWithoutUserName,
    /// Reserved bits of CONNACK's flags are set.
    ConnAckFlags,
    /// Reserved bits in the Subscription Options.
    SubscriptionOptions,
    /// Maximum QoS 3 or Retain Handling 3 in the Subscription Options.
    SubscriptionOptionValue,
    /// No Local on a shared subscription.
    NoLocalShared,
    /// SUBSCRIBE or UNSUBSCRIBE without a Topic Filter.
    NoTopicFilter,
    /// A Reason Code that is not in the packet's table.
    ReasonCode(u8),
    /// A Reason Code that is illegal in DISCONNECT.
    DisconnectReason(u8),
    /// A PINGREQ with a body at 3.1.1 or if extended ones are not accepted, or with a malformed extended body.
    PingBody,
}

impl DecodeError {
    /// The Reason Code sent to the peer.
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            Self::TooManyUserProperties | Self::TooManyFilters => ReasonCode::QuotaExceeded,
            Self::ProtocolName | Self::ProtocolVersion(_) => ReasonCode::UnsupportedProtocolVersion,
            Self::PropertyValue(PropertyId::TopicAlias) => ReasonCode::TopicAliasInvalid, // [MQTT-3.3.2-8]
            // Where the standard leaves the code open or contradicts itself (docs/decisions/0004), it is Mosquitto's
            // code.
            Self::ReservedPacketType(_)
            | Self::PropertyMisplaced(_)
            | Self::ReasonCode(_)
            | Self::DisconnectReason(_)
            | Self::ConnectExpected(_)
            | Self::WrongDirection(_)
            | Self::UnexpectedAuth
            | Self::PacketIdZero
            | Self::TopicNameEmpty
            | Self::PropertyTwice(_)
            | Self::PropertyValue(_)
            | Self::AuthenticationDataAlone
            | Self::SubscriptionOptionValue
            | Self::NoLocalShared
            | Self::NoTopicFilter => ReasonCode::ProtocolError,
            _ => ReasonCode::MalformedPacket,
        }
    }

    /// The violated statement of the standard: its identifier, or its section if it has none.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Varint | Self::RemainingLength => "MQTT-1.5.5-1",

            Self::ReservedPacketType(_) => "MQTT 5.0 §2.1.2",
            Self::ConnectExpected(_) => "MQTT-3.1.0-1",
            Self::WrongDirection(_) => "MQTT 5.0 §2.1.2",
            Self::UnexpectedAuth => "MQTT-4.12.0-7",
            Self::FixedHeaderFlags(_) => "MQTT-2.1.3-1",
            Self::PacketTooLarge { .. } => "MQTT-3.2.2-15",
            Self::Truncated | Self::SurplusBytes => "MQTT 5.0 §2.1.4",
            Self::InvalidUtf8 => "MQTT-1.5.4-1",
            Self::NulCharacter => "MQTT-1.5.4-2",
            Self::PacketIdZero => "MQTT-2.2.1-3",
            Self::QoSReserved => "MQTT-3.3.1-4",
            Self::DupAtQoS0 => "MQTT-3.3.1-2",
            Self::TopicNameWildcard => "MQTT-3.3.2-2",
            Self::TopicNameEmpty => "MQTT-4.7.3-1",
            Self::TopicFilter => "MQTT-4.7.1-1",
            Self::SharedFilter => "MQTT-4.8.2-1",
            Self::PropertyNotAllowed(_)
            | Self::PropertyMisplaced(_)
            | Self::PropertyTwice(_)
            | Self::PropertyValue(_) => "MQTT 5.0 §2.2.2.2",
            Self::TooManyUserProperties | Self::TooManyFilters => "MQTT 5.0 §4.13",
            Self::AuthenticationDataAlone => "MQTT 5.0 §3.1.2.11.10",
            Self::ProtocolName => "MQTT-3.1.2-1",
            Self::ProtocolVersion(_) => "MQTT-3.1.2-2",
            Self::ConnectFlagReserved => "MQTT-3.1.2-3",
            Self::WillFlags => "MQTT-3.1.2-11",
            Self::Credentials => "MQTT-3.1.3-12",
            Self::PasswordWithoutUserName => "MQTT 3.1.1 [MQTT-3.1.2-22]",
            Self::ConnAckFlags => "MQTT-3.2.2-1",
            Self::SubscriptionOptions => "MQTT-3.8.3-5",
            Self::SubscriptionOptionValue => "MQTT 5.0 §3.8.3.1",
            Self::NoLocalShared => "MQTT-3.8.3-4",
            Self::NoTopicFilter => "MQTT-3.8.3-2",
            Self::ReasonCode(_) => "MQTT 5.0 §2.4",
            Self::DisconnectReason(_) => "MQTT-3.14.2-1",
            Self::PingBody => "MQTT 5.0 §3.12, thesis §4.1.1",
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Varint => write!(f, "variable byte integer of more bytes than it may take")?,
            Self::RemainingLength => write!(f, "illegal remaining length")?,
            Self::ReservedPacketType(kind) => write!(f, "reserved packet type {kind}")?,
            Self::ConnectExpected(kind) => write!(f, "first packet is {kind}, not CONNECT")?,
            Self::WrongDirection(kind) => write!(f, "{kind} is not for this side to send")?,
            Self::UnexpectedAuth => write!(f, "AUTH without an authentication method")?,
            Self::FixedHeaderFlags(kind) => write!(f, "illegal fixed header flags of {kind}")?,
            Self::PacketTooLarge { size, maximum } => write!(f, "packet of {size} bytes, at most {maximum} allowed")?,
            Self::Truncated => write!(f, "field runs past the end")?,
            Self::SurplusBytes => write!(f, "bytes after the last field")?,
            Self::InvalidUtf8 => write!(f, "string is not well-formed UTF-8")?,
            Self::NulCharacter => write!(f, "string holds U+0000")?,
            Self::PacketIdZero => write!(f, "packet identifier 0")?,
            Self::QoSReserved => write!(f, "QoS 3")?,
            Self::DupAtQoS0 => write!(f, "DUP at QoS 0")?,
            Self::TopicNameWildcard => write!(f, "wildcard in a topic name")?,
            Self::TopicNameEmpty => write!(f, "empty topic name")?,
            Self::TopicFilter => write!(f, "illegal topic filter")?,
            Self::SharedFilter => write!(f, "illegal shared subscription filter")?,
            Self::PropertyNotAllowed(id) => write!(f, "property 0x{id:02X} is unknown here")?,
            Self::PropertyMisplaced(id) => write!(f, "{id} has no place here")?,
            Self::PropertyTwice(id) => write!(f, "{id} stands twice")?,
            Self::PropertyValue(id) => write!(f, "illegal value of {id}")?,
            Self::TooManyUserProperties => write!(f, "more user properties than are taken")?,
            Self::TooManyFilters => write!(f, "more topic filters in one packet than are taken")?,
            Self::AuthenticationDataAlone => write!(f, "authentication data without authentication method")?,
            Self::ProtocolName => write!(f, "protocol name is not MQTT")?,
            Self::ProtocolVersion(level) => write!(f, "protocol version {level} is not served")?,
            Self::ConnectFlagReserved => write!(f, "reserved CONNECT flag is set")?,
            Self::WillFlags => write!(f, "illegal will flags")?,
            Self::Credentials => write!(f, "illegal user name or password")?,
            Self::PasswordWithoutUserName => write!(f, "password without user name")?,
            Self::ConnAckFlags => write!(f, "reserved CONNACK flags are set")?,
            Self::SubscriptionOptions => write!(f, "reserved subscription options are set")?,
            Self::SubscriptionOptionValue => write!(f, "maximum QoS 3 or retain handling 3")?,
            Self::NoLocalShared => write!(f, "No Local on a shared subscription")?,
            Self::NoTopicFilter => write!(f, "no topic filter")?,
            Self::ReasonCode(code) | Self::DisconnectReason(code) => {
                write!(f, "reason code 0x{code:02X} has no place here")?
            }
            Self::PingBody => write!(f, "PINGREQ with a body that is no extended PINGREQ's")?,
        }
        write!(f, " [{}]", self.rule())
    }
}

impl std::error::Error for DecodeError {}
