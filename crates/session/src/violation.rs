use std::fmt;

use tenbin_codec::{DecodeError, PacketId, PacketType, ReasonCode};

/// A protocol violation by the peer, which ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that are no valid packet.
    Decode(DecodeError),
    /// A second CONNECT.
    SecondConnect,
    /// A packet that is not allowed at this point.
    Unexpected(PacketType),
    /// A Topic Alias above the maximum.
    TopicAliasTooHigh(u16),
    /// A Topic Alias without topic that no PUBLISH has introduced.
    TopicAliasUnknown(u16),
    /// The topics of all aliases together exceed this many bytes.
    TopicAliasBytes(usize),
    /// A client's PUBLISH with a Subscription Identifier.
    SubscriptionIdentifier,
    /// More unacknowledged QoS 1 and 2 messages than the Receive Maximum.
    ReceiveMaximum(u16),
    /// A QoS above the server's Maximum QoS.
    MaximumQoS,
    /// RETAIN, although retained messages are not supported.
    Retain,
    /// An acknowledgement that does not match the message's QoS.
    AckMismatch(PacketId),
    /// Nothing received for 1.5 × Keep Alive.
    KeepAlive,
    /// No PINGRESP in time.
    PingResponse,
    /// A DISCONNECT that raises a Session Expiry Interval of 0.
    SessionExpiryRaised,
    /// A client's DISCONNECT with a Server Reference.
    ServerReference,
    /// A client's DISCONNECT with a Reason Code that only servers may send.
    ServersReason(ReasonCode),
    /// A QoS 2 PUBLISH whose Packet Identifier is in use, for the second time without DUP; the first time is tolerated.
    ///
    /// A repeated message needs DUP `[MQTT-3.3.1-1]`, another message needs another identifier `[MQTT-2.2.1-3]`.
    PacketIdInUse(PacketId),
    /// A wildcard, although wildcards are not supported.
    WildcardSubscriptionsOff,
    /// A Subscription Identifier, although these are not supported.
    SubscriptionIdentifiersOff,
    /// A shared subscription, although these are not supported.
    SharedSubscriptionsOff,
    /// A payload that is not UTF-8 as its Payload Format Indicator claims, where that is checked.
    PayloadFormat,
}

