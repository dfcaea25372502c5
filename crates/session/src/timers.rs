use std::time::{Duration, Instant};

/// Keep Alive (MQTT 5.0 §3.1.2.10), for either role.
#[derive(Debug)]
pub(crate) struct Timers {
    keep_alive: Duration,
    last_received: Instant,
    last_sent: Instant,
    /// Since when a PINGREQ has no answer.
    ping_outstanding: Option<Instant>,
    packets_sent: u64,
}

impl Timers {
    pub(crate) fn new(keep_alive: Duration, now: Instant) -> Self {
        Self { keep_alive, last_received: now, last_sent: now, ping_outstanding: None, packets_sent: 0 }
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

    /// Server: when the client counts as gone, counted from what was received only `[MQTT-3.1.2-22]`.
    pub(crate) fn receive_deadline(&self) -> Option<Instant> {
        (!self.keep_alive.is_zero()).then(|| self.last_received + self.keep_alive * 3 / 2)
    }

    /// Client: when a PINGREQ is due `[MQTT-3.1.2-20]`.
    pub(crate) fn ping_due(&self) -> Option<Instant> {
        (!self.keep_alive.is_zero()).then(|| self.last_sent + self.keep_alive)
    }

    /// Client: when an unanswered PINGREQ means that the server is gone.
    pub(crate) fn ping_deadline(&self) -> Option<Instant> {
        if self.keep_alive.is_zero() {
            return None;
        }
        self.ping_outstanding.map(|since| since + self.keep_alive)
    }
}
