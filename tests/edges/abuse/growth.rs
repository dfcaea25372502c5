use std::io::Write as _;

use crate::support::BrokerProcess;

/// Growth of a broker's resident memory, sampled on request.
pub(crate) struct Growth<'a> {
    broker: &'a BrokerProcess,
    before: u64,
    most: u64,
}

impl<'a> Growth<'a> {
    /// Starts to measure.
    pub(crate) fn of(broker: &'a BrokerProcess) -> Self {
        broker.assert_serves();
        let before = broker.resident_bytes();
        Self { broker, before, most: before }
    }

    pub(crate) fn look(&mut self) {
        self.most = self.most.max(self.broker.resident_bytes());
    }

    /// Prints the growth and asserts that it is at most `bound` MiB.
    pub(crate) fn assert_within(&mut self, bound: u64, what: &str) {
        self.look();
        let grown = self.most - self.before;
        let _ = writeln!(std::io::stderr(), "{what}: grown by {} KiB, at most {bound} MiB allowed", grown >> 10);
        assert!(grown <= bound << 20, "{what}: grown by {grown} bytes, {bound} MiB allowed");
    }
}
