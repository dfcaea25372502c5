use std::time::{Duration, Instant};

/// Schedule of PINGREQs: each connection once in a period, evenly spread.
#[derive(Debug)]
pub(super) struct Pings {
    /// `None`: no connection needs PINGREQs.
    period: Option<Duration>,
    /// The next place to ping, and when its round began.
    next: u32,
    round: Instant,
}

impl Pings {
    /// A schedule without PINGREQs, until the first [`Pings::keep_alive`].
    pub(super) fn new(now: Instant) -> Self {
        Self { period: None, next: 0, round: now }
    }

    /// Applies a broker's Keep Alive in seconds; 0 for none. The shortest one counts.
    pub(super) fn keep_alive(&mut self, seconds: u16) {
        let period = (seconds > 0).then(|| Duration::from_secs(seconds.into()).mul_f64(PERIOD));
        self.period = [self.period, period].into_iter().flatten().min();
    }

    /// Returns the next of `places`, if it is due.
    pub(super) fn due(&mut self, places: u32, now: Instant) -> Option<u32> {
        let period = self.period?;
        if self.next >= places {
            if now < self.round + period {
                return None;
            }
            // Missed rounds are skipped.
            self.round = (self.round + period).max(now.checked_sub(period).unwrap_or(now));
            self.next = 0;
        }
        let at = self.round + period.mul_f64(f64::from(self.next) / f64::from(places.max(1)));
        let is_due = self.next < places && at <= now;
        is_due.then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Fraction of Keep Alive in which each connection is pinged once.
const PERIOD: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_pinged_once_per_period() {
        let start = Instant::now();
        let mut pings = Pings::new(start);
        assert_eq!(pings.due(5, start + Duration::from_secs(1000)), None);
        for seconds in [100, 10, 0] {
            pings.keep_alive(seconds);
        }
        let mut pinged = Vec::new();
        for tenth in 0..210 {
            while let Some(place) = pings.due(7, start + Duration::from_millis(100 * tenth + 1)) {
                pinged.push((tenth, place));
            }
        }
        let expected = (0..21).map(|turn| (10 * turn, (turn % 7) as u32)).collect::<Vec<_>>();
        assert_eq!(pinged, expected);
        let late = start + Duration::from_secs(1000);
        assert!(std::iter::from_fn(|| pings.due(7, late)).count() <= 14, "one round, not all that were missed");
    }

    #[test]
    fn no_ping_is_due_without_connections() {
        let now = Instant::now();
        let mut pings = Pings::new(now);
        pings.keep_alive(1);
        assert_eq!([0, 1, 10].map(|seconds| pings.due(0, now + Duration::from_secs(seconds))), [None; 3]);
    }
}
