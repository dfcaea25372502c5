//! The window of a closed loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::run::{Pace, Plan};
use tokio::sync::Notify;

/// Limit on deliveries under way between the publishers and the subscribers of this process.
///
/// Deliveries that do not arrive are given up after [`PATIENCE`] without any arrival, so that a loss does not narrow the
/// window for good.
#[derive(Debug)]
pub(super) struct Window {
    size: u64,
    claimed: AtomicU64,
    received: AtomicU64,
    changed: Notify,
}

impl Window {
    /// The window of a plan with a closed loop.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let Pace::Closed { window } = plan.publishers.pace else { return None };
        let (claimed, received) = (AtomicU64::new(0), AtomicU64::new(0));
        Some(Self { size: window.max(1), claimed, received, changed: Notify::new() })
    }

    /// Number of messages of `copies` deliveries each that may be sent now.
    pub(super) fn room(&self, copies: u64) -> u64 {
        let outstanding = self.outstanding();
        if outstanding == 0 {
            // A window smaller than the deliveries of one message still lets one message through.
            return self.size.checked_div(copies).unwrap_or(u64::MAX).max(1);
        }
        self.size.saturating_sub(outstanding).checked_div(copies).unwrap_or(u64::MAX)
    }

    /// Counts deliveries of messages to be sent.
    pub(super) fn claim(&self, deliveries: u64) {
        self.claimed.fetch_add(deliveries, Ordering::Relaxed);
    }

    /// Counts deliveries that arrived or will never be sent.
    pub(super) fn receive(&self, deliveries: u64) {
        if deliveries > 0 {
            self.received.fetch_add(deliveries, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
    }

    /// Waits until something arrived, or gives up all deliveries under way.
    pub(super) async fn opened(&self) {
        let received = self.received.load(Ordering::Relaxed);
        let has_changed = tokio::time::timeout(PATIENCE, self.changed.notified()).await.is_ok();
        if !has_changed && self.received.load(Ordering::Relaxed) == received {
            self.receive(self.outstanding());
        }
    }

    fn outstanding(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed).saturating_sub(self.received.load(Ordering::Relaxed))
    }
}

/// Time without an arrival after which deliveries under way are given up.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use crate::run::{Broker, Publishers};

    use super::*;

    fn window(size: u64) -> Window {
        let publishers = Publishers { pace: Pace::Closed { window: size }, ..Publishers::new(1, "a") };
        Window::of(&Plan::new(1, vec![Broker::new("b", "127.0.0.1", 1)], publishers, Vec::new())).unwrap()
    }

    #[test]
    fn room_is_what_outstanding_deliveries_leave() {
        let window = window(10);
        assert_eq!((window.room(3), window.room(20), window.room(0)), (3, 1, u64::MAX));
        window.claim(6);
        assert_eq!((window.room(3), window.room(5)), (1, 0));
        window.receive(6);
        assert_eq!(window.room(1), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_deliveries_are_given_up() {
        let window = window(10);
        window.claim(10);
        assert_eq!(window.room(1), 0);
        window.opened().await;
        assert_eq!(window.room(1), 10);
    }
}
