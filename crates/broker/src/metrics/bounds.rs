use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Counter;
use crate::values::{Bound, Recent};

/// How often each bound has refused, dropped or disconnected something.
#[derive(Debug)]
pub(crate) struct Bounds([BoundHits; Bound::ALL.len()]);

#[derive(Debug, Default)]
struct BoundHits {
    total: Counter,
    recent: Mutex<Recent>,
}

impl Bounds {
    /// Counts refusals of a bound.
    #[cold]
    pub(crate) fn hit(&self, bound: Bound, count: u64, now: Instant) {
        let BoundHits { total, recent } = &self.0[bound as usize];
        total.add(count);
        // A thread that drops messages waits for no other: `total` has all hits.
        if let Ok(mut recent) = recent.try_lock() {
            recent.add(count, now);
        }
    }

    /// Each bound with its number of hits since the start.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Bound, u64)> {
        Bound::ALL.into_iter().zip(&self.0).map(|(bound, hits)| (bound, hits.total.get()))
    }

    /// Bounds that were hit in the last five minutes: the number, and the time since the first of these hits.
    pub(crate) fn recent(&self, now: Instant) -> impl Iterator<Item = (Bound, u64, Duration)> {
        Bound::ALL.into_iter().zip(&self.0).filter_map(move |(bound, hits)| {
            let recent = *hits.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.at(now).map(|(count, since)| (bound, count, since))
        })
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self(Bound::ALL.map(|_| BoundHits::default()))
    }
}
