//! Acknowledgements of a client at one moment.

use crate::nanos::Nanos;

/// Messages that a client acknowledged at one moment: all acknowledgements of one read from its socket.
///
/// The individual completion times are unknown. Ten acknowledgements after 250 ms together show a client that works 25
/// ms on each. Taken one by one, they would show one of 250 ms and nine of nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Arrival time.
    pub(crate) at: Nanos,
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    /// When the first of them was sent; `at` while there is none.
    pub(crate) first_sent_at: Nanos,
    /// Sum of the times from sending to acknowledgement.
    pub(crate) latency_ns: u64,
}

impl Acknowledged {
    /// Creates an empty set of acknowledgements at `at`.
    pub fn new(at: Nanos) -> Self {
        Self { at, messages: 0, bytes: 0, first_sent_at: at, latency_ns: 0 }
    }

    /// Creates the acknowledgement of one message of `bytes`, sent at `sent_at` and acknowledged at `at`.
    pub fn one(sent_at: Nanos, bytes: u32, at: Nanos) -> Self {
        let mut acknowledged = Self::new(at);
        acknowledged.add(sent_at, bytes.into());
        acknowledged
    }

    /// Adds a message of `bytes` that was sent at `sent_at`.
    pub fn add(&mut self, sent_at: Nanos, bytes: u64) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.first_sent_at = self.first_sent_at.min(sent_at);
        self.latency_ns = self.latency_ns.saturating_add(self.at.0.saturating_sub(sent_at.0));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_are_summed_whatever_their_order() {
        let mut acknowledged = Acknowledged::one(Nanos(70), 10, Nanos(100));
        acknowledged.add(Nanos(20), 5);
        acknowledged.add(Nanos(90), 1);
        let expected =
            Acknowledged { at: Nanos(100), messages: 3, bytes: 16, first_sent_at: Nanos(20), latency_ns: 30 + 80 + 10 };
        assert_eq!(acknowledged, expected);
    }

    #[test]
    fn a_clock_that_goes_back_shows_no_time() {
        let acknowledged = Acknowledged::one(Nanos(120), 10, Nanos(100));
        assert_eq!((acknowledged.first_sent_at, acknowledged.latency_ns), (Nanos(100), 0));
    }
}
