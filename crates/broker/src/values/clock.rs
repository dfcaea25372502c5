use std::time::Instant;

use tenbin_balancer::Nanos;

/// Origin of the broker's time. Tasks read the clock itself once per batch of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns an instant in both forms.
    pub(crate) fn moment(self, at: Instant) -> Moment {
        Moment { at, nanos: self.nanos(at) }
    }

    /// Returns an instant in the balancer's form: nanoseconds since the start.
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
