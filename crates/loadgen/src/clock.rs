use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// One monotonic clock for publisher and workers, in nanoseconds since its start: the sides of a latency can be
/// subtracted, and a creation time fits into a payload.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    /// The same moment by the system's monotonic clock, which other programs read too.
    monotonic_origin_ns: u64,
}

impl Clock {
    /// A clock that shows 0 now.
    pub fn start() -> Self {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let monotonic_origin_ns = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
        Self { origin: Instant::now(), monotonic_origin_ns }
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

    /// When the clock shows `ns`.
    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.origin + Duration::from_nanos(ns)
    }

    /// What the clock showed when CLOCK_MONOTONIC, in nanoseconds, showed this; 0 for what was before its start.
    pub fn at_monotonic_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.monotonic_origin_ns)
    }

    /// What CLOCK_MONOTONIC shows, in nanoseconds, when the clock shows `ns`.
    pub fn monotonic_ns(&self, ns: u64) -> u64 {
        self.monotonic_origin_ns + ns
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
