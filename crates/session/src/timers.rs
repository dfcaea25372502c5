use std::time::{Duration, Instant};

/// Timers of Keep Alive (MQTT 5.0 §3.1.2.10), for either role. [`crate::Limits`] has its length.
#[derive(Debug)]
pub(crate) struct Timers {
    last_received: Instant,
    last_sent: Instant,
    /// When the oldest unanswered PINGREQ was sent.
    ping_outstanding: Option<Instant>,
    packets_sent: u64,
}

impl Timers {
    pub(crate) fn new(now: Instant) -> Self {
        Self { last_received: now, last_sent: now, ping_outstanding: None, packets_sent: 0 }
    }

    pub(crate) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    pub(crate) fn sent(&mut self, now: Instant) {
        self.last_sent = now;
        self.packets_sent += 1;
    }

    pub(crate) fn sent_many(&mut self, count: u64, now: Instant) {
        if count > 0 {
            self.last_sent = now;
            self.packets_sent += count;
        }
    }

    pub(crate) fn ping_sent(&mut self, now: Instant) {
        self.sent(now);
        self.ping_outstanding.get_or_insert(now);
    }

    pub(crate) fn ping_answered(&mut self) {
        self.ping_outstanding = None;
    }

    /// Packets sent so far.
    pub(crate) fn packets_sent(&self) -> u64 {
        self.packets_sent
    }

    /// Server: when the client counts as gone. Only received packets matter `[MQTT-3.1.2-22]`.
    pub(crate) fn receive_deadline(&self, keep_alive: Duration) -> Option<Instant> {
        (!keep_alive.is_zero()).then(|| self.last_received + keep_alive * 3 / 2)
    }

    /// Client: when a PINGREQ is due `[MQTT-3.1.2-20]`.
    pub(crate) fn ping_due(&self, keep_alive: Duration) -> Option<Instant> {
        (!keep_alive.is_zero()).then(|| self.last_sent + keep_alive)
    }

    /// Client: when an unanswered PINGREQ means that the server is gone.
    pub(crate) fn ping_deadline(&self, keep_alive: Duration) -> Option<Instant> {
        if keep_alive.is_zero() {
            return None;
        }
        self.ping_outstanding.map(|since| since + keep_alive)
    }
}
