//! Tables of the configuration file, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenbin_codec::TopicName;
use tenbin_store::Sync;

use super::range::Ranged;
use crate::values::WhenFull;

/// Limits of Network Connections.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Connections {
    /// Maximum number of connections.
    pub maximum: usize,
    pub(super) per_address_maximum: Ranged<0, 4_294_967_295>,
    pub(super) loopback_per_address_maximum: Ranged<0, 4_294_967_295>,
    pub(super) connects_per_second: Ranged<0, 1_000_000_000>,
    pub(super) connects_per_second_per_address: Ranged<0, 1_000_000_000>,
    pub(super) connect_timeout_ms: Ranged<1, 600_000>,
    pub(super) packet_timeout_ms: Ranged<1, 86_400_000>,
    pub(super) keep_alive_maximum_seconds: Ranged<0, 65_535>,
    pub(super) tcp_keepalive_idle_seconds: Ranged<0, 32_767>,
    pub(super) tcp_keepalive_interval_seconds: Ranged<1, 32_767>,
    pub(super) tcp_keepalive_probes: Ranged<1, 127>,
    pub(super) tcp_user_timeout_seconds: Ranged<0, 86_400>,
    pub(super) packet_bytes_maximum: Ranged<256, 268_435_460>,
    pub(super) connect_packet_bytes_maximum: Ranged<256, 268_435_460>,
    pub(super) user_properties_maximum: Ranged<0, 4_294_967_295>,
    pub(super) publishes_per_second: Ranged<0, 1_000_000_000>,
}

impl Connections {
    /// Maximum number of connections of one address if the total is `maximum`; 0 = no bound.
    ///
    /// Scales the configured number by `maximum` over the configured total, but not below a quarter of `maximum`.
    pub(super) fn per_address(&self, maximum: usize) -> u32 {
        let configured = self.per_address_maximum.get();
        if configured == 0 {
            return 0;
        }
        let maximum = maximum as u64;
        let in_proportion = u128::from(configured) * u128::from(maximum) / self.maximum.max(1) as u128;
        let least = configured.min(maximum / 4).max(1);
        (in_proportion.min(configured.into()) as u64).max(least) as u32
    }
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            maximum: 100_000,
            per_address_maximum: Ranged(25_000),
            loopback_per_address_maximum: Ranged(0),
            connects_per_second: Ranged(0),
            connects_per_second_per_address: Ranged(0),
            connect_timeout_ms: Ranged(10_000),
            packet_timeout_ms: Ranged(30_000),
            keep_alive_maximum_seconds: Ranged(0),
            tcp_keepalive_idle_seconds: Ranged(60),
            tcp_keepalive_interval_seconds: Ranged(10),
            tcp_keepalive_probes: Ranged(3),
            tcp_user_timeout_seconds: Ranged(0),
            packet_bytes_maximum: Ranged(4 << 20),
            connect_packet_bytes_maximum: Ranged(256 << 10),
            user_properties_maximum: Ranged(1000),
            publishes_per_second: Ranged(0),
        }
    }
}

/// Features of MQTT that the broker offers. CONNACK reports those that are off.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Served {
    pub(super) maximum_qos: Ranged<0, 2>,
    /// Retained messages.
    pub retain: bool,
    /// Filters with wildcards.
    pub wildcard_subscriptions: bool,
    /// Subscription Identifiers.
    pub subscription_identifiers: bool,
    /// Shared subscriptions.
    pub shared_subscriptions: bool,
    /// Topic prefix for Response Information; empty = none is sent.
    #[serde(deserialize_with = "topic_levels")]
    pub response_information: String,
    /// Whether a payload that is declared as UTF-8 must be valid UTF-8.
    pub payload_format_check: bool,
}

impl Default for Served {
    fn default() -> Self {
        Self {
            maximum_qos: Ranged(2),
            retain: true,
            wildcard_subscriptions: true,
            subscription_identifiers: true,
            shared_subscriptions: true,
            response_information: String::new(),
            payload_format_check: false,
        }
    }
}

