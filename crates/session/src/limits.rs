use std::time::Duration;

use tenbin_codec::{ProtocolVersion, QoS};

/// Limits agreed in CONNECT and CONNACK, from this side's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most unacknowledged QoS 1 and 2 messages that this side accepts, 1 to 65,535.
    pub receive_maximum: u16,
    /// Most unacknowledged QoS 1 and 2 messages that the peer accepts, 1 to 65,535.
    pub peer_receive_maximum: u16,
    /// Largest packet that the peer accepts, in bytes; `u32::MAX` = no limit.
    pub peer_maximum_packet_size: u32,
    /// Topic Aliases that this side accepts; 0 = none.
    pub topic_alias_maximum: u16,
    /// Topic Aliases that this side sends, within the peer's maximum; 0 = none.
    pub peer_topic_alias_maximum: u16,
    /// Keep Alive in force; zero = off.
    pub keep_alive: Duration,
    /// Highest QoS that the server supports.
    pub maximum_qos: QoS,
    /// Whether the server supports retained messages.
    pub retain_available: bool,
    /// Whether the server supports filters with wildcards.
    pub wildcard_subscriptions_available: bool,
    /// Whether the server supports Subscription Identifiers.
    pub subscription_identifiers_available: bool,
    /// Whether the server supports shared subscriptions.
    pub shared_subscriptions_available: bool,
    /// Whether acknowledgements may carry Reason String and User Properties `[MQTT-3.1.2-29]`.
    pub problem_information: bool,
}

impl Limits {
    /// Protocol version, if the peer gets every [`tenbin_codec::PlainPublish`] unchanged.
    ///
    /// `None` with Topic Aliases, since they change the packet.
    pub fn plain_version(&self, version: ProtocolVersion) -> Option<ProtocolVersion> {
        (!version.is_v5() || self.peer_topic_alias_maximum == 0).then_some(version)
    }
}

impl Default for Limits {
    /// The defaults of MQTT.
    fn default() -> Self {
        Self {
            receive_maximum: u16::MAX,
            peer_receive_maximum: u16::MAX,
            peer_maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            peer_topic_alias_maximum: 0,
            keep_alive: Duration::ZERO,
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            wildcard_subscriptions_available: true,
            subscription_identifiers_available: true,
            shared_subscriptions_available: true,
            problem_information: true,
        }
    }
}

/// How long a session outlives its connection (MQTT 5.0 §3.1.2.11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionExpiry {
    /// The session ends with the connection.
    AtDisconnect,
    /// The session ends this long after the connection.
    After(Duration),
    /// The session never expires.
    Never,
}

impl SessionExpiry {
    /// Converts a Session Expiry Interval in seconds; `u32::MAX` never expires.
    pub fn from_seconds(seconds: u32) -> Self {
        match seconds {
            0 => Self::AtDisconnect,
            u32::MAX => Self::Never,
            seconds => Self::After(Duration::from_secs(u64::from(seconds))),
        }
    }

    /// Returns the Session Expiry Interval in seconds.
    pub fn seconds(self) -> u32 {
        match self {
            Self::AtDisconnect => 0,
            Self::After(duration) => u32::try_from(duration.as_secs()).unwrap_or(u32::MAX),
            Self::Never => u32::MAX,
        }
    }
}
