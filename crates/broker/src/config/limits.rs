//! The limits, rates and intervals that the tables of the configuration set.

use std::time::Duration;

use socket2::TcpKeepalive;

use super::tables::{Connections, Explain, Limits, Log, Sessions, Speeds};
use super::{Config, Listener};
use crate::values::{
    AdmissionLimits, DecisionLimits, MemoryLimits, Rate, SessionLimits, SpeedLimits, SubscriptionLimits,
};

impl Config {
    /// Maximum Packet Size, in bytes.
    pub fn packet_bytes_maximum(&self) -> u32 {
        self.connections.packet_bytes_maximum.get() as u32
    }

    /// Maximum number of connections of one address, and of one of this machine; 0 = no bound.
    pub fn connections_per_address_maximum(&self) -> (usize, usize) {
        let Connections { per_address_maximum, loopback_per_address_maximum, .. } = &self.connections;
        (per_address_maximum.get() as usize, loopback_per_address_maximum.get() as usize)
    }

    pub(crate) fn connect_packet_bytes_maximum(&self) -> u32 {
        self.connections.connect_packet_bytes_maximum.get() as u32
    }

    /// TCP keepalive settings, by which the system detects dead peers; `None` = no detection.
    pub(crate) fn tcp_keepalive(&self) -> Option<TcpKeepalive> {
        let connections = &self.connections;
        let idle = connections.tcp_keepalive_idle_seconds.get();
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(idle))
            .with_interval(Duration::from_secs(connections.tcp_keepalive_interval_seconds.get()))
            .with_retries(connections.tcp_keepalive_probes.get() as u32);
        (idle > 0).then_some(keepalive)
    }

    /// Maximum time for which a peer may leave data unacknowledged; `None` = the system's default.
    pub(crate) fn tcp_user_timeout(&self) -> Option<Duration> {
        let seconds = self.connections.tcp_user_timeout_seconds.get();
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connections.connect_timeout_ms.get())
    }

    pub(crate) fn packet_timeout(&self) -> Duration {
        Duration::from_millis(self.connections.packet_timeout_ms.get())
    }

    pub(crate) fn user_properties_maximum(&self) -> u32 {
        self.connections.user_properties_maximum.get() as u32
    }

    /// Maximum publish rate of a client of this listener; `None` = no bound.
    pub(crate) fn publish_rate(&self, listener: &Listener) -> Option<Rate> {
        let own = listener.publishes_per_second.map(u64::from);
        Rate::per_second(own.unwrap_or_else(|| self.connections.publishes_per_second.get()))
    }

    /// Limits by address for a total of `maximum` connections, which is at most the configured number.
    pub(crate) fn admission(&self, maximum: usize) -> AdmissionLimits {
        let connections = &self.connections;
        AdmissionLimits {
            per_address: connections.per_address(maximum),
            per_loopback_address: connections.loopback_per_address_maximum.get() as u32,
            connects_per_address: Rate::per_second(connections.connects_per_second_per_address.get()),
            connects: Rate::per_second(connections.connects_per_second.get()),
            failures_per_address: Rate::per_minute(connections.failures_per_minute_per_address.get()),
        }
    }

    pub(crate) fn session_limits(&self) -> SessionLimits {
        SessionLimits {
            per_address: self.sessions.per_address_maximum.get() as u32,
            per_loopback_address: self.sessions.loopback_per_address_maximum.get() as u32,
        }
    }

    pub(crate) fn client_id_bytes_maximum(&self) -> usize {
        self.sessions.client_id_bytes_maximum.get() as usize
    }

    pub(crate) fn topic_bytes_maximum(&self) -> usize {
        self.sessions.topic_bytes_maximum.get() as usize
    }

    /// Lowers the maximum length of Client Identifiers, topics and filters to `bytes`.
    pub(crate) fn bound_names(&mut self, bytes: u64) {
        let Sessions { client_id_bytes_maximum, topic_bytes_maximum, .. } = &mut self.sessions;
        client_id_bytes_maximum.0 = client_id_bytes_maximum.0.min(bytes);
        topic_bytes_maximum.0 = topic_bytes_maximum.0.min(bytes);
    }

    /// A key that has no effect any more, if the file has it.
    pub(crate) fn idle_key(&self) -> Option<&'static str> {
        self.sessions.filters_per_packet_maximum.is_some().then_some("sessions.filters_per_packet_maximum")
    }

    /// Maximum number of filters in one packet: a client can restore all of its subscriptions at once, and a few too many
    /// are refused one by one.
    pub(crate) fn filters_decoded_maximum(&self) -> u32 {
        let twice = self.sessions.subscriptions_maximum.saturating_mul(2);
        u32::try_from(twice).unwrap_or(u32::MAX).max(FILTERS_DECODED)
    }

    /// Limits of one session's subscriptions.
    pub(crate) fn subscription_limits(&self) -> SubscriptionLimits {
        SubscriptionLimits {
            count: self.sessions.subscriptions_maximum,
            bytes: self.sessions.subscription_bytes_maximum.get() as usize,
            patterns: self.sessions.wildcard_patterns_maximum.get() as usize,
        }
    }

    pub(crate) fn memory_limits(&self) -> MemoryLimits {
        let Limits { bytes_maximum, user_bytes_maximum, address_bytes_maximum, .. } = &self.limits;
        let loopback_address_bytes_maximum = &self.limits.loopback_address_bytes_maximum;
        MemoryLimits {
            all: bytes_maximum.get() as usize,
            user: user_bytes_maximum.get() as usize,
            address: address_bytes_maximum.get() as usize,
            loopback_address: loopback_address_bytes_maximum.get() as usize,
        }
    }

    /// Maximum number of one owner's share groups that a topic matches; 0 = no bound.
    pub(crate) fn groups_per_topic_maximum(&self) -> usize {
        self.limits.groups_per_topic_maximum.get() as usize
    }

    pub(crate) fn will_bytes_maximum(&self) -> usize {
        self.sessions.will_bytes_maximum.get() as usize
    }

    pub(crate) fn remembered_speeds(&self) -> SpeedLimits {
        let Speeds { seconds, maximum } = self.remembered_speeds;
        SpeedLimits { time: Duration::from_secs(seconds.get()), maximum }
    }

    pub(crate) fn decisions(&self) -> DecisionLimits {
        let Explain { decisions_maximum, pause_ms } = &self.explain;
        DecisionLimits { maximum: decisions_maximum.get() as usize, pause: Duration::from_millis(pause_ms.get()) }
    }

    /// Interval of the status topics; `None` = no status topics.
    pub(crate) fn sys_interval(&self) -> Option<Duration> {
        let seconds = self.sys.interval_seconds.get();
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Maximum length, in characters, of a client's text in the log.
    pub fn log_text_characters_maximum(&self) -> usize {
        self.log.text_characters_maximum.get() as usize
    }

    /// Rates of log lines caused by one address and by all; `None` = no bound.
    pub(crate) fn log_rates(&self) -> (Option<Rate>, Option<Rate>) {
        let Log { lines_per_second_per_address, lines_per_second, .. } = &self.log;
        (Rate::per_second(lines_per_second_per_address.get()), Rate::per_second(lines_per_second.get()))
    }

    pub(crate) fn in_flight_maximum(&self) -> u16 {
        self.sessions.in_flight_maximum.get() as u16
    }

    pub(crate) fn topic_levels_maximum(&self) -> usize {
        self.sessions.topic_levels_maximum.get() as usize
    }

    pub(crate) fn queue_messages_maximum(&self) -> usize {
        self.queue.messages_maximum.get() as usize
    }

    pub(crate) fn queue_bytes_maximum(&self) -> usize {
        self.queue.bytes_maximum.get() as usize
    }

    pub(crate) fn queue_total_bytes_maximum(&self) -> usize {
        self.queue.total_bytes_maximum.get() as usize
    }
}