/// Limits of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// Maximum number of sessions, connected or not.
    pub maximum: usize,
    pub(super) per_address_maximum: Ranged<0, 4_294_967_295>,
    pub(super) loopback_per_address_maximum: Ranged<0, 4_294_967_295>,
    pub(super) client_id_bytes_maximum: Ranged<23, 65_535>,
    pub(super) expiry_maximum_seconds: Ranged<0, 4_294_967_295>,
    pub(super) receive_maximum: Ranged<1, 65_535>,
    pub(super) in_flight_maximum: Ranged<1, 65_535>,
    pub(super) topic_alias_maximum: Ranged<0, 65_535>,
    pub(super) topic_aliases_sent: Ranged<0, 65_535>,
    /// Maximum number of subscriptions of one client.
    pub subscriptions_maximum: usize,
    pub(super) filters_per_packet_maximum: Ranged<1, 1_000_000>,
    pub(super) wildcard_patterns_maximum: Ranged<1, 1_000_000>,
    pub(super) subscription_bytes_maximum: Ranged<1024, 4_294_967_295>,
    pub(super) topic_bytes_maximum: Ranged<1, 65_535>,
    pub(super) topic_levels_maximum: Ranged<1, 1000>,
    pub(super) will_bytes_maximum: Ranged<0, 268_435_460>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            maximum: 1_000_000,
            per_address_maximum: Ranged(50_000),
            loopback_per_address_maximum: Ranged(0),
            client_id_bytes_maximum: Ranged(1024),
            expiry_maximum_seconds: Ranged(u64::from(u32::MAX)),
            receive_maximum: Ranged(1024),
            in_flight_maximum: Ranged(1024),
            topic_alias_maximum: Ranged(10),
            topic_aliases_sent: Ranged(32),
            subscriptions_maximum: 10_000,
            filters_per_packet_maximum: Ranged(1000),
            wildcard_patterns_maximum: Ranged(100),
            subscription_bytes_maximum: Ranged(32 << 20),
            topic_bytes_maximum: Ranged(65_535),
            topic_levels_maximum: Ranged(128),
            will_bytes_maximum: Ranged(131_072),
        }
    }
}

/// Bounds of each client's queue and of all queues together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    pub(super) messages_maximum: Ranged<1, 4_294_967_295>,
    pub(super) bytes_maximum: Ranged<1024, 1_099_511_627_776>,
    pub(super) total_bytes_maximum: Ranged<1024, 1_099_511_627_776>,
    /// Overflow policy for QoS 0 messages.
    pub when_full: WhenFull,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            messages_maximum: Ranged(16_384),
            bytes_maximum: Ranged(16 << 20),
            total_bytes_maximum: Ranged(1 << 30),
            when_full: WhenFull::DropOldest,
        }
    }
}

/// Bounds of retained messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retained {
    /// Maximum number of messages.
    pub messages_maximum: usize,
    /// Maximum number of bytes.
    pub bytes_maximum: usize,
}

impl Default for Retained {
    fn default() -> Self {
        Self { messages_maximum: 1_000_000, bytes_maximum: 1 << 30 }
    }
}

/// Bounds of the memory that clients occupy besides queues and retained messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub(super) bytes_maximum: Ranged<1024, 1_099_511_627_776>,
    pub(super) user_bytes_maximum: Ranged<0, 1_099_511_627_776>,
    pub(super) address_bytes_maximum: Ranged<0, 1_099_511_627_776>,
    pub(super) loopback_address_bytes_maximum: Ranged<0, 1_099_511_627_776>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_maximum: Ranged(2 << 30),
            user_bytes_maximum: Ranged(256 << 20),
            address_bytes_maximum: Ranged(48 << 20),
            loopback_address_bytes_maximum: Ranged(48 << 20),
        }
    }
}

/// Remembered speeds of clients that left share groups: for how long and how many.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Speeds {
    pub(super) seconds: Ranged<0, 604_800>,
    /// Maximum number of entries, one for each client and group.
    pub maximum: usize,
}

