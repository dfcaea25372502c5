//! Small writes of a worker whose socket has no `TCP_NODELAY`.

use tenbin_balancer::Nanos;

use super::Acknowledged;

/// Nagle's algorithm: the kernel sends a small segment only when the other end has confirmed the last one.
///
/// The other end confirms with its next packet, or else [`DELAYED_ACK_NS`] after the segment arrived.
#[derive(Debug, Default)]
pub(crate) struct Nagle {
    /// Acknowledgements that wait for the confirmation.
    held: Vec<Acknowledged>,
    /// When the last segment arrives at the other end.
    arrives: Nanos,
    /// When the worker knows that it has arrived.
    confirmed: Nanos,
}

impl Nagle {
    /// Whether a write at `now` waits.
    pub(crate) fn is_blocked(&self, now: Nanos) -> bool {
        now < self.confirmed
    }

    /// Holds an acknowledgement back. Returns when it is sent unless the other end sends a packet before.
    pub(crate) fn hold(&mut self, acknowledged: Acknowledged) -> Nanos {
        self.held.push(acknowledged);
        self.confirmed
    }

    /// A segment is sent that arrives at `arrives`. A plain confirmation takes `way_back_ns`.
    pub(crate) fn sent(&mut self, arrives: Nanos, way_back_ns: u64) {
        self.arrives = arrives;
        self.confirmed = Nanos(arrives.0 + DELAYED_ACK_NS + way_back_ns);
    }

    /// A packet arrives that the other end sent at `at`.
    pub(crate) fn received(&mut self, at: Nanos, now: Nanos) {
        if at >= self.arrives {
            self.confirmed = self.confirmed.min(now);
        }
    }

    /// Returns the acknowledgements that are sent now, in one segment.
    pub(crate) fn release(&mut self, now: Nanos) -> Vec<Acknowledged> {
        if self.is_blocked(now) { Vec::new() } else { std::mem::take(&mut self.held) }
    }
}

/// Time for which Linux waits for a packet that can carry the confirmation.
const DELAYED_ACK_NS: u64 = 40_000_000;
