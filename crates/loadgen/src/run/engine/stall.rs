use std::time::{Duration, Instant};

/// Measures for how long a counter has not changed.
#[derive(Debug)]
pub(super) struct Stall {
    count: u64,
    since: Instant,
}

impl Stall {
    pub(super) fn new(count: u64, now: Instant) -> Self {
        Self { count, since: now }
    }

    /// How long `count` has had its present value.
    pub(super) fn lasts(&mut self, count: u64, now: Instant) -> Duration {
        if count != self.count {
            *self = Self::new(count, now);
        }
        now - self.since
    }
}

/// Time limit of a closed window: it doubles each time, until a message arrives.
///
/// If nothing arrives for [`STALL_LIMIT`], the outstanding deliveries are given up and the window opens again. If still
/// nothing arrives, it opens after twice that time, and so on. The limit is short beside a run of seconds, so that a
/// broker that loses messages is measured by its other messages.
///
/// A mere pause of the machine sends a few windows more: one after a pause of 0.2 s, three after one of 2 s. Late
/// messages are counted.
#[derive(Debug)]
pub(super) struct StallLimit {
    stall: Stall,
    limit: Duration,
}

impl StallLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { stall: Stall::new(0, now), limit: STALL_LIMIT }
    }

    /// Whether to give up the outstanding deliveries now; if so, the limit for the next window starts.
    pub(super) fn ends(&mut self, received: u64, now: Instant) -> bool {
        if received != self.stall.count {
            self.limit = STALL_LIMIT;
        }
        if self.stall.lasts(received, now) <= self.limit {
            return false;
        }
        self.stall = Stall::new(received, now);
        self.limit *= 2;
        true
    }
}

const STALL_LIMIT: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pause_opens_few_windows() {
        let mut now = Instant::now();
        let mut stall_limit = StallLimit::new(now);
        let mut opened = |stall_limit: &mut StallLimit, received, duration: Duration| {
            let end = now + duration;
            let mut opened = 0;
            while now < end {
                now += Duration::from_millis(10);
                opened += u32::from(stall_limit.ends(received, now));
            }
            opened
        };
        assert_eq!(opened(&mut stall_limit, 0, Duration::from_millis(200)), 0);
        assert_eq!(opened(&mut stall_limit, 0, Duration::from_millis(1800)), 3);
        // An arrival ends the pause.
        assert_eq!(opened(&mut stall_limit, 1, Duration::from_millis(300)), 1);
        assert_eq!(opened(&mut stall_limit, 2, Duration::from_secs(2)), 3);
    }
}
