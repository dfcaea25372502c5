use std::time::{Duration, Instant};

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
    /// Messages that had arrived at the last look, and since when there are no more.
    received: u64,
    since: Instant,
    limit: Duration,
}

impl StallLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { received: 0, since: now, limit: STALL_LIMIT }
    }

    /// Whether to give up the outstanding deliveries now; if so, the limit for the next window starts.
    pub(super) fn ends(&mut self, received: u64, now: Instant) -> bool {
        if received != self.received {
            *self = Self { received, ..Self::new(now) };
        }
        let ends = now - self.since > self.limit;
        if ends {
            (self.since, self.limit) = (now, 2 * self.limit);
        }
        ends
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
