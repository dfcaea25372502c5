//! The acknowledgement latency of a client: a mean that rises at once and falls slowly.

use crate::{
    nanos::Nanos,
    sync::{AtomicU64, Relaxed},
};

/// The peak-sensitive, exponentially weighted moving average of acknowledgement latencies that Finagle and Linkerd call
/// peak EWMA.
///
/// A latency above the average replaces it. A latency below is weighted by the time since the last one, however many
/// there are. Without acknowledgements the average decays, so that a slow client is tried again. The half-life of 2^33
/// ns (8.6 s) is a decay constant of 12.4 s (Finagle and Linkerd: 10 s), and needs only a bit shift.
///
/// One caller at a time, with new acknowledgements, writes both fields; pickers read them. `Relaxed`: a picker that
/// reads one outdated field misjudges one message by one latency.
#[derive(Debug)]
pub(crate) struct PeakLatency {
    /// Nanoseconds at `observed_at`; 0 = no acknowledgement yet.
    average: AtomicU64,
    observed_at: AtomicU64,
}

impl PeakLatency {
    pub(crate) fn unknown() -> Self {
        Self { average: AtomicU64::new(0), observed_at: AtomicU64::new(0) }
    }

    pub(crate) fn forget(&self) {
        self.average.store(0, Relaxed);
    }

    /// Adds the latency of a message acknowledged at `now`. Only one caller at a time.
    pub(crate) fn observe(&self, latency_ns: u64, now: Nanos) {
        let latency_ns = latency_ns.clamp(1, LATENCY_MAX_NS);
        let (before, elapsed) = (self.average.load(Relaxed), self.elapsed(now.0));
        let average = match before {
            0 => latency_ns,
            _ if latency_ns >= before => latency_ns,
            // before · w + latency · (1 − w)
            _ => decayed(before, elapsed) + (latency_ns - decayed(latency_ns, elapsed)),
        };
        self.average.store(average.max(1), Relaxed);
        self.observed_at.store(now.0, Relaxed);
    }

    /// Returns nanoseconds at `now`, at least 1; `None` without an acknowledgement.
    #[inline]
    pub(crate) fn at(&self, now: u64) -> Option<u64> {
        match self.average.load(Relaxed) {
            0 => None,
            average => Some(decayed(average, self.elapsed(now)).max(1)),
        }
    }

    fn elapsed(&self, now: u64) -> u64 {
        now.saturating_sub(self.observed_at.load(Relaxed))
    }
}

/// `value` · 2^(−elapsed / half-life), at most 6 % too large: linear between one half-life and the next.
fn decayed(value: u64, elapsed: u64) -> u64 {
    let halvings = elapsed >> HALF_LIFE_SHIFT;
    if halvings >= 63 {
        return 0;
    }
    // The factors are below 2^20 and 2^42, so the product does not overflow.
    let part = (elapsed & HALF_LIFE_MASK) >> (HALF_LIFE_SHIFT - PART_BITS);
    (value - ((value * part) >> (PART_BITS + 1))) >> halvings
}

const HALF_LIFE_SHIFT: u32 = 33;
const HALF_LIFE_MASK: u64 = (1 << HALF_LIFE_SHIFT) - 1;
const PART_BITS: u32 = 20;
/// An hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const HALF_LIFE: u64 = 1 << HALF_LIFE_SHIFT;

    #[test]
    fn peak_latency_rises_at_once_and_falls_with_time() {
        let latency = PeakLatency::unknown();
        assert_eq!(latency.at(5), None);
        latency.observe(10 * MS, Nanos(0));
        latency.observe(80 * MS, Nanos(1));
        assert_eq!(latency.at(1), Some(80 * MS));
        (0..1_000).for_each(|_| latency.observe(10 * MS, Nanos(1)));
        assert_eq!(latency.at(1), Some(80 * MS));
        latency.observe(10 * MS, Nanos(1 + HALF_LIFE));
        assert_eq!(latency.at(1 + HALF_LIFE), Some(45 * MS));
        latency.forget();
        assert_eq!(latency.at(1 + HALF_LIFE), None);
    }

    #[test]
    fn decay_is_near_the_exponential() {
        let value = 3_600_000_000_000_u64;
        let mut last = value;
        for step in 0..2_000 {
            let elapsed = step * HALF_LIFE / 100;
            let (is, should) = (decayed(value, elapsed), value as f64 * (-(step as f64) / 100.0).exp2());
            assert!(is <= last && is as f64 <= should * 1.062 + 1.0 && is as f64 >= should - 1.0, "{step}: {is}");
            last = is;
        }
        assert_eq!((decayed(value, u64::MAX), decayed(1, 0)), (0, 1));
    }

    #[test]
    fn peak_latency_tolerates_clock_skew_and_extremes() {
        let latency = PeakLatency::unknown();
        latency.observe(0, Nanos(100));
        assert_eq!(latency.at(50), Some(1));
        latency.observe(u64::MAX, Nanos(20));
        assert_eq!(latency.at(u64::MAX), Some(1));
        assert_eq!(latency.at(20), Some(LATENCY_MAX_NS));
    }
}
