use std::time::Instant;

use tenbin_balancer::Nanos;

/// The broker's one clock, read once per batch of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// An instant as the balancer counts it.
    pub(crate) fn nanos(self, at: Instant) -> Nanos {
        Nanos(u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX))
    }
}
