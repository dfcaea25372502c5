use std::time::{Duration, Instant};

/// How long nothing has moved.
#[derive(Debug)]
pub(super) struct Stall {
    count: u64,
    since: Instant,
}

impl Stall {
    pub(super) fn new(count: u64, now: Instant) -> Self {
        Self { count, since: now }
    }

    /// For how long `count` has been what it is.
    pub(super) fn lasts(&mut self, count: u64, now: Instant) -> Duration {
        if count != self.count {
            *self = Self::new(count, now);
        }
        now - self.since
    }
}

/// How long a closed window is waited for: twice as long each time, until something comes.
///
/// When nothing has come for [`STALL_LIMIT`], what is outstanding is given up and the window opens again; if still
/// nothing comes, after twice as long, and so on. That is short beside a run of seconds, so that a broker that loses
/// messages is measured by what it does with the others. Where the machine only did something else meanwhile, that many
/// windows more are on their way: one after a pause of 0.2 s, three after one of 2 s. What comes late is counted.
#[derive(Debug)]
pub(super) struct Patience {
    stall: Stall,
    limit: Duration,
}

impl Patience {
    pub(super) fn new(now: Instant) -> Self {
        Self { stall: Stall::new(0, now), limit: STALL_LIMIT }
    }

    /// Whether what is outstanding is to be given up now; then the next window is waited for.
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
        let mut patience = Patience::new(now);
        let mut opened = |patience: &mut Patience, received, duration: Duration| {
            let end = now + duration;
            let mut opened = 0;
            while now < end {
                now += Duration::from_millis(10);
                opened += u32::from(patience.ends(received, now));
            }
            opened
        };
        assert_eq!(opened(&mut patience, 0, Duration::from_millis(200)), 0);
        assert_eq!(opened(&mut patience, 0, Duration::from_millis(1800)), 3);
        // A window of which something comes ends the pause.
        assert_eq!(opened(&mut patience, 1, Duration::from_millis(300)), 1);
        assert_eq!(opened(&mut patience, 2, Duration::from_secs(2)), 3);
    }
}
