//! All metrics of a scrape, read where the broker counts them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenbin_admin::{Exposition, Kind};

use super::groups::BusyGroup;
use super::{Control, process};
use crate::durable::{Durable, Ended};
use crate::lifecycle::BrokerState;
use crate::metrics::Timings;
use crate::registry::Roster;

impl Control {
    pub(super) fn write_metrics(&self, into: &mut Exposition) {
        let BrokerState { admission, storage, routing, sessions, operations, .. } = &*self.shared;
        process::write_process_metrics(into, self.started_at);
        for sample in operations.metrics.snapshot().samples() {
            let kind = if sample.family.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
            let help =
                SHARED_HELP.iter().find(|(family, _)| *family == sample.family).map_or(sample.help, |(_, help)| help);
            into.add(sample.family, kind, help, sample.label.as_slice(), sample.value as f64);
        }
        for (family, help, counts) in [
            (
                "tenbin_messages_received_total",
                "PUBLISH packets received.",
                operations.metrics.messages_received.by_qos(),
            ),
            (
                "tenbin_messages_sent_total",
                "PUBLISH packets sent, without resends.",
                operations.metrics.messages_sent.by_qos(),
            ),
        ] {
            for (qos, count) in ["0", "1", "2"].into_iter().zip(counts) {
                into.add(family, Kind::Counter, help, &[("qos", qos)], count as f64);
            }
        }
        self.write_timings(into);
        for (listener, name, end) in self.reach.certificate_ends() {
            let help = "End of a certificate of the broker, in seconds since 1970.";
            let labels = [("listener", &*listener), ("name", &*name)];
            into.add("tenbin_tls_certificate_not_after_seconds", Kind::Gauge, help, &labels, end as f64);
        }
        self.write_bridges(into);
        for (action, listener, count) in operations.denials.all() {
            let help = "Actions of clients that the rules denied, by listener.";
            let labels = [("action", action.name()), ("listener", &*listener)];
            into.add("tenbin_denied_total", Kind::Counter, help, &labels, count as f64);
        }
        for (bound, count) in operations.metrics.bounds.all() {
            let help = "Times that a bound has refused, dropped or disconnected something, by its key.";
            into.add("tenbin_bounds_hit_total", Kind::Counter, help, &[("key", bound.key())], count as f64);
        }
        let mut gauge = |name, help, value: usize| into.add(name, Kind::Gauge, help, &[], value as f64);
        gauge("tenbin_network_connections", "Open Network Connections.", admission.connections.load(Ordering::Relaxed));
        gauge("tenbin_connections_maximum", "Maximum number of Network Connections.", admission.connections_maximum);
        gauge("tenbin_sessions", "Sessions, connected or not.", sessions.registry.len());
        let (retained, retained_bytes) = routing.router.retained_totals();
        gauge("tenbin_retained_messages", "Retained messages.", retained);
        gauge("tenbin_retained_bytes", "Bytes of the retained messages.", retained_bytes);
        let (_, dormant) = routing.router.dormant();
        gauge("tenbin_share_messages_without_rule", "Messages that wait with share groups without a rule.", dormant);
        let (_, suspended) = routing.router.suspended();
        let help = "Messages that wait with share groups whose members all lack the right to receive them.";
        gauge("tenbin_share_messages_without_right", help, suspended);
        gauge("tenbin_queue_messages", "Messages in memory, in all queues.", storage.budget.messages());
        gauge("tenbin_queue_bytes", "Bytes of the messages in memory, in all queues.", storage.budget.used());
        for (kind, bytes, refused) in storage.memory.by_kind() {
            let label = [("kind", kind.name())];
            into.add(
                "tenbin_memory_bytes",
                Kind::Gauge,
                "Memory that clients occupy besides queues.",
                &label,
                bytes as f64,
            );
            let help = "Requests refused for want of memory.";
            into.add("tenbin_memory_refused_total", Kind::Counter, help, &label, refused as f64);
        }
        let suppressed = operations.log_limiter.suppressed() as f64;
        into.add("tenbin_log_suppressed_total", Kind::Counter, "Log lines that were not written.", &[], suppressed);
        if let Some(threads) = &operations.threads {
            let help = "Busy time of the worker threads.";
            let busy = threads.busy().sum::<Duration>().as_secs_f64();
            into.add("tenbin_threads_busy_seconds_total", Kind::Counter, help, &[], busy);
        }
        if let Some(durable) = &storage.durable {
            write_store(durable, into);
        }
        for (listener, transport, count) in sessions.registry.roster().map(Roster::connections).into_iter().flatten() {
            let labels = [("listener", &*listener), ("transport", transport)];
            let help = "Connected clients by listener and transport.";
            into.add("tenbin_connections", Kind::Gauge, help, &labels, count as f64);
        }
        for counted in admission.gateways.iter().flat_map(|gateways| gateways.values()) {
            let (kind, ending) = if counted.is_counter { (Kind::Counter, "_total") } else { (Kind::Gauge, "") };
            let family = format!("tenbin_{}{ending}", counted.topic.replace('/', "_"));
            let help = format!("As $SYS/broker/{}.", counted.topic);
            into.add(&family, kind, &help, &[], counted.value as f64);
        }
        self.write_groups(into);
    }

