use std::time::{Duration, Instant};

/// Rate per second, with a burst of one second's worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    per_token: Duration,
}

/// State of a [`Rate`], stored as the time at which the bucket will be full again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenBucket {
    full_at: Instant,
}

impl Rate {
    /// Returns `None` for 0, which means no bound.
    pub(crate) fn per_second(times: u64) -> Option<Self> {
        let nanos = BURST.as_nanos() as u64;
        (times > 0).then(|| Self { per_token: Duration::from_nanos((nanos / times).max(1)) })
    }

    /// A rate per minute, for [`TokenBucket::try_take_in_minute`].
    pub(crate) fn per_minute(times: u64) -> Option<Self> {
        (times > 0).then(|| Self { per_token: Duration::from_nanos((MINUTE.as_nanos() as u64 / times).max(1)) })
    }
}

impl TokenBucket {
    pub(crate) fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token if there is one.
    pub(crate) fn try_take(&mut self, rate: Rate, now: Instant) -> bool {
        self.try_take_within(BURST, rate, now)
    }

    /// Takes a token of a rate per minute if there is one. The bucket holds the tokens of a minute.
    pub(crate) fn try_take_in_minute(&mut self, rate: Rate, now: Instant) -> bool {
        self.try_take_within(MINUTE, rate, now)
    }

    fn try_take_within(&mut self, burst: Duration, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + rate.per_token;
        let is_there = full_at <= now + burst;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }

    /// Takes a token, on credit if there is none.
    ///
    /// Returns the time of the next token if none is left now.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> Option<Instant> {
        self.full_at = self.full_at.max(now) + rate.per_token;
        let next = self.full_at + rate.per_token;
        (next > now + BURST).then(|| next - BURST)
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

/// Time in which an empty bucket fills up.
const BURST: Duration = Duration::from_secs(1);
/// The same for a rate per minute.
const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_of_one_second_then_steady_rate() {
        let now = Instant::now();
        let rate = Rate::per_second(10).unwrap();
        let mut bucket = TokenBucket::full(now);
        assert_eq!((0..50).filter(|_| bucket.try_take(rate, now)).count(), 10);
        assert!(!bucket.is_full(now));
        let later = now + Duration::from_millis(350);
        assert_eq!((0..50).filter(|_| bucket.try_take(rate, later)).count(), 3);
        assert!(bucket.is_full(later + Duration::from_secs(1)));
    }

    #[test]
    fn take_on_credit_returns_time_of_next_token() {
        let mut now = Instant::now();
        let start = now;
        let rate = Rate::per_second(1000).unwrap();
        let mut bucket = TokenBucket::full(now);
        for _ in 0..3000 {
            if let Some(next) = bucket.take(rate, now) {
                assert!(next > now && next <= now + Duration::from_millis(1));
                now = next;
            }
        }
        assert_eq!(now - start, Duration::from_millis(2001));
    }

    #[test]
    fn zero_rate_is_unbounded_and_highest_rate_is_not() {
        assert_eq!(Rate::per_second(0), None);
        let (now, rate) = (Instant::now(), Rate::per_second(u64::MAX).unwrap());
        assert!(TokenBucket::full(now).try_take(rate, now));
    }
}
