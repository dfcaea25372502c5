//! Limit of a rate, with a bounded queue.

use std::time::Duration;

use super::shape::Rate;

/// A queue in front of a line of limited speed. It holds times only, not the packets.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// When the line is free again.
    free_at: Duration,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, free_at: Duration::ZERO }
    }

    /// The same line at another speed: waiting packets keep their times.
    pub(crate) fn with(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// When a packet that arrives now has left the line. None if the queue has no room for it.
    pub(crate) fn leaves(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let speed = self.rate.bits_per_second;
        if speed == 0 {
            return None;
        }
        let wait = self.free_at.saturating_sub(now);
        let waiting = wait.as_nanos() * u128::from(speed) / 8_000_000_000;
        if !wait.is_zero() && waiting + u128::from(bytes) > u128::from(self.rate.queue_bytes) {
            return None;
        }
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(speed);
        self.free_at = self.free_at.max(now) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Some(self.free_at)
    }
}
