use std::time::{Duration, Instant};

/// How often something may happen: so many times a second, and as many at once as in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    per_token: Duration,
}

/// What is left of a [`Rate`], kept as the moment at which nothing will have been taken any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenBucket {
    full_at: Instant,
}

impl Rate {
    /// `None` for 0, which means that there is no bound.
    pub(crate) fn per_second(times: u64) -> Option<Self> {
        let nanos = BURST.as_nanos() as u64;
        (times > 0).then(|| Self { per_token: Duration::from_nanos((nanos / times).max(1)) })
    }
}

impl TokenBucket {
    pub(crate) fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token if there is one.
    pub(crate) fn try_take(&mut self, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + rate.per_token;
        let is_there = full_at <= now + BURST;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }

    /// Takes a token, on credit if there is none; tells when there will be another one, if there is none now.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> Option<Instant> {
        self.full_at = self.full_at.max(now) + rate.per_token;
        let next = self.full_at + rate.per_token;
        (next > now + BURST).then(|| next - BURST)
    }

    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

/// How long it takes an empty bucket to become full.
const BURST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_s_worth_at_once_and_then_the_rate() {
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
    fn whoever_takes_on_credit_is_told_when_to_come_back() {
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
    fn zero_is_no_bound_and_the_highest_rate_is_one() {
        assert_eq!(Rate::per_second(0), None);
        let (now, rate) = (Instant::now(), Rate::per_second(u64::MAX).unwrap());
        assert!(TokenBucket::full(now).try_take(rate, now));
    }
}