    fn write_timings(&self, into: &mut Exposition) {
        let Some(timings) = self.shared.operations.metrics.timings() else { return };
        let Timings { deliveries, .. } = timings;
        let help = "Time from the receipt of a PUBLISH to the socket of a receiver; at most one of 64 deliveries.";
        into.add_histogram("tenbin_delivery_seconds", help, &[], deliveries.counts(), deliveries.sum());
        timings.each_login(|source, result, logins| {
            let help = "Time of logins by source and result, without the time in which the client was asked.";
            let labels = [("source", source), ("result", result)];
            into.add_histogram("tenbin_auth_seconds", help, &labels, logins.counts(), logins.sum());
        });
    }

    fn write_bridges(&self, into: &mut Exposition) {
        for (name, _, state) in self.reach.bridges() {
            let name = ("bridge", name.as_str());
            let sides = [("local", "out"), ("remote", "in")];
            for (at, (side, direction)) in sides.into_iter().enumerate() {
                let help = "Whether the bridge is connected to the broker of this side.";
                let connected = f64::from(u8::from(state.connected[at]));
                into.add("tenbin_bridge_connected", Kind::Gauge, help, &[name, ("side", side)], connected);
                let labels = [name, ("direction", direction)];
                let help = "Messages that bridges have passed on.";
                into.add("tenbin_bridge_messages_total", Kind::Counter, help, &labels, state.messages[at] as f64);
                let help = "QoS 1 and 2 messages under way in bridges.";
                into.add("tenbin_bridge_in_flight", Kind::Gauge, help, &labels, state.in_flight[at] as f64);
            }
            for (reason, count) in state.dropped {
                let help = "Messages that bridges have not passed on.";
                let labels = [name, ("reason", reason)];
                into.add("tenbin_bridge_dropped_total", Kind::Counter, help, &labels, count as f64);
            }
        }
    }

    /// Writes the metrics of share groups, and the sum of those without series.
    fn write_groups(&self, into: &mut Exposition) {
        let now = Instant::now();
        let (listed, others) = self.listed_groups(GROUPS_MAX, now);
        let total = listed.len() + others.groups;
        into.add("tenbin_groups", Kind::Gauge, "Share groups.", &[], total as f64);
        let age = |at: Option<Instant>| at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        for BusyGroup { group, load, arrival, scale } in listed {
            let (name, filter) = group.labels();
            let labels = [("group", &*name), ("filter", &*filter)];
            let mut add = |name, kind, help, value: Option<f64>| {
                value.into_iter().for_each(|value| into.add(name, kind, help, &labels, value));
            };
            let count = |count: u64| Some(count as f64);
            add(
                "tenbin_group_members",
                Kind::Gauge,
                "Connected members that do not drain.",
                count(load.members as u64),
            );
            add("tenbin_group_messages_total", Kind::Counter, "Messages given to members.", count(load.given));
            add("tenbin_group_waiting", Kind::Gauge, "Messages that no member has.", count(load.waiting));
            add("tenbin_group_backlog", Kind::Gauge, "Messages that are not completed.", count(load.backlog));
            let wait = load.predicted_wait.map(|wait| wait.as_secs_f64());
            let help = "Least predicted wait of a member.";
            add("tenbin_group_predicted_wait_seconds", Kind::Gauge, help, wait);
            let help = "Time for which the oldest message without a member has waited, to two seconds.";
            add("tenbin_group_oldest_seconds", Kind::Gauge, help, Some(age(arrival.oldest_at)));
            let help = "Messages that went from a member to another one.";
            add("tenbin_group_redispatched_total", Kind::Counter, help, count(arrival.redispatched));
            add("tenbin_group_rejected_total", Kind::Counter, "Messages that members rejected.", count(load.rejected));
            let help = "Messages that members did not acknowledge in time.";
            add("tenbin_group_overdue_total", Kind::Counter, help, count(load.overdue));
            let help = "Rejected and overdue messages that were to be delivered again.";
            add("tenbin_group_retried_total", Kind::Counter, help, count(load.retried));
            let help = "Messages that became dead letters, or were dropped in place of that.";
            add("tenbin_group_dead_lettered_total", Kind::Counter, help, count(load.dead_lettered));
            let help = "Messages whose dead letters wait, as a receiver refused them.";
            add("tenbin_group_letters_refused", Kind::Gauge, help, count(load.letters_refused));
            let help = "Messages that wait for their next delivery.";
            add("tenbin_group_retries", Kind::Gauge, help, count(load.retries as u64));
            let help = "Time for which the first of these has waited.";
            add("tenbin_group_oldest_retry_seconds", Kind::Gauge, help, Some(load.oldest_retry.as_secs_f64()));
            let help = "Members that would clear the backlog within a minute.";
            add("tenbin_group_desired_members", Kind::Gauge, help, scale.desired.and_then(count));
            let drain = scale.completions_per_second.map(|_| scale.drain_seconds.unwrap_or(f64::INFINITY));
            add("tenbin_group_drain_seconds", Kind::Gauge, "Time until the backlog is gone.", drain);
        }
        if others.groups > 0 {
            for (family, value) in [
                ("tenbin_group_members", others.members as f64),
                ("tenbin_group_waiting", others.waiting as f64),
                ("tenbin_group_backlog", others.backlog as f64),
                ("tenbin_group_oldest_seconds", age(others.oldest_at)),
                ("tenbin_group_desired_members", others.desired as f64),
            ] {
                into.add(family, Kind::Gauge, "", &OTHER_GROUPS, value);
            }
        }
    }
}

