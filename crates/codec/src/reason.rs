use std::fmt;

use crate::PacketType;

/// Reason Code (MQTT 5.0 §2.4): success below 0x80, failure from 0x80. Code 0x00 has several names in the standard and
/// one here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReasonCode {
    /// Success, Normal disconnection, or Granted QoS 0.
    Success = 0x00,
    /// Granted QoS 1.
    GrantedQoS1 = 0x01,
    /// Granted QoS 2.
    GrantedQoS2 = 0x02,
    /// Disconnect with Will Message.
    DisconnectWithWill = 0x04,
    /// No matching subscribers.
    NoMatchingSubscribers = 0x10,
    /// No subscription existed.
    NoSubscriptionExisted = 0x11,
    /// Continue authentication.
    ContinueAuthentication = 0x18,
    /// Re-authenticate.
    ReAuthenticate = 0x19,
    /// Unspecified error.
    UnspecifiedError = 0x80,
    /// Malformed Packet.
    MalformedPacket = 0x81,
    /// Protocol Error.
    ProtocolError = 0x82,
    /// Implementation specific error.
    ImplementationSpecificError = 0x83,
    /// Unsupported Protocol Version.
    UnsupportedProtocolVersion = 0x84,
    /// Client Identifier not valid.
    ClientIdentifierNotValid = 0x85,
    /// Bad User Name or Password.
    BadUserNameOrPassword = 0x86,
    /// Not authorized.
    NotAuthorized = 0x87,
    /// Server unavailable.
    ServerUnavailable = 0x88,
    /// Server busy.
    ServerBusy = 0x89,
    /// Banned.
    Banned = 0x8A,
    /// Server shutting down.
    ServerShuttingDown = 0x8B,
    /// Bad authentication method.
    BadAuthenticationMethod = 0x8C,
    /// Keep Alive timeout.
    KeepAliveTimeout = 0x8D,
    /// Session taken over.
    SessionTakenOver = 0x8E,
    /// Topic Filter invalid.
    TopicFilterInvalid = 0x8F,
    /// Topic Name invalid.
    TopicNameInvalid = 0x90,
    /// Packet Identifier in use.
    PacketIdentifierInUse = 0x91,
    /// Packet Identifier not found.
    PacketIdentifierNotFound = 0x92,
    /// Receive Maximum exceeded.
    ReceiveMaximumExceeded = 0x93,
    /// Topic Alias invalid.
    TopicAliasInvalid = 0x94,
    /// Packet too large.
    PacketTooLarge = 0x95,
    /// Message rate too high.
    MessageRateTooHigh = 0x96,
    /// Quota exceeded.
    QuotaExceeded = 0x97,
    /// Administrative action.
    AdministrativeAction = 0x98,
    /// Payload format invalid.
    PayloadFormatInvalid = 0x99,
    /// Retain not supported.
    RetainNotSupported = 0x9A,
    /// QoS not supported.
    QoSNotSupported = 0x9B,
    /// Use another server.
    UseAnotherServer = 0x9C,
    /// Server moved.
    ServerMoved = 0x9D,
    /// Shared Subscriptions not supported.
    SharedSubscriptionsNotSupported = 0x9E,
    /// Connection rate exceeded.
    ConnectionRateExceeded = 0x9F,
    /// Maximum connect time.
    MaximumConnectTime = 0xA0,
    /// Subscription Identifiers not supported.
    SubscriptionIdentifiersNotSupported = 0xA1,
    /// Wildcard Subscriptions not supported.
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// All codes, ascending.
    pub const ALL: [Self; 43] = [
        Self::Success,
        Self::GrantedQoS1,
        Self::GrantedQoS2,
        Self::DisconnectWithWill,
        Self::NoMatchingSubscribers,
        Self::NoSubscriptionExisted,
        Self::ContinueAuthentication,
        Self::ReAuthenticate,
        Self::UnspecifiedError,
        Self::MalformedPacket,
        Self::ProtocolError,
        Self::ImplementationSpecificError,
        Self::UnsupportedProtocolVersion,
        Self::ClientIdentifierNotValid,
        Self::BadUserNameOrPassword,
        Self::NotAuthorized,
        Self::ServerUnavailable,
        Self::ServerBusy,
        Self::Banned,
        Self::ServerShuttingDown,
        Self::BadAuthenticationMethod,
        Self::KeepAliveTimeout,
        Self::SessionTakenOver,
        Self::TopicFilterInvalid,
        Self::TopicNameInvalid,
        Self::PacketIdentifierInUse,
        Self::PacketIdentifierNotFound,
        Self::ReceiveMaximumExceeded,
        Self::TopicAliasInvalid,
        Self::PacketTooLarge,
        Self::MessageRateTooHigh,
        Self::QuotaExceeded,
        Self::AdministrativeAction,
        Self::PayloadFormatInvalid,
        Self::RetainNotSupported,
        Self::QoSNotSupported,
        Self::UseAnotherServer,
        Self::ServerMoved,
        Self::SharedSubscriptionsNotSupported,
        Self::ConnectionRateExceeded,
        Self::MaximumConnectTime,
        Self::SubscriptionIdentifiersNotSupported,
        Self::WildcardSubscriptionsNotSupported,
    ];

    /// From the byte on the wire; `None` for a value that the standard does not define.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.binary_search_by_key(&byte, |code| code.byte()).ok().map(|index| Self::ALL[index])
    }

    /// The byte on the wire.
    pub fn byte(self) -> u8 {
        self as u8
    }

    /// True for a failure (0x80 and above).
    pub fn is_error(self) -> bool {
        self.byte() >= 0x80
    }

    /// Whether the standard's table for `packet` contains this code, `[MQTT-3.4.2-1]` and alike.
    pub fn is_valid_in(self, packet: PacketType) -> bool {
        let codes: &[u8] = match packet {
            PacketType::ConnAck => &[
                0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
                0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
            ],
            PacketType::PubAck | PacketType::PubRec => &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
            PacketType::PubRel | PacketType::PubComp => &[0x00, 0x92],
            PacketType::SubAck => &[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
            PacketType::UnsubAck => &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
            // 0x8C is in the standard's summary (table 2-6) but not in DISCONNECT's own table: a failed
            // re-authentication needs it.
            PacketType::Disconnect => &[
                0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
                0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
            ],
            PacketType::Auth => &[0x00, 0x18, 0x19],
            _ => &[],
        };
        codes.contains(&self.byte())
    }

    /// Whether the code is one of DISCONNECT that only a Server sends (MQTT 5.0 §3.14.2.1).
    pub fn is_servers_word(self) -> bool {
        matches!(self.byte(), 0x87 | 0x89 | 0x8B..=0x8F | 0x9A..=0xA2)
    }

    /// The corresponding CONNACK return code of MQTT 3.1.1. If it is `None`, the connection is closed without CONNACK
    /// (3.1.1 `[MQTT-3.2.2-6]`).
    pub fn v311_connect_return_code(self) -> Option<u8> {
        match self {
            Self::Success => Some(0),
            Self::UnsupportedProtocolVersion => Some(1),
            Self::ClientIdentifierNotValid => Some(2),
            Self::ServerUnavailable | Self::ServerBusy | Self::QuotaExceeded | Self::ConnectionRateExceeded => Some(3),
            Self::BadUserNameOrPassword => Some(4),
            Self::NotAuthorized | Self::Banned => Some(5),
            _ => None,
        }
    }

    /// The code that corresponds to a CONNACK return code of MQTT 3.1.1; `None` above 5.
    pub fn from_v311_connect_return_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }

    /// The code's name in the standard.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::GrantedQoS1 => "Granted QoS 1",
            Self::GrantedQoS2 => "Granted QoS 2",
            Self::DisconnectWithWill => "Disconnect with Will Message",
            Self::NoMatchingSubscribers => "No matching subscribers",
            Self::NoSubscriptionExisted => "No subscription existed",
            Self::ContinueAuthentication => "Continue authentication",
            Self::ReAuthenticate => "Re-authenticate",
            Self::UnspecifiedError => "Unspecified error",
            Self::MalformedPacket => "Malformed Packet",
            Self::ProtocolError => "Protocol Error",
            Self::ImplementationSpecificError => "Implementation specific error",
            Self::UnsupportedProtocolVersion => "Unsupported Protocol Version",
            Self::ClientIdentifierNotValid => "Client Identifier not valid",
            Self::BadUserNameOrPassword => "Bad User Name or Password",
            Self::NotAuthorized => "Not authorized",
            Self::ServerUnavailable => "Server unavailable",
            Self::ServerBusy => "Server busy",
            Self::Banned => "Banned",
            Self::ServerShuttingDown => "Server shutting down",
            Self::BadAuthenticationMethod => "Bad authentication method",
            Self::KeepAliveTimeout => "Keep Alive timeout",
            Self::SessionTakenOver => "Session taken over",
            Self::TopicFilterInvalid => "Topic Filter invalid",
            Self::TopicNameInvalid => "Topic Name invalid",
            Self::PacketIdentifierInUse => "Packet Identifier in use",
            Self::PacketIdentifierNotFound => "Packet Identifier not found",
            Self::ReceiveMaximumExceeded => "Receive Maximum exceeded",
            Self::TopicAliasInvalid => "Topic Alias invalid",
            Self::PacketTooLarge => "Packet too large",
            Self::MessageRateTooHigh => "Message rate too high",
            Self::QuotaExceeded => "Quota exceeded",
            Self::AdministrativeAction => "Administrative action",
            Self::PayloadFormatInvalid => "Payload format invalid",
            Self::RetainNotSupported => "Retain not supported",
            Self::QoSNotSupported => "QoS not supported",
            Self::UseAnotherServer => "Use another server",
            Self::ServerMoved => "Server moved",
            Self::SharedSubscriptionsNotSupported => "Shared Subscriptions not supported",
            Self::ConnectionRateExceeded => "Connection rate exceeded",
            Self::MaximumConnectTime => "Maximum connect time",
            Self::SubscriptionIdentifiersNotSupported => "Subscription Identifiers not supported",
            Self::WildcardSubscriptionsNotSupported => "Wildcard Subscriptions not supported",
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02X})", self.name(), self.byte())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_code_round_trips_and_other_bytes_are_refused() {
        let known = (0..=u8::MAX).filter_map(ReasonCode::from_byte).collect::<Vec<_>>();
        assert_eq!(known, ReasonCode::ALL);
        assert!(known.iter().all(|code| ReasonCode::from_byte(code.byte()) == Some(*code)));
    }

    #[test]
    fn return_codes_of_3_1_1_map_both_ways() {
        for code in 0..=5 {
            let reason = ReasonCode::from_v311_connect_return_code(code).unwrap();
            assert_eq!(reason.v311_connect_return_code(), Some(code));
        }
        assert_eq!(ReasonCode::from_v311_connect_return_code(6), None);
        assert_eq!(ReasonCode::ProtocolError.v311_connect_return_code(), None);
    }
}
