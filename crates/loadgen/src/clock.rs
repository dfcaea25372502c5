use std::time::{Duration, Instant};

/// One monotonic clock for publisher and workers, in nanoseconds since its start: the sides of a latency can be
/// subtracted, and a creation time fits into a payload.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that shows 0 now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Now, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// What the clock showed at `instant`, in nanoseconds; 0 for what was before its start.
    pub fn at_ns(&self, instant: Instant) -> u64 {
        // 2^64 ns are 584 years.
        instant.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Sleeps until the clock shows `deadline_ns`. Wakes late by what the system's timer adds, about 0.1 ms.
    pub fn sleep_until(&self, deadline_ns: u64) {
        let left = deadline_ns.saturating_sub(self.now_ns());
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
        }
    }

    /// As [`Clock::sleep_until`], to the microsecond: spends the last moment awake.
    pub fn sleep_until_exactly(&self, deadline_ns: u64) {
        self.sleep_until(deadline_ns.saturating_sub(AWAKE_NS));
        while self.now_ns() < deadline_ns {
            std::hint::spin_loop();
        }
    }
}

/// How long before a deadline an exact sleeper is awake: what a timer is usually late by.
const AWAKE_NS: u64 = 120_000;
