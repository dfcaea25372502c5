use std::time::{Duration, Instant};

use tenbin_codec::{Packet, WriteBuffer};

use crate::support::{Dice, RawClient};

/// Packets that a client still has to send.
///
/// Now and then all of them are delayed, so that handshakes are half-way when the broker dies. They stay in order
/// `[MQTT-4.6.0-2]`, `[MQTT-4.6.0-3]`, `[MQTT-4.6.0-4]`.
pub(crate) struct Answers {
    dice: Dice,
    /// Probability of a delay, in percent.
    hesitates_percent: u64,
    waiting: Vec<Packet>,
    due: Instant,
}

impl Answers {
    pub(crate) fn new(dice: Dice, hesitates_percent: u64) -> Self {
        Self { dice, hesitates_percent, waiting: Vec::new(), due: Instant::now() }
    }

    pub(crate) fn push(&mut self, packet: Packet) {
        if self.waiting.is_empty() {
            let hesitates = self.dice.percent(self.hesitates_percent);
            let pause = if hesitates { self.dice.within(1..40) } else { 0 };
            self.due = Instant::now() + Duration::from_millis(pause);
        }
        self.waiting.push(packet);
    }

    pub(crate) fn send_due(&mut self, client: &mut RawClient) {
        if !self.waiting.is_empty() && self.due <= Instant::now() {
            let mut out = WriteBuffer::new();
            self.waiting.drain(..).for_each(|packet| packet.encode(client.version(), &mut out));
            client.try_send_bytes(&out.to_bytes());
        }
    }

    /// Ends all delays from here on.
    pub(crate) fn hurry(&mut self) {
        self.hesitates_percent = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Discards the packets of a lost connection.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }
}
