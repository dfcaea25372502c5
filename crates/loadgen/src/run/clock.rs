use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clock of a run: nanoseconds since 1970-01-01 UTC, by the controller's clock.
///
/// It follows the monotonic clock from its creation on, so that a step of the system clock during a run changes no
/// latency. An agent's clock is moved by its offset from the controller's.
#[derive(Debug, Clone, Copy)]
pub struct RunClock {
    origin: Instant,
    origin_unix_ns: u64,
}

impl RunClock {
    /// The system clock, moved by `offset_ns`.
    pub fn new(offset_ns: i64) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::now(), origin_unix_ns: (unix.as_nanos() as u64).saturating_add_signed(offset_ns) }
    }

    /// The same clock, moved by `offset_ns`.
    pub fn moved(self, offset_ns: i64) -> Self {
        Self { origin_unix_ns: self.origin_unix_ns.saturating_add_signed(offset_ns), ..self }
    }

    /// Current time.
    pub fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// Time that the clock shows at `instant`.
    pub fn at_ns(&self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.origin) {
            Some(after) => self.origin_unix_ns + after.as_nanos() as u64,
            None => self.origin_unix_ns.saturating_sub(self.origin.duration_since(instant).as_nanos() as u64),
        }
    }

    /// Instant at which the clock shows `unix_ns`; at the earliest, the clock's creation.
    pub fn instant(&self, unix_ns: u64) -> Instant {
        self.origin + Duration::from_nanos(unix_ns.saturating_sub(self.origin_unix_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_can_be_moved_and_asked_for_an_instant() {
        let clock = RunClock::new(0);
        let ahead = clock.moved(300_000_000);
        let now = Instant::now();
        assert_eq!(ahead.at_ns(now), clock.at_ns(now) + 300_000_000);
        assert_eq!(clock.instant(clock.at_ns(now)), now);
        assert_eq!(clock.moved(-1).at_ns(now), clock.at_ns(now) - 1);
    }
}
