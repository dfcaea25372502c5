//! Samples for watchers.

use std::time::{Instant, SystemTime};

use serde_json::json;
use tenbin_admin::Sample;

use super::Control;

impl Control {
    pub(super) fn take_sample(&self) -> Sample {
        let now = Instant::now();
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let metrics = self.shared.operations.metrics.snapshot();
        let status = self.show_status();
        let groups = self.busiest_groups(GROUPS_SHOWN, now);
        let slow = self.shared.routing.slow_receivers.listed();
        let slow: Vec<_> = slow.iter().map(|client| self.view_of(client)).filter(|view| view.slow).collect();
        let figures = json!({
            "time_ms": u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            "state": status.state,
            "uptime_seconds": status.uptime_seconds,
            "connections": status.connections,
            "clients": metrics.clients_connected,
            "sessions": status.sessions,
            "subscriptions": metrics.subscriptions,
            "retained_messages": status.retained_messages,
            "retained_bytes": status.retained_bytes,
            "queued_messages": status.queued_messages,
            "queued_bytes": status.queued_bytes,
            "memory_bytes": status.memory_bytes,
            "threads": status.threads,
            "store": status.store,
            "slow": { "watch": metrics.clients_watch, "spooling": metrics.clients_spooling, "clients": slow },
            "findings": self.watch.list(),
            "events": self.shared.operations.chronicle.all().iter().rev().take(EVENTS_SHOWN).collect::<Vec<_>>(),
            "groups_total": status.groups,
            "groups": groups.iter().map(|busy| self.view_of_group(&busy.group)).collect::<Vec<_>>(),
        });
        let is_gauge = |name: &str| GAUGES.contains(&name);
        let timings = self.shared.operations.metrics.timings();
        Sample {
            counters: metrics.named().filter(|(name, _)| !is_gauge(name)).collect(),
            delivery_times: timings.map(|timings| timings.deliveries.counts().collect()).unwrap_or_default(),
            figures,
        }
    }
}

/// Counters of the metrics that fall too.
const GAUGES: [&str; 7] = [
    "clients_connected",
    "clients_maximum",
    "subscriptions",
    "messages_withheld",
    "clients_watch",
    "clients_spooling",
    "letters_refused",
];
/// Events in a sample: the page has the earlier ones from the past.
const EVENTS_SHOWN: usize = 20;
/// Groups in a sample: those with the longest backlogs, then those with the most messages.
const GROUPS_SHOWN: usize = 32;
