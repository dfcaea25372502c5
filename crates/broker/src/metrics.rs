mod bounds;
mod timings;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tenbin_codec::QoS;

use bounds::Bounds;
pub(crate) use timings::Timings;

/// Defines the counters of a broker: their descriptions, names and kinds, their topics below `$SYS/broker/`, and their
/// places among the metrics of `/metrics`.
macro_rules! metrics {
    ($(
        $(#[doc = $description:literal])* $name:ident: $kind:ident $(=> $topic:literal)?
        $(as $family:literal $({ $label:ident = $value:literal })?)?,
    )*) => {
        /// Counters of one broker since it started.
        ///
        /// Updated once per batch, never per message. All orderings are relaxed, since the counters publish no other
        /// memory.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub(crate) $name: $kind,)*
            pub(crate) bounds: Bounds,
            timings: OnceLock<Box<Timings>>,
        }

        /// Values of the counters at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct MetricsSnapshot {
            $($(#[doc = $description])* pub $name: u64,)*
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

            /// Names of the counters, with their values.
            pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Samples for `/metrics`.
            pub(crate) fn samples(&self) -> impl Iterator<Item = MetricSample> {
                let places: [Option<SampleName>; _] = [$({
                    let places: &[SampleName] = &[$(($family, [$((stringify!($label), $value))?].first().copied()))?];
                    places.first().copied()
                },)*];
                let told = [$(([$($description),*][0].trim(), self.$name),)*];
                places.into_iter().zip(told).filter_map(|(place, (help, value))| {
                    place.map(|(family, label)| MetricSample { family, label, help, value })
                })
            }
        }
    };
}

/// Family of a sample, and the label that tells its samples apart.
type SampleName = (&'static str, Option<(&'static str, &'static str)>);

/// A counter as a sample of a family of metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricSample {
    /// Ends with `_total` if the value only rises.
    pub(crate) family: &'static str,
    /// Name and value of the label that tells the samples of one family apart.
    pub(crate) label: Option<(&'static str, &'static str)>,
    pub(crate) help: &'static str,
    pub(crate) value: u64,
}

metrics! {
    /// Network Connections accepted.
    connections_opened: Counter => "connections/opened" as "tenbin_connections_opened_total",
    /// Network Connections ended.
    connections_closed: Counter as "tenbin_connections_closed_total",
    /// Network Connections closed at once because of a limit.
    connections_refused: Counter => "connections/refused" as "tenbin_connections_refused_total",
    /// Migrations of connections between the broker's threads.
    connections_moved: Counter => "connections/moved" as "tenbin_connections_moved_total",
    /// Connections ended because the peer broke a protocol rule or limit.
    violations: Counter => "connections/violations" as "tenbin_violations_total",
    /// CONNECTs refused because of a rate limit.
    connects_rate_limited: Counter => "connections/rate_limited" as "tenbin_connects_total" { result = "rate_limited" },
    /// Logins refused, also those of clients that were connected.
    logins_refused: Counter as "tenbin_connects_total" { result = "login_refused" },
    /// TLS handshakes that succeeded.
    tls_handshakes: Counter => "connections/tls/accepted" as "tenbin_tls_handshakes_total" { result = "accepted" },
    /// TLS handshakes that failed or took too long.
    tls_handshakes_failed: Counter => "connections/tls/failed" as "tenbin_tls_handshakes_total" { result = "failed" },
    /// Times that changed TLS files were read again without a reload.
    tls_reloads: Counter => "connections/tls/reloaded" as "tenbin_tls_reloads_total" { result = "read" },
    /// Times that TLS files could not be used, so that the old ones stayed.
    tls_reloads_failed: Counter => "connections/tls/reload_failed" as "tenbin_tls_reloads_total" { result = "failed" },
    /// Upgrades to WebSocket that succeeded.
    websocket_upgrades: Counter => "connections/websocket/accepted" as "tenbin_websocket_upgrades_total" { result = "accepted" },
    /// Upgrades to WebSocket that were refused or took too long.
    websocket_upgrades_failed: Counter => "connections/websocket/failed" as "tenbin_websocket_upgrades_total" { result = "failed" },
    /// CONNECTs accepted.
    connects_accepted: Counter as "tenbin_connects_total" { result = "accepted" },
    /// Connected clients now.
    clients_connected: Gauge => "clients/connected" as "tenbin_clients_connected",
    /// Maximum number of clients connected at the same time.
    clients_maximum: Counter => "clients/maximum" as "tenbin_clients_connected_maximum",
    /// Sessions that expired before their client returned.
    clients_expired: Counter => "clients/expired" as "tenbin_sessions_expired_total",
    /// Subscriptions of all sessions now.
    subscriptions: Gauge => "subscriptions/count" as "tenbin_subscriptions",
    /// Subscriptions refused because of a limit.
    subscriptions_refused: Counter => "subscriptions/refused" as "tenbin_subscriptions_refused_total" { cause = "limit" },
    /// Subscriptions refused because the rules deny them.
    subscriptions_denied: Counter as "tenbin_subscriptions_refused_total" { cause = "acl" },
    /// Subscriptions refused because `[capabilities]` leaves them out.
    subscriptions_unsupported: Counter as "tenbin_subscriptions_refused_total" { cause = "not_supported" },
    /// Packets with an invalid Topic Filter, each of which has ended its connection.
    subscriptions_invalid: Counter as "tenbin_subscriptions_refused_total" { cause = "invalid_filter" },
    /// Subscriptions refused by hooks.
    subscriptions_hooked: Counter as "tenbin_subscriptions_refused_total" { cause = "hook" },
    /// Subscriptions refused because the disk is congested.
    subscriptions_congested: Counter as "tenbin_subscriptions_refused_total" { cause = "disk" },
    /// Control packets received from clients, from an accepted CONNECT on.
    packets_received: Counter => "messages/received" as "tenbin_packets_received_total",
    /// Control packets sent to clients, from an accepting CONNACK on, without DISCONNECT.
    packets_sent: Counter => "messages/sent" as "tenbin_packets_sent_total",
    /// Bytes read from clients whose CONNECT was accepted.
    bytes_received: Counter => "bytes/received" as "tenbin_bytes_received_total",
    /// Bytes written to clients whose CONNECT was accepted, without final packets such as DISCONNECT.
    bytes_sent: Counter => "bytes/sent" as "tenbin_bytes_sent_total",
    /// PUBLISH packets received.
    messages_received: ByQoS => "publish/messages/received",
    /// PUBLISH packets sent, without resends.
    messages_sent: ByQoS => "publish/messages/sent",
    /// Messages sent by reference: the follower's relay puts their payloads in.
    messages_by_reference: Counter => "publish/messages/by_reference" as "tenbin_messages_by_reference_total",
    /// Times that a slow receiver was asked to the follower.
    slow_moved: Counter => "spooling/moved" as "tenbin_slow_moved_total",
    /// Times that a receiver without a backlog was asked back to the leader.
    slow_returned: Counter => "spooling/returned" as "tenbin_slow_returned_total",
    /// Messages dropped because a queue was full.
    dropped_queue_full: Counter => "publish/messages/dropped/queue_full" as "tenbin_dropped_total" { reason = "queue_full" },
    /// QoS 0 messages dropped because their receiver was not connected.
    dropped_offline: Counter => "publish/messages/dropped/offline" as "tenbin_dropped_total" { reason = "offline" },
    /// Messages dropped because they expired.
    dropped_expired: Counter => "publish/messages/dropped/expired" as "tenbin_dropped_total" { reason = "expired" },
    /// Messages dropped because they exceed the receiver's Maximum Packet Size.
    dropped_too_large: Counter => "publish/messages/dropped/too_large" as "tenbin_dropped_total" { reason = "too_large" },
    /// Queued QoS 1 and 2 messages now that connected clients may not receive: they wait for the right.
    messages_withheld: Gauge => "publish/messages/withheld" as "tenbin_messages_withheld",
    /// Messages of share groups that went from a blocked member to another, and so may be behind newer ones.
    messages_moved: Counter => "publish/messages/moved" as "tenbin_messages_moved_total",
    /// QoS 1 and 2 messages refused because a receiver's queue was over its limit, counted once per receiver.
    ///
    /// Includes messages that were not retained because of the limits of `[retained]`.
    refused_over_quota: Counter => "publish/messages/refused/over_quota" as "tenbin_refused_over_quota_total",
    /// Refused messages of clients that are not told: MQTT 3.1.1, and QoS 0.
    unseen_publishes: Counter as "tenbin_refused_unseen_total" { action = "publish" },
    /// Refused subscriptions of MQTT 3.1.1 clients, which are not told why.
    unseen_subscribes: Counter as "tenbin_refused_unseen_total" { action = "subscribe" },
    /// Wills that were denied when they were due.
    unseen_wills: Counter as "tenbin_refused_unseen_total" { action = "will" },
    /// Watched clients now: they take messages more slowly than these arrive.
    clients_watch: Gauge => "clients/watch" as "tenbin_slow_clients" { state = "watch" },
    /// Spilling clients now: so slow that their messages are on disk.
    clients_spooling: Gauge => "clients/spooling" as "tenbin_slow_clients" { state = "spooling" },
    /// Times that a client became watched.
    watch_begun: Counter => "watch/begun" as "tenbin_watch_begun_total",
    /// Times that a client began to spill.
    spooling_begun: Counter => "spooling/begun" as "tenbin_spooling_begun_total",
    /// Times that a client stopped spilling.
    spooling_ended: Counter => "spooling/ended" as "tenbin_spooling_ended_total",
    /// Clients disconnected because they were too slow.
    disconnected_slow: Counter => "spooling/disconnected" as "tenbin_disconnected_slow_total",
    /// Messages of share groups that became dead letters, or were dropped in place of that.
    dead_letters: Counter => "groups/dead_letters" as "tenbin_dead_letters_total",
    /// Messages of share groups whose dead letters wait, as a receiver refused them.
    letters_refused: Gauge => "groups/letters_refused" as "tenbin_letters_refused",
    /// Times that reading from a client paused because it published too fast.
    publishers_paused: Counter => "publish/paused" as "tenbin_publishers_paused_total",
    /// Events that a webhook did not get, because it took them too slowly or not at all.
    webhook_dropped: Counter => "webhook/dropped" as "tenbin_webhook_dropped_total",
    /// Spans that a collector of OpenTelemetry has taken.
    telemetry_sent: Counter => "telemetry/sent" as "tenbin_telemetry_sent_total",
    /// Spans that no collector of OpenTelemetry got, because it took them too slowly or not at all.
    telemetry_dropped: Counter => "telemetry/dropped" as "tenbin_telemetry_dropped_total",
    /// Accepted load reports.
    load_reports: Counter => "load_reports/accepted" as "tenbin_load_reports_total" { result = "accepted" },
    /// Load reports that could not be parsed.
    load_reports_rejected: Counter => "load_reports/rejected" as "tenbin_load_reports_total" { result = "rejected" },
}

impl Metrics {
    /// Measures times from now on.
    pub(crate) fn keep_timings(&self) {
        self.timings.get_or_init(Box::default);
    }

    /// Measured times; `None` if there is no reader.
    #[inline]
    pub(crate) fn timings(&self) -> Option<&Timings> {
        self.timings.get().map(|timings| &**timings)
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

/// Numbers of messages of QoS 0, 1 and 2.
pub(crate) type PerQoS = [u64; 3];

/// A counter of messages for each QoS.
#[derive(Debug, Default)]
pub(crate) struct ByQoS([Counter; 3]);

impl ByQoS {
    pub(crate) fn add(&self, counts: PerQoS) {
        self.0.iter().zip(counts).for_each(|(counter, count)| counter.add(count));
    }

    /// Counts one message.
    pub(crate) fn add_one(&self, qos: QoS) {
        self.0[qos as usize].add(1);
    }

    /// Messages of all QoS.
    pub(crate) fn get(&self) -> u64 {
        self.by_qos().into_iter().sum()
    }

    pub(crate) fn by_qos(&self) -> PerQoS {
        self.0.each_ref().map(Counter::get)
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

    /// For items that one task counts.
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
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