fn write_store(durable: &Durable, into: &mut Exposition) {
    let state = durable.stats();
    let (log, log_health) = durable.message_stats();
    let (state_bytes, log_bytes) = durable.used_bytes();
    let is_writing = [("state", !durable.is_failing()), ("messages", log_health == "writing")];
    for (part, is_writing) in is_writing {
        let value = f64::from(u8::from(is_writing));
        into.add("tenbin_store_writing", Kind::Gauge, "1 while the store writes.", &[("part", part)], value);
    }
    for (part, commits, time, failures, pending, used) in [
        ("state", state.commits, state.commit_time, state.failures, state.pending_bytes, state_bytes),
        ("messages", log.commits, log.sync_time, log.failures, log.pending_bytes, log_bytes),
    ] {
        let mut add = |name, kind, help, value: f64| into.add(name, kind, help, &[("part", part)], value);
        add("tenbin_store_commits_total", Kind::Counter, "Commits.", commits as f64);
        add("tenbin_store_commit_seconds_total", Kind::Counter, "Time of the commits.", time.as_secs_f64());
        add("tenbin_store_failures_total", Kind::Counter, "Failed commits.", failures as f64);
        add("tenbin_store_pending_bytes", Kind::Gauge, "Bytes that wait for a commit.", pending as f64);
        add("tenbin_store_used_bytes", Kind::Gauge, "Disk space in use.", used as f64);
    }
    for cause in Ended::ALL {
        let (help, labels) = ("Messages on disk that have ended, by cause.", [("cause", cause.name())]);
        let ended = durable.ended_messages(cause) as f64;
        into.add("tenbin_store_ended_messages_total", Kind::Counter, help, &labels, ended);
    }
    let mut gauge = |name, help, value: f64| into.add(name, Kind::Gauge, help, &[], value);
    gauge("tenbin_store_waiting_messages", "Messages on disk that are not delivered.", log.waiting as f64);
    gauge("tenbin_store_waiting_bytes", "Bytes of the messages on disk that are not delivered.", log.live_bytes as f64);
    gauge("tenbin_store_segments", "Files of the log of messages.", log.segments as f64);
    gauge("tenbin_store_maximum_bytes", "Bound on the disk space; 0 = none.", durable.bytes_maximum() as f64);
    if let Some(free) = durable.free_bytes() {
        gauge("tenbin_store_free_bytes", "Free disk space.", free as f64);
    }
}

/// Groups with metrics that no rule names, and groups that rules name by their share name alone.
const GROUPS_MAX: usize = 127;

/// Labels of the sum of all other groups. No share name has a `#`.
const OTHER_GROUPS: [(&str, &str); 2] = [("group", "#others"), ("filter", "#")];

/// Help texts of families that several counters share.
const SHARED_HELP: [(&str, &str); 9] = [
    ("tenbin_connects_total", "CONNECTs by their result."),
    ("tenbin_tls_handshakes_total", "TLS handshakes by their result."),
    ("tenbin_tls_reloads_total", "Times that changed TLS files were read without a reload, by result."),
    ("tenbin_websocket_upgrades_total", "Upgrades to WebSocket by their result."),
    ("tenbin_subscriptions_refused_total", "Refused subscriptions by cause."),
    ("tenbin_refused_unseen_total", "Refused actions of clients that are not told, or not told why."),
    ("tenbin_dropped_total", "Dropped messages by reason."),
    ("tenbin_slow_clients", "Slow clients by their state."),
    ("tenbin_load_reports_total", "Load reports by their result."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn families_of_several_counters_have_a_shared_help() {
        let families: Vec<_> = Metrics::default().snapshot().samples().map(|sample| sample.family).collect();
        for family in &families {
            let has_labels = families.iter().filter(|other| *other == family).count() > 1;
            let has_help = SHARED_HELP.iter().any(|(shared, _)| shared == family);
            assert!(!has_labels || has_help, "{family} has labels: add its help text to SHARED_HELP");
        }
        for (family, _) in SHARED_HELP {
            assert!(families.contains(&family), "no counter has {family}: remove it from SHARED_HELP");
        }
    }
}
