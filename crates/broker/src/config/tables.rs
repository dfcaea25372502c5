//! Tables of the configuration file, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenbin_codec::TopicName;
use tenbin_store::Sync;

use super::address::ListenAddress;
use super::range::Ranged;
use super::tls::Tls;
use crate::values::WhenFull;

/// Defines the tables: each key with its type and its default.
macro_rules! tables {
    ($(
        $(#[$description:meta])*
        pub struct $table:ident {
            $($(#[$attribute:meta])* $visibility:vis $key:ident: $type:ty = $default:expr,)*
        }
    )*) => {$(
        $(#[$description])*
        #[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $table {
            $($(#[$attribute])* $visibility $key: $type,)*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    )*};
}

tables! {
    /// Limits of Network Connections.
    pub struct Connections {
        /// Maximum number of connections.
        pub maximum: usize = 100_000,
        pub(super) per_address_maximum: Ranged<0, 4_294_967_295> = Ranged(25_000),
        pub(super) loopback_per_address_maximum: Ranged<0, 4_294_967_295> = Ranged(0),
        pub(super) connects_per_second: Ranged<0, 1_000_000_000> = Ranged(0),
        pub(super) connects_per_second_per_address: Ranged<0, 1_000_000_000> = Ranged(0),
        pub(super) failures_per_minute_per_address: Ranged<0, 1_000_000> = Ranged(0),
        pub(super) connect_timeout_ms: Ranged<1, 600_000> = Ranged(10_000),
        pub(super) packet_timeout_ms: Ranged<1, 86_400_000> = Ranged(30_000),
        pub(super) keep_alive_maximum_seconds: Ranged<0, 65_535> = Ranged(0),
        pub(super) tcp_keepalive_idle_seconds: Ranged<0, 32_767> = Ranged(60),
        pub(super) tcp_keepalive_interval_seconds: Ranged<1, 32_767> = Ranged(10),
        pub(super) tcp_keepalive_probes: Ranged<1, 127> = Ranged(3),
        pub(super) tcp_user_timeout_seconds: Ranged<0, 86_400> = Ranged(0),
        pub(super) packet_bytes_maximum: Ranged<256, 268_435_460> = Ranged(4 << 20),
        pub(super) connect_packet_bytes_maximum: Ranged<256, 268_435_460> = Ranged(256 << 10),
        pub(super) user_properties_maximum: Ranged<0, 4_294_967_295> = Ranged(1000),
        pub(super) publishes_per_second: Ranged<0, 1_000_000_000> = Ranged(0),
    }

    /// Features of MQTT that the broker offers. CONNACK reports those that are off.
    pub struct Served {
        pub(super) maximum_qos: Ranged<0, 2> = Ranged(2),
        /// Retained messages.
        pub retain: bool = true,
        /// Filters with wildcards.
        pub wildcard_subscriptions: bool = true,
        /// Subscription Identifiers.
        pub subscription_identifiers: bool = true,
        /// Shared subscriptions.
        pub shared_subscriptions: bool = true,
        /// Topic prefix for Response Information; empty = none is sent.
        #[serde(deserialize_with = "topic_levels")]
        pub response_information: String = String::new(),
        /// Whether a payload that is declared as UTF-8 must be valid UTF-8.
        pub payload_format_check: bool = false,
    }

    /// Limits of sessions.
    pub struct Sessions {
        /// Maximum number of sessions, connected or not.
        pub maximum: usize = 1_000_000,
        pub(super) per_address_maximum: Ranged<0, 4_294_967_295> = Ranged(50_000),
        pub(super) loopback_per_address_maximum: Ranged<0, 4_294_967_295> = Ranged(0),
        pub(super) client_id_bytes_maximum: Ranged<23, 65_535> = Ranged(1024),
        pub(super) expiry_maximum_seconds: Ranged<0, 4_294_967_295> = Ranged(u64::from(u32::MAX)),
        pub(super) receive_maximum: Ranged<1, 65_535> = Ranged(1024),
        pub(super) in_flight_maximum: Ranged<1, 65_535> = Ranged(1024),
        pub(super) topic_alias_maximum: Ranged<0, 65_535> = Ranged(10),
        pub(super) topic_aliases_sent: Ranged<0, 65_535> = Ranged(32),
        /// Maximum number of subscriptions of one client.
        pub subscriptions_maximum: usize = 10_000,
        /// Has no effect; older files may have it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(super) filters_per_packet_maximum: Option<Ranged<1, 1_000_000>> = None,
        pub(super) wildcard_patterns_maximum: Ranged<1, 1_000_000> = Ranged(100),
        pub(super) subscription_bytes_maximum: Ranged<1024, 4_294_967_295> = Ranged(32 << 20),
        pub(super) topic_bytes_maximum: Ranged<1, 65_535> = Ranged(65_535),
        pub(super) topic_levels_maximum: Ranged<1, 1000> = Ranged(128),
        pub(super) will_bytes_maximum: Ranged<0, 268_435_460> = Ranged(131_072),
    }

    /// Bounds of each client's queue and of all queues together.
    pub struct Queue {
        pub(super) messages_maximum: Ranged<1, 4_294_967_295> = Ranged(16_384),
        pub(super) bytes_maximum: Ranged<1024, 1_099_511_627_776> = Ranged(16 << 20),
        pub(super) total_bytes_maximum: Ranged<1024, 1_099_511_627_776> = Ranged(1 << 30),
        /// Overflow policy for QoS 0 messages.
        pub when_full: WhenFull = WhenFull::DropOldest,
    }

    /// Bounds of retained messages.
    pub struct Retained {
        /// Maximum number of messages.
        pub messages_maximum: usize = 1_000_000,
        /// Maximum number of bytes.
        pub bytes_maximum: usize = 1 << 30,
    }

    /// Bounds of the memory that clients occupy outside of queues and retained messages.
    pub struct Limits {
        pub(super) bytes_maximum: Ranged<1024, 1_099_511_627_776> = Ranged(2 << 30),
        pub(super) user_bytes_maximum: Ranged<0, 1_099_511_627_776> = Ranged(256 << 20),
        pub(super) address_bytes_maximum: Ranged<0, 1_099_511_627_776> = Ranged(48 << 20),
        pub(super) loopback_address_bytes_maximum: Ranged<0, 1_099_511_627_776> = Ranged(48 << 20),
        pub(super) groups_per_topic_maximum: Ranged<0, 1_000_000> = Ranged(256),
    }

    /// Remembered speeds of clients that left share groups: for how long and how many.
    pub struct Speeds {
        pub(super) seconds: Ranged<0, 604_800> = Ranged(3600),
        /// Maximum number of entries, one for each client and group.
        pub maximum: usize = 100_000,
    }

    /// Status topics below `$SYS/`.
    pub struct Sys {
        pub(super) interval_seconds: Ranged<0, 86_400> = Ranged(10),
    }

    /// Recorded decisions of share groups.
    pub struct Explain {
        pub(super) decisions_maximum: Ranged<0, 4096> = Ranged(64),
        pub(super) pause_ms: Ranged<0, 60_000> = Ranged(10),
    }

    /// Bounds of the log.
    pub struct Log {
        pub(super) text_characters_maximum: Ranged<16, 65_535> = Ranged(128),
        pub(super) lines_per_second_per_address: Ranged<0, 1_000_000_000> = Ranged(10),
        pub(super) lines_per_second: Ranged<0, 1_000_000_000> = Ranged(1000),
    }

    /// Admin HTTP.
    pub struct Admin {
        /// Address of the command's admin HTTP, in a form of [`ListenAddress`]; empty = off.
        #[serde(deserialize_with = "admin_address")]
        pub address: String = Admin::ADDRESS.to_owned(),
        /// File of tokens, see `tenbin admin token`; empty = none but the local operator's.
        pub tokens: PathBuf = PathBuf::new(),
        /// Names of the server in `Host`, in addition to IP addresses and `localhost`.
        pub hosts: Vec<String> = Vec::new(),
        /// File whose first line is a viewer's token; empty = none.
        pub viewer_token_file: PathBuf = PathBuf::new(),
        /// TLS of the server, with the keys of a listener's.
        #[serde(skip_serializing)]
        pub tls: Option<Tls> = None,
    }

    /// Storage on disk.
    pub struct Store {
        /// Directory of the command `tenbin broker`; empty = no storage.
        pub directory: PathBuf = "tenbin-data".into(),
        /// When data counts as durable.
        pub sync: SyncWhen = SyncWhen::Always,
        pub(super) sync_interval_ms: Ranged<1, 3_600_000> = Ranged(1000),
        pub(super) queue_bytes_maximum: Ranged<0, { 1 << 50 }> = Ranged(4 << 30),
        #[serde(deserialize_with = "store_bytes")]
        pub(super) bytes_maximum: Ranged<0, { 1 << 50 }> = Ranged(0),
        /// Whether stored messages are delivered only once they are durable. The publisher's thread waits, with all its
        /// clients.
        pub publishers_wait: bool = false,
    }
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
    /// When a change counts as durable.
    pub fn sync(&self) -> Sync {
        match self.sync {
            SyncWhen::Always => Sync::Always,
            SyncWhen::Interval => Sync::Interval(Duration::from_millis(self.sync_interval_ms.get())),
            SyncWhen::Never => Sync::Never,
        }
    }

    /// Bound on one session's messages on disk, in bytes.
    pub(crate) fn queue_bytes_maximum(&self) -> u64 {
        self.queue_bytes_maximum.get()
    }

    /// Bound on the store's disk space, in bytes; 0 = no bound.
    pub(crate) fn bytes_maximum(&self) -> u64 {
        self.bytes_maximum.get()
    }
}

/// Smallest bound with room for messages beside preallocated files.
const STORE_BYTES_MIN: u64 = 256 << 20;

fn store_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Ranged<0, { 1 << 50 }>, D::Error> {
    let bytes = Ranged::deserialize(deserializer)?;
    if bytes.get() == 0 || bytes.get() >= STORE_BYTES_MIN {
        return Ok(bytes);
    }
    let least = format!("needs to be 0, for no bound, or at least {STORE_BYTES_MIN}");
    Err(serde::de::Error::custom(least))
}

impl Admin {
    /// The default address.
    pub(crate) const ADDRESS: &'static str = "127.0.0.1:9883";

    /// Address to listen on; `None` = off.
    pub(crate) fn address(&self) -> Option<ListenAddress> {
        self.address.parse().ok()
    }
}

fn admin_address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.parse::<ListenAddress>() {
        Err(error) if !text.is_empty() => Err(serde::de::Error::custom(error)),
        _ => Ok(text),
    }
}

fn topic_levels<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let levels = String::deserialize(deserializer)?;
    if levels.is_empty() || TopicName::try_from(&levels[..]).is_ok_and(|_| levels.len() <= 1024) {
        return Ok(levels);
    }
    Err(serde::de::Error::custom("needs to be the first levels of a topic, without wildcards"))
}
