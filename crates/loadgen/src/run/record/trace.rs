use std::time::Duration;

/// Records of a scenario, kept if its plan asks for records.
///
/// Times are by the run's clock, in nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Start of the run.
    pub(crate) start_ns: u64,
    /// Creation time of each message, by sequence number.
    pub(crate) created_ns: Vec<u64>,
    /// Messages that workers have finished.
    pub(crate) works: Vec<WorkRecord>,
    /// Load reports: number of the worker, time, and mean processing time.
    pub(crate) reports: Vec<(u32, u64, Duration)>,
}

/// Record of a message that a worker has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkRecord {
    /// Number of the worker, over all audiences.
    pub(crate) receiver: u32,
    pub(crate) sequence: u32,
    pub(crate) created_ns: u64,
    pub(crate) received_ns: u64,
    /// When the worker took the message, by its timeline.
    pub(crate) taken_ns: u64,
    /// When the thread took it, later by the timer's delay.
    pub(crate) observed_ns: u64,
    pub(crate) finished_ns: u64,
}

impl Trace {
    pub(super) fn merge(&mut self, other: Self) {
        self.created_ns.extend(other.created_ns);
        self.works.extend(other.works);
        self.reports.extend(other.reports);
    }
}
