use std::io::Write as _;

use crate::support::BrokerProcess;

/// How much a broker's resident memory grows, looked at now and then.
pub(crate) struct Growth<'a> {
    broker: &'a BrokerProcess,
    before: u64,
    most: u64,
}

impl<'a> Growth<'a> {
    /// Growth from now on.
    pub(crate) fn of(broker: &'a BrokerProcess) -> Self {
        broker.assert_serves();
        let before = broker.resident_bytes();
        Self { broker, before, most: before }
    }

    pub(crate) fn look(&mut self) {
        self.most = self.most.max(self.broker.resident_bytes());
    }

    /// The figure, and that it is within `bound` mebibytes.
    pub(crate) fn assert_within(&mut self, bound: u64, what: &str) {
        self.look();
        let grown = self.most - self.before;
        let _ = writeln!(std::io::stderr(), "{what}: grown by {} KiB, at most {bound} MiB allowed", grown >> 10);
        assert!(grown <= bound << 20, "{what}: grown by {grown} bytes, {bound} MiB allowed");
    }
}
