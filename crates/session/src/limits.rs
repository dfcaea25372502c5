use std::time::Duration;

use tenbin_codec::{ProtocolVersion, QoS};

/// What the two sides agreed on in CONNECT and CONNACK, seen from the side that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// QoS 1 and 2 messages that we take unacknowledged, 1 to 65,535.
    pub receive_maximum: u16,
    /// QoS 1 and 2 messages that the peer takes unacknowledged, 1 to 65,535.
    pub peer_receive_maximum: u16,
    /// Largest packet that the peer takes, in bytes; `u32::MAX` = no limit.
    pub peer_maximum_packet_size: u32,
    /// Topic Aliases that we take; 0 = none.
    pub topic_alias_maximum: u16,
    /// Topic Aliases that we send: at most what the peer takes; 0 = none.
    pub peer_topic_alias_maximum: u16,
    /// Keep Alive in force; zero = off.
    pub keep_alive: Duration,
    /// Highest QoS that the server takes.
    pub maximum_qos: QoS,
    /// Whether the server takes retained messages.
    pub retain_available: bool,
    /// Whether the server takes filters with wildcards.
    pub wildcard_subscriptions_available: bool,
    /// Whether the server takes Subscription Identifiers.
    pub subscription_identifiers_available: bool,
    /// Whether the server takes shared subscriptions.
    pub shared_subscriptions_available: bool,
    /// Whether acknowledgements may carry Reason String and User Properties `[MQTT-3.1.2-29]`.
    pub problem_information: bool,
}

impl Limits {
    /// The protocol version, if the peer gets every [`tenbin_codec::PlainPublish`] as it is; `None` where Topic Aliases
    /// make it another packet each time.
    pub fn plain_version(&self, version: ProtocolVersion) -> Option<ProtocolVersion> {
        (!version.is_v5() || self.peer_topic_alias_maximum == 0).then_some(version)
    }
}

impl Default for Limits {
    /// What MQTT has where nothing is said.
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
    /// It ends with the connection.
    AtDisconnect,
    /// It ends so long after the connection.
    After(Duration),
    /// It never ends by itself.
    Never,
}

impl SessionExpiry {
    /// From a Session Expiry Interval in seconds; `u32::MAX` never expires.
    pub fn from_seconds(seconds: u32) -> Self {
        match seconds {
            0 => Self::AtDisconnect,
            u32::MAX => Self::Never,
            seconds => Self::After(Duration::from_secs(u64::from(seconds))),
        }
    }

    /// The Session Expiry Interval in seconds that says this.
    pub fn seconds(self) -> u32 {
        match self {
            Self::AtDisconnect => 0,
            Self::After(duration) => u32::try_from(duration.as_secs()).unwrap_or(u32::MAX),
            Self::Never => u32::MAX,
        }
    }
}
