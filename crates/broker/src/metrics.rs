use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters of a broker: their descriptions, names and kinds, and their topics below `$SYS/broker/`.
macro_rules! metrics {
    ($($(#[$description:meta])* $name:ident: $kind:ident $(=> $topic:literal)?,)*) => {
        /// Counters of one broker since it started.
        ///
        /// Updated once per batch, never per message. All orderings are relaxed, since the counters publish no other
        /// memory.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub(crate) $name: $kind,)*
        }

        /// Values of the counters at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct MetricsSnapshot {
            $($(#[$description])* pub $name: u64,)*
        }

        impl Metrics {
            /// Reads all counters, one after the other.
            pub(crate) fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.$name.get(),)* }
            }
        }

        impl MetricsSnapshot {
            /// Topics below `$SYS/broker/` that show one counter each, with its value.
            pub(crate) fn topics(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$($(($topic, self.$name),)?)*].into_iter()
            }
        }
    };
}

metrics! {
    /// Network Connections accepted.
    connections_opened: Counter => "connections/opened",
    /// Network Connections ended.
    connections_closed: Counter,
    /// Network Connections closed at once because of a limit.
    connections_refused: Counter => "connections/refused",
    /// Migrations of connections between the broker's threads.
    connections_moved: Counter => "connections/moved",
    /// Connections ended because the peer broke a protocol rule or limit.
    violations: Counter => "connections/violations",
    /// CONNECTs refused because of a rate limit.
    connects_rate_limited: Counter => "connections/rate_limited",
    /// TLS handshakes that succeeded.
    tls_handshakes: Counter => "connections/tls/accepted",
    /// TLS handshakes that failed or took too long.
    tls_handshakes_failed: Counter => "connections/tls/failed",
    /// Times that changed TLS files were read again without a reload.
    tls_reloads: Counter => "connections/tls/reloaded",
    /// Times that TLS files could not be used, so that the old ones stayed.
    tls_reloads_failed: Counter => "connections/tls/reload_failed",
    /// Upgrades to WebSocket that succeeded.
    websocket_upgrades: Counter => "connections/websocket/accepted",
    /// Upgrades to WebSocket that were refused or took too long.
    websocket_upgrades_failed: Counter => "connections/websocket/failed",
    /// CONNECTs accepted.
    connects_accepted: Counter,
    /// Connected clients now.
    clients_connected: Gauge => "clients/connected",
    /// Maximum number of clients connected at the same time.
    clients_maximum: Counter => "clients/maximum",
    /// Sessions that expired before their client returned.
    clients_expired: Counter => "clients/expired",
    /// Subscriptions of all sessions now.
    subscriptions: Gauge => "subscriptions/count",
    /// Control packets received from clients, from an accepted CONNECT on.
    packets_received: Counter => "messages/received",
    /// Control packets sent to clients, from an accepting CONNACK on, without DISCONNECT.
    packets_sent: Counter => "messages/sent",
    /// Bytes read from clients whose CONNECT was accepted.
    bytes_received: Counter => "bytes/received",
    /// Bytes written to clients whose CONNECT was accepted, without final packets such as DISCONNECT.
    bytes_sent: Counter => "bytes/sent",
    /// PUBLISH packets received.
    messages_received: Counter => "publish/messages/received",
    /// PUBLISH packets sent, without resends.
    messages_sent: Counter => "publish/messages/sent",
    /// Messages dropped because a queue was full.
    dropped_queue_full: Counter => "publish/messages/dropped/queue_full",
    /// QoS 0 messages dropped because their receiver was not connected.
    dropped_offline: Counter => "publish/messages/dropped/offline",
    /// Messages dropped because they expired.
    dropped_expired: Counter => "publish/messages/dropped/expired",
    /// Messages dropped because they exceed the receiver's Maximum Packet Size.
    dropped_too_large: Counter => "publish/messages/dropped/too_large",
    /// QoS 1 and 2 messages refused because a receiver's queue was over its limit, counted once per receiver.
    ///
    /// Includes messages that were not retained because of the limits of `[retained]`.
    refused_over_quota: Counter => "publish/messages/refused/over_quota",
    /// Watched clients now: they take messages more slowly than these arrive.
    clients_watch: Gauge => "clients/watch",
    /// Spilling clients now: so slow that their messages are on disk.
    clients_spooling: Gauge => "clients/spooling",
    /// Times that a client became watched.
    watch_begun: Counter => "watch/begun",
    /// Times that a client began to spill.
    spooling_begun: Counter => "spooling/begun",
    /// Times that a client stopped spilling.
    spooling_ended: Counter => "spooling/ended",
    /// Clients disconnected because they were too slow.
    disconnected_slow: Counter => "spooling/disconnected",
    /// Times that reading from a client paused because it published too fast.
    publishers_paused: Counter => "publish/paused",
    /// Accepted load reports.
    load_reports: Counter => "load_reports/accepted",
    /// Load reports that could not be parsed.
    load_reports_rejected: Counter => "load_reports/rejected",
}

impl Metrics {
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