/// Filters in one packet, with any bound on subscriptions.
const FILTERS_DECODED: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Bound;

    /// Keys of bounds that refuse, drop and disconnect nothing: they slow down, are negotiated, or bound
    /// memory of the broker itself.
    const WITHOUT_REFUSALS: [&str; 10] = [
        "connections.publishes_per_second",
        "connections.keep_alive_maximum_seconds",
        "capabilities.maximum_qos",
        "sessions.expiry_maximum_seconds",
        "sessions.in_flight_maximum",
        "remembered_speeds.maximum",
        "explain.decisions_maximum",
        "log.text_characters_maximum",
        "log.lines_per_second",
        "cluster.copy_bytes_per_second",
    ];

    #[test]
    fn each_bound_of_the_shipped_file_has_a_counter() {
        let mut table = "";
        let mut keys = Vec::new();
        for line in Config::DEFAULT_TOML.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                table = name;
            } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(['#', ' '])) {
                keys.push(format!("{table}.{key}"));
            }
        }
        let is_counted = |key: &str| Bound::ALL.iter().any(|bound| bound.key() == key);
        let is_bound =
            |key: &&String| key.contains("maximum") || key.contains("per_second") || key.contains("per_minute");
        for key in keys.iter().filter(is_bound) {
            let is_without = WITHOUT_REFUSALS.iter().any(|other| key.starts_with(other));
            assert!(
                is_counted(key) != is_without,
                "{key} looks like a bound: add it to bounds! in values/bound.rs, a row in \
                 tests/operation/admin/bounds.rs and docs/admin.md, or, if it refuses nothing, to WITHOUT_REFUSALS \
                 here; not both"
            );
        }
        for bound in Bound::ALL {
            assert!(keys.iter().any(|key| key == bound.key()), "{} is no key", bound.key());
        }
    }
}
