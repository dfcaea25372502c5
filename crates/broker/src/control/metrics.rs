//! All metrics of a scrape, read where the broker counts them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenbin_admin::{Exposition, Kind};

use super::{Control, process};
use crate::durable::Durable;

impl Control {
    pub(super) fn write_metrics(&self, into: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        into.add("tenbin_build_info", Kind::Gauge, "1, with the version as label.", &version, 1.0);
        process::write(into, self.started_at);
        for sample in self.shared.metrics.snapshot().samples() {
            let kind = if sample.family.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
            let help =
                SHARED_HELP.iter().find(|(family, _)| *family == sample.family).map_or(sample.help, |(_, help)| help);
            into.add(sample.family, kind, help, sample.label.as_slice(), sample.value as f64);
        }
        let mut gauge = |name, help, value: usize| into.add(name, Kind::Gauge, help, &[], value as f64);
        let shared = &self.shared;
        gauge("tenbin_connections", "Open Network Connections.", shared.connections.load(Ordering::Relaxed));
        gauge("tenbin_connections_maximum", "Maximum number of Network Connections.", shared.connections_maximum);
        gauge("tenbin_sessions", "Sessions, connected or not.", shared.registry.len());
        let (retained, retained_bytes) = shared.router.retained_totals();
        gauge("tenbin_retained_messages", "Retained messages.", retained);
        gauge("tenbin_retained_bytes", "Bytes of the retained messages.", retained_bytes);
        gauge("tenbin_queue_messages", "Messages in memory, in all queues.", shared.budget.messages());
        gauge("tenbin_queue_bytes", "Bytes of the messages in memory, in all queues.", shared.budget.used());
        for (kind, bytes, refused) in shared.memory.by_kind() {
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
        let suppressed = shared.log_limiter.suppressed() as f64;
        into.add("tenbin_log_suppressed_total", Kind::Counter, "Log lines that were not written.", &[], suppressed);
        if let Some(threads) = &shared.threads {
            let help = "Busy time of the worker threads.";
            let busy = threads.busy().sum::<Duration>().as_secs_f64();
            into.add("tenbin_threads_busy_seconds_total", Kind::Counter, help, &[], busy);
        }
        if let Some(durable) = &shared.durable {
            write_store(durable, into);
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
        ("messages", log.commits.into(), log.sync_time, log.failures, log.pending_bytes, log_bytes),
    ] {
        let mut add = |name, kind, help, value: f64| into.add(name, kind, help, &[("part", part)], value);
        add("tenbin_store_commits_total", Kind::Counter, "Commits.", commits as f64);
        add("tenbin_store_commit_seconds_total", Kind::Counter, "Time of the commits.", time.as_secs_f64());
        add("tenbin_store_failures_total", Kind::Counter, "Failed commits.", failures as f64);
        add("tenbin_store_pending_bytes", Kind::Gauge, "Bytes that wait for a commit.", pending as f64);
        add("tenbin_store_used_bytes", Kind::Gauge, "Disk space in use.", used as f64);
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

/// Help texts of families that several counters share.
const SHARED_HELP: [(&str, &str); 7] = [
    ("tenbin_connects_total", "CONNECTs by their result."),
    ("tenbin_tls_handshakes_total", "TLS handshakes by their result."),
    ("tenbin_tls_reloads_total", "Times that changed TLS files were read without a reload, by result."),
    ("tenbin_websocket_upgrades_total", "Upgrades to WebSocket by their result."),
    ("tenbin_dropped_total", "Dropped messages by reason."),
    ("tenbin_slow_clients", "Slow clients by their state."),
    ("tenbin_load_reports_total", "Load reports by their result."),
];
