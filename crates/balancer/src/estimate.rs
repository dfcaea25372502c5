//! What one client's speed is taken to be.

/// The effective processing time of a client, from all evidence. Pure: no clock, no atomics.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    /// Nanoseconds; 0 = unknown.
    raw: u64,
    /// Pings without a report since the last report.
    plain_pings: u32,
}

impl Estimate {
    pub(crate) fn assume(&mut self, processing_ns: u64) {
        self.raw = processing_ns;
    }

    pub(crate) fn plain_ping(&mut self) {
        self.plain_pings = self.plain_pings.saturating_add(1);
    }

    pub(crate) fn processing_ns(&self) -> Option<u64> {
        (self.raw > 0).then_some(self.raw)
    }
}
