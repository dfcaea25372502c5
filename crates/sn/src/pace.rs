use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Bound on bytes per second, which saves up one second's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    /// Bytes sent and not yet worked off, in billionths.
    debt: u64,
    at: Instant,
}

const SECOND: u64 = 1_000_000_000;

impl Pace {
    pub(crate) fn new(bytes_per_second: NonZeroU32, now: Instant) -> Self {
        Self { bytes_per_second: u64::from(bytes_per_second.get()), debt: 0, at: now }
    }

    /// Notes bytes that were sent.
    pub(crate) fn spend(&mut self, bytes: usize, now: Instant) {
        self.work_off(now);
        self.debt = self.debt.saturating_add((bytes as u64).saturating_mul(SECOND));
    }

    /// When the next message may be sent; `None` = now.
    pub(crate) fn wait(&self, now: Instant) -> Option<Instant> {
        let mut later = *self;
        later.work_off(now);
        let excess = later.debt.checked_sub(self.bytes_per_second * SECOND).filter(|&excess| excess > 0)?;
        Some(now + Duration::from_nanos(excess.div_ceil(self.bytes_per_second)))
    }

    fn work_off(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_nanos() as u64;
        self.debt = self.debt.saturating_sub(passed.saturating_mul(self.bytes_per_second));
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any start will do")]
    fn pace_allows_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1000).expect("not 0"), start);
        pace.spend(1000, start);
        assert_eq!(pace.wait(start), None);
        pace.spend(500, start);
        let next = start + Duration::from_millis(500);
        assert_eq!(pace.wait(start), Some(next));
        assert_eq!(pace.wait(next), None);
    }
}
