use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one broker since it started. Added to once per batch, never per message; all orderings are
/// relaxed, since nothing else is published through them.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections_opened: Counter,
    pub(crate) connections_closed: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) violations: Counter,
    pub(crate) messages_received: Counter,
    pub(crate) messages_sent: Counter,
    pub(crate) dropped_queue_full: Counter,
    pub(crate) dropped_offline: Counter,
    pub(crate) dropped_expired: Counter,
    pub(crate) dropped_too_large: Counter,
    pub(crate) load_reports: Counter,
    pub(crate) load_reports_rejected: Counter,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Network Connections accepted.
    pub connections_opened: u64,
    /// Network Connections ended.
    pub connections_closed: u64,
    /// Network Connections closed at once for want of room.
    pub connections_refused: u64,
    /// Connections ended because the peer broke a rule.
    pub violations: u64,
    /// PUBLISH packets received.
    pub messages_received: u64,
    /// PUBLISH packets sent, resends not counted.
    pub messages_sent: u64,
    /// Messages dropped at a full queue.
    pub dropped_queue_full: u64,
    /// QoS 0 messages dropped because their receiver was not connected.
    pub dropped_offline: u64,
    /// Messages dropped because their time was over.
    pub dropped_expired: u64,
    /// Messages dropped because their receiver takes no packets so large.
    pub dropped_too_large: u64,
    /// Load reports taken over.
    pub load_reports: u64,
    /// Load reports that did not parse.
    pub load_reports_rejected: u64,
}

impl Metrics {
    /// Reads all counters, one after the other.
    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        MetricsSnapshot {
            connections_opened: self.connections_opened.get(),
            connections_closed: self.connections_closed.get(),
            connections_refused: self.connections_refused.get(),
            violations: self.violations.get(),
            messages_received: self.messages_received.get(),
            messages_sent: self.messages_sent.get(),
            dropped_queue_full: self.dropped_queue_full.get(),
            dropped_offline: self.dropped_offline.get(),
            dropped_expired: self.dropped_expired.get(),
            dropped_too_large: self.dropped_too_large.get(),
            load_reports: self.load_reports.get(),
            load_reports_rejected: self.load_reports_rejected.get(),
        }
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

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
