//! Times of deliveries and logins, counted by upper bounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Measured times. Only a broker with admin HTTP measures them.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    /// From the receipt of a PUBLISH to the socket of a receiver.
    pub(crate) deliveries: Histogram,
    /// Logins by source and result.
    logins: Mutex<BTreeMap<(Arc<str>, &'static str), Histogram>>,
}

/// Counts of times by upper bound, and their sum.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One for each bound, and one for longer times.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Timings {
    /// Counts a login that took `time`, without the time in which the client was asked.
    pub(crate) fn login(&self, source: &Arc<str>, result: &'static str, time: Duration) {
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        logins.entry((Arc::clone(source), result)).or_default().add(time);
    }

    /// Visits the logins of each source and result.
    pub(crate) fn each_login(&self, mut visit: impl FnMut(&str, &str, &Histogram)) {
        let logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        logins.iter().for_each(|((source, result), histogram)| visit(source, result, histogram));
    }
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let at = BOUNDS.partition_point(|bound| *bound < time);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts by upper bound in seconds; the last bound is infinite.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Sum of all times in seconds.
    pub(crate) fn sum(&self) -> f64 {
        self.nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// Upper bounds of the counts.
const BOUNDS: [Duration; 18] = {
    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }
    [
        micros(25),
        micros(50),
        micros(100),
        micros(250),
        micros(500),
        micros(1_000),
        micros(2_500),
        micros(5_000),
        micros(10_000),
        micros(25_000),
        micros(50_000),
        micros(100_000),
        micros(250_000),
        micros(500_000),
        micros(1_000_000),
        micros(2_500_000),
        micros(10_000_000),
        micros(60_000_000),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_at_their_upper_bound() {
        let histogram = Histogram::default();
        [25, 26, 1_000_000, 90_000_000].into_iter().for_each(|micros| histogram.add(Duration::from_micros(micros)));
        let counted: Vec<_> = histogram.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(25e-6, 1), (50e-6, 1), (1.0, 1), (f64::INFINITY, 1)]);
        assert!((histogram.sum() - 91.000_051).abs() < 1e-9);
    }
}
