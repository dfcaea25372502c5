use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one broker since it started.
///
/// Updated once per batch, never per message. All orderings are relaxed, since the counters publish no other memory.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections_opened: Counter,
    pub(crate) connections_closed: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) connections_moved: Counter,
    pub(crate) violations: Counter,
    pub(crate) connects_rate_limited: Counter,
    pub(crate) connects_accepted: Counter,
    pub(crate) clients_connected: Gauge,
    pub(crate) clients_maximum: Counter,
    pub(crate) clients_expired: Counter,
    pub(crate) subscriptions: Gauge,
    pub(crate) packets_received: Counter,
    pub(crate) packets_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) messages_received: Counter,
    pub(crate) messages_sent: Counter,
    pub(crate) dropped_queue_full: Counter,
    pub(crate) dropped_offline: Counter,
    pub(crate) dropped_expired: Counter,
    pub(crate) dropped_too_large: Counter,
    pub(crate) refused_over_quota: Counter,
    pub(crate) clients_watch: Gauge,
    pub(crate) clients_spooling: Gauge,
    pub(crate) watch_begun: Counter,
    pub(crate) spooling_begun: Counter,
    pub(crate) spooling_ended: Counter,
    pub(crate) disconnected_slow: Counter,
    pub(crate) publishers_paused: Counter,
    pub(crate) load_reports: Counter,
    pub(crate) load_reports_rejected: Counter,
}

/// Values of the counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Network Connections accepted.
    pub connections_opened: u64,
    /// Network Connections ended.
    pub connections_closed: u64,
    /// Network Connections closed at once because of a limit.
    pub connections_refused: u64,
    /// Migrations of connections between the broker's threads.
    pub connections_moved: u64,
    /// Connections ended because the peer broke a protocol rule or limit.
    pub violations: u64,
    /// CONNECTs refused because of a rate limit.
    pub connects_rate_limited: u64,
    /// CONNECTs accepted.
    pub connects_accepted: u64,
    /// Connected clients now.
    pub clients_connected: u64,
    /// Maximum number of clients connected at the same time.
    pub clients_maximum: u64,
    /// Sessions that expired before their client returned.
    pub clients_expired: u64,
    /// Subscriptions of all sessions now.
    pub subscriptions: u64,
    /// Control packets received from clients, from an accepted CONNECT on.
    pub packets_received: u64,
    /// Control packets sent to clients, from an accepting CONNACK on, without DISCONNECT.
    pub packets_sent: u64,
    /// Bytes read from clients whose CONNECT was accepted.
    pub bytes_received: u64,
    /// Bytes written to clients whose CONNECT was accepted, without final packets such as DISCONNECT.
    pub bytes_sent: u64,
    /// PUBLISH packets received.
    pub messages_received: u64,
    /// PUBLISH packets sent, without resends.
    pub messages_sent: u64,
    /// Messages dropped because a queue was full.
    pub dropped_queue_full: u64,
    /// QoS 0 messages dropped because their receiver was not connected.
    pub dropped_offline: u64,
    /// Messages dropped because they expired.
    pub dropped_expired: u64,
    /// Messages dropped because they exceed the receiver's Maximum Packet Size.
    pub dropped_too_large: u64,
    /// QoS 1 and 2 messages refused because a receiver's queue was over its limit, counted once per receiver.
    ///
    /// Includes messages that were not retained because of the limits of `[retained]`.
    pub refused_over_quota: u64,
    /// Watched clients now: they take messages more slowly than these arrive.
    pub clients_watch: u64,
    /// Spilling clients now: so slow that their messages are on disk.
    pub clients_spooling: u64,
    /// Times that a client became watched.
    pub watch_begun: u64,
    /// Times that a client began to spill.
    pub spooling_begun: u64,
    /// Times that a client stopped spilling.
    pub spooling_ended: u64,
    /// Clients disconnected because they were too slow.
    pub disconnected_slow: u64,
    /// Times that reading from a client paused because it published too fast.
    pub publishers_paused: u64,
    /// Accepted load reports.
    pub load_reports: u64,
    /// Load reports that could not be parsed.
    pub load_reports_rejected: u64,
}

impl Metrics {
    /// Reads all counters, one after the other.
    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        MetricsSnapshot {
            connections_opened: self.connections_opened.get(),
            connections_closed: self.connections_closed.get(),
            connections_refused: self.connections_refused.get(),
            connections_moved: self.connections_moved.get(),
            violations: self.violations.get(),
            connects_rate_limited: self.connects_rate_limited.get(),
            connects_accepted: self.connects_accepted.get(),
            clients_connected: self.clients_connected.get(),
            clients_maximum: self.clients_maximum.get(),
            clients_expired: self.clients_expired.get(),
            subscriptions: self.subscriptions.get(),
            packets_received: self.packets_received.get(),
            packets_sent: self.packets_sent.get(),
            bytes_received: self.bytes_received.get(),
            bytes_sent: self.bytes_sent.get(),
            messages_received: self.messages_received.get(),
            messages_sent: self.messages_sent.get(),
            dropped_queue_full: self.dropped_queue_full.get(),
            dropped_offline: self.dropped_offline.get(),
            dropped_expired: self.dropped_expired.get(),
            dropped_too_large: self.dropped_too_large.get(),
            refused_over_quota: self.refused_over_quota.get(),
            clients_watch: self.clients_watch.get(),
            clients_spooling: self.clients_spooling.get(),
            watch_begun: self.watch_begun.get(),
            spooling_begun: self.spooling_begun.get(),
            spooling_ended: self.spooling_ended.get(),
            disconnected_slow: self.disconnected_slow.get(),
            publishers_paused: self.publishers_paused.get(),
            load_reports: self.load_reports.get(),
            load_reports_rejected: self.load_reports_rejected.get(),
        }
    }

    /// Control packets in both directions.
    pub(crate) fn packets(&self) -> u64 {
        self.packets_received.get() + self.packets_sent.get()
    }

    pub(crate) fn client_connected(&self) {
        self.connects_accepted.add(1);
        let connected = self.clients_connected.add(1);
        self.clients_maximum.raise_to(connected);
    }
}

impl MetricsSnapshot {
    /// Number of dropped messages, for all reasons together.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue_full + self.dropped_offline + self.dropped_expired + self.dropped_too_large
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Current number of items. Each addition precedes its subtraction, so it never falls below zero.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    /// Adds `count` and returns the new value.
    pub(crate) fn add(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed) + count
    }

    pub(crate) fn subtract(&self, count: u64) {
        if count > 0 {
            self.0.fetch_sub(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
