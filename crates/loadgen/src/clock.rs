use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock that publisher and workers share, in nanoseconds since its start.
///
/// So times of both sides can be subtracted, and a creation time fits into a payload.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
    /// The same moment by CLOCK_MONOTONIC, which other programs can read too.
    monotonic_origin_ns: u64,
}

impl Clock {
    /// Starts a clock at 0.
    pub fn start() -> Self {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let monotonic_origin_ns = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
        Self { origin: Instant::now(), monotonic_origin_ns }
    }

    /// Current time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// Time at `instant`, in nanoseconds; 0 before the clock's start.
    pub fn at_ns(&self, instant: Instant) -> u64 {
        // 2^64 ns are 584 years.
        instant.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// Instant at which the clock shows `ns`.
    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.origin + Duration::from_nanos(ns)
    }

    /// Converts from CLOCK_MONOTONIC, in nanoseconds; 0 before the clock's start.
    pub fn at_monotonic_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.monotonic_origin_ns)
    }

    /// Converts to CLOCK_MONOTONIC, in nanoseconds.
    pub fn monotonic_ns(&self, ns: u64) -> u64 {
        self.monotonic_origin_ns + ns
    }

    /// Sleeps until `deadline_ns`. The system's timer wakes about 0.1 ms late.
    pub fn sleep_until(&self, deadline_ns: u64) {
        let left = deadline_ns.saturating_sub(self.now_ns());
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
        }
    }

    /// As [`Clock::sleep_until`], exact to the microsecond: spins at the end.
    pub fn sleep_until_exactly(&self, deadline_ns: u64) {
        self.sleep_until(deadline_ns.saturating_sub(AWAKE_NS));
        while self.now_ns() < deadline_ns {
            std::hint::spin_loop();
        }
    }
}

/// Spinning time before a deadline: the usual lateness of a timer.
const AWAKE_NS: u64 = 120_000;
