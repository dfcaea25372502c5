use std::time::Instant;

use tenbin_balancer::Nanos;

/// Where the broker's time begins. The clock itself is read once per batch of work, by the tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// An instant together with what the balancer calls it.
    pub(crate) fn moment(self, at: Instant) -> Moment {
        Moment { at, nanos: self.nanos(at) }
    }

    /// An instant as the balancer counts it.
    pub(crate) fn nanos(self, at: Instant) -> Nanos {
        Nanos(u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX))
    }
}

/// One instant in both forms that routing needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) nanos: Nanos,
}
