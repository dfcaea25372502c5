/// Records of a scenario, kept if its plan asks for records.
///
/// Times are those of the run's clock, in nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Start of the run.
    pub(crate) start_ns: u64,
    /// Creation time of each message, by sequence number.
    pub(crate) created_ns: Vec<u64>,
}

impl Trace {
    pub(super) fn merge(&mut self, other: Self) {
        self.created_ns.extend(other.created_ns);
    }
}