impl Default for Speeds {
    fn default() -> Self {
        Self { seconds: Ranged(3600), maximum: 100_000 }
    }
}

/// Status topics below `$SYS/`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sys {
    pub(super) interval_seconds: Ranged<0, 86_400>,
}

impl Default for Sys {
    fn default() -> Self {
        Self { interval_seconds: Ranged(10) }
    }
}

/// Recorded decisions of share groups.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    pub(super) decisions_maximum: Ranged<0, 4096>,
    pub(super) pause_ms: Ranged<0, 60_000>,
}

impl Default for Explain {
    fn default() -> Self {
        Self { decisions_maximum: Ranged(64), pause_ms: Ranged(10) }
    }
}

/// Bounds of the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    pub(super) text_characters_maximum: Ranged<16, 65_535>,
    pub(super) lines_per_second_per_address: Ranged<0, 1_000_000_000>,
    pub(super) lines_per_second: Ranged<0, 1_000_000_000>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            text_characters_maximum: Ranged(128),
            lines_per_second_per_address: Ranged(10),
            lines_per_second: Ranged(1000),
        }
    }
}

/// Storage on disk.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Directory of the command `tenbin broker`; empty = no storage.
    pub directory: PathBuf,
    /// When data counts as durable.
    pub sync: SyncWhen,
    pub(super) sync_interval_ms: Ranged<1, 3_600_000>,
    pub(super) queue_bytes_maximum: Ranged<0, { 1 << 50 }>,
    #[serde(deserialize_with = "store_bytes")]
    pub(super) bytes_maximum: Ranged<0, { 1 << 50 }>,
    /// Whether stored messages are delivered only once they are durable. The publisher's thread waits, with all its
    /// clients.
    pub publishers_wait: bool,
}

/// When data on disk counts as durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncWhen {
    /// After the disk has confirmed it: a power cut loses no acknowledged message.
    #[default]
    Always,
    /// At once; the disk confirms it every interval. A power cut loses the data since then.
    Interval,
    /// At once. A power cut loses data that the system has not written yet.
    Never,
}

impl Store {
    pub(crate) fn sync(&self) -> Sync {
        match self.sync {
            SyncWhen::Always => Sync::Always,
            SyncWhen::Interval => Sync::Interval(Duration::from_millis(self.sync_interval_ms.get())),
            SyncWhen::Never => Sync::Never,
        }
    }
}

impl Store {
    /// Bound on one session's messages on disk, in bytes.
    pub(crate) fn queue_bytes_maximum(&self) -> u64 {
        self.queue_bytes_maximum.get()
    }

    /// Bound on the store's disk space, in bytes; 0 = no bound.
    pub(crate) fn bytes_maximum(&self) -> u64 {
        self.bytes_maximum.get()
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            directory: "tenbin-data".into(),
            sync: SyncWhen::Always,
            sync_interval_ms: Ranged(1000),
            queue_bytes_maximum: Ranged(4 << 30),
            bytes_maximum: Ranged(0),
            publishers_wait: false,
        }
    }
}

/// Smallest bound with room for messages besides preallocated files.
const STORE_BYTES_MIN: u64 = 256 << 20;

fn store_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Ranged<0, { 1 << 50 }>, D::Error> {
    let bytes = Ranged::deserialize(deserializer)?;
    if bytes.get() == 0 || bytes.get() >= STORE_BYTES_MIN {
        return Ok(bytes);
    }
    let least = format!("needs to be 0, for no bound, or at least {STORE_BYTES_MIN}");
    Err(serde::de::Error::custom(least))
}

fn topic_levels<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let levels = String::deserialize(deserializer)?;
    if levels.is_empty() || TopicName::try_from(&levels[..]).is_ok_and(|_| levels.len() <= 1024) {
        return Ok(levels);
    }
    Err(serde::de::Error::custom("needs to be the first levels of a topic, without wildcards"))
}