impl Violation {
    /// The Reason Code for the peer.
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::Decode(error) => error.reason(),
            Self::TopicAliasTooHigh(_) => ReasonCode::TopicAliasInvalid,
            Self::TopicAliasBytes(_) => ReasonCode::QuotaExceeded,
            Self::ReceiveMaximum(_) => ReasonCode::ReceiveMaximumExceeded,
            Self::MaximumQoS => ReasonCode::QoSNotSupported,
            Self::Retain => ReasonCode::RetainNotSupported,
            Self::WildcardSubscriptionsOff => ReasonCode::WildcardSubscriptionsNotSupported,
            Self::SubscriptionIdentifiersOff => ReasonCode::SubscriptionIdentifiersNotSupported,
            Self::SharedSubscriptionsOff => ReasonCode::SharedSubscriptionsNotSupported,
            Self::PayloadFormat => ReasonCode::PayloadFormatInvalid,
            Self::KeepAlive => ReasonCode::KeepAliveTimeout,
            Self::PingResponse => ReasonCode::UnspecifiedError, // Only a server may send Keep Alive timeout.
            Self::SecondConnect
            | Self::Unexpected(_)
            | Self::TopicAliasUnknown(_)
            | Self::SubscriptionIdentifier
            | Self::AckMismatch(_)
            | Self::SessionExpiryRaised
            | Self::ServerReference
            | Self::ServersReason(_)
            | Self::PacketIdInUse(_) => ReasonCode::ProtocolError,
        }
    }

    /// Whether to close without DISCONNECT: the peer sent its own DISCONNECT `[MQTT-3.14.4-1]`, or its stream is
    /// undecodable.
    pub fn ends_in_silence(&self) -> bool {
        matches!(
            self,
            Self::ServerReference
                | Self::ServersReason(_)
                | Self::Decode(DecodeError::DisconnectReason(_) | DecodeError::RemainingLength)
        )
    }

    /// The violated statement of the standard: its identifier if there is one, otherwise the section.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Decode(error) => error.rule(),
            Self::SecondConnect => "MQTT-3.1.0-2",
            Self::Unexpected(PacketType::Auth) => "MQTT-4.12.0-7",
            Self::Unexpected(_) => "MQTT 5.0 §2.1.2",
            Self::TopicAliasTooHigh(_) => "MQTT-3.2.2-17",
            Self::TopicAliasUnknown(_) | Self::TopicAliasBytes(_) => "MQTT 5.0 §3.3.2.3.4",
            Self::SubscriptionIdentifier => "MQTT-3.3.4-6",
            Self::ReceiveMaximum(_) => "MQTT-3.3.4-7",
            Self::MaximumQoS => "MQTT-3.2.2-11",
            Self::Retain => "MQTT-3.2.2-14",
            Self::AckMismatch(_) => "MQTT-2.2.1-5",
            Self::KeepAlive => "MQTT-3.1.2-22",
            Self::PingResponse => "MQTT 5.0 §3.1.2.10",
            Self::SessionExpiryRaised => "MQTT 5.0 §3.14.2.2.2",
            Self::ServerReference => "MQTT 5.0 §3.14.2.2.5",
            Self::ServersReason(_) => "MQTT-3.14.2-1",
            Self::PacketIdInUse(_) => "MQTT-3.3.1-1",
            Self::WildcardSubscriptionsOff => "MQTT 5.0 §3.2.2.3.11",
            Self::SubscriptionIdentifiersOff => "MQTT 5.0 §3.2.2.3.12",
            Self::SharedSubscriptionsOff => "MQTT 5.0 §3.2.2.3.13",
            Self::PayloadFormat => "MQTT 5.0 §3.3.2.3.2",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(error) => return error.fmt(f),
            Self::SecondConnect => write!(f, "second CONNECT")?,
            Self::Unexpected(packet) => write!(f, "{packet} has no place here")?,
            Self::TopicAliasTooHigh(alias) => write!(f, "topic alias {alias} is above the maximum")?,
            Self::TopicAliasUnknown(alias) => write!(f, "topic alias {alias} stands for nothing")?,
            Self::TopicAliasBytes(maximum) => write!(f, "topics of all aliases have more than {maximum} bytes")?,
            Self::SubscriptionIdentifier => write!(f, "subscription identifier in a client's PUBLISH")?,
            Self::ReceiveMaximum(maximum) => write!(f, "more than {maximum} unacknowledged messages")?,
            Self::MaximumQoS => write!(f, "QoS above the server's maximum")?,
            Self::Retain => write!(f, "retained messages are not served")?,
            Self::AckMismatch(id) => write!(f, "acknowledgement of packet {id} does not fit its QoS")?,
            Self::KeepAlive => write!(f, "nothing received for 1.5 x keep alive")?,
            Self::PingResponse => write!(f, "no PINGRESP")?,
            Self::SessionExpiryRaised => write!(f, "DISCONNECT raises a session expiry of 0")?,
            Self::ServerReference => write!(f, "server reference in a client's DISCONNECT")?,
            Self::ServersReason(reason) => write!(f, "{reason} is not for a client to say")?,
            Self::PacketIdInUse(id) => write!(f, "packet identifier {id} is in use, and DUP is not set")?,
            Self::WildcardSubscriptionsOff => write!(f, "wildcard subscriptions are not served")?,
            Self::SubscriptionIdentifiersOff => write!(f, "subscription identifiers are not served")?,
            Self::SharedSubscriptionsOff => write!(f, "shared subscriptions are not served")?,
            Self::PayloadFormat => write!(f, "payload is not the UTF-8 that it is said to be")?,
        }
        write!(f, " [{}]", self.rule())
    }
}

impl std::error::Error for Violation {}

impl From<DecodeError> for Violation {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}
