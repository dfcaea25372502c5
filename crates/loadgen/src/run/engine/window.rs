use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

/// Limit on how far the publishers of this process may be ahead of its subscribers.
///
/// Deliveries that were given up (see [`Window::write_off`]) no longer count as outstanding, and do not open the window
/// if they arrive later: a message's due time shows whether it was given up.
///
/// The counters guard no other memory. Their order matters only for the waiters (sequential consistency): a publisher's
/// thread announces that it waits and then checks the window once more; a subscriber's thread counts and then checks
/// for waiting publishers.
#[derive(Debug)]
pub(super) struct Window {
    /// Maximum number of outstanding deliveries.
    size: u64,
    /// Deliveries of all messages sent. Written by publishers' threads.
    claimed: AtomicU64,
    /// Deliveries that arrived and were not given up before. Written by subscribers' threads.
    received: AtomicU64,
    /// Deliveries that were given up. Written by the watcher.
    written_off: AtomicU64,
    /// Messages due by this time were given up. Written by the watcher.
    since_ns: AtomicU64,
    /// One for each thread.
    waiters: Vec<Waiter>,
}

/// Wakes a publisher's thread when the window opens.
#[derive(Debug, Default)]
struct Waiter {
    is_waiting: AtomicBool,
    notify: Notify,
}

impl Window {
    pub(super) fn new(size: u64, threads: usize) -> Self {
        Self {
            size,
            claimed: AtomicU64::new(0),
            received: AtomicU64::new(0),
            written_off: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            waiters: (0..threads).map(|_| Waiter::default()).collect(),
        }
    }

    /// Number of messages of `copies` deliveries each that may be sent now.
    pub(super) fn room(&self, copies: u64) -> u64 {
        let Some(outstanding) = self.outstanding().checked_sub(1) else {
            // A window smaller than one message's deliveries still lets one message through.
            return self.size.checked_div(copies).unwrap_or(u64::MAX).max(1);
        };
        self.size.saturating_sub(outstanding + 1).checked_div(copies).unwrap_or(u64::MAX)
    }

    /// Counts deliveries of messages about to be sent; returns their due time, which is after all that were given up.
    pub(super) fn claim(&self, deliveries: u64, now_ns: u64) -> u64 {
        self.claimed.fetch_add(deliveries, Ordering::Relaxed);
        now_ns.max(self.since_ns() + 1)
    }

    /// Takes back the deliveries of a message that was refused or never sent, unless they were given up before.
    pub(super) fn unclaim(&self, due_ns: u64, deliveries: u64) {
        if due_ns > self.since_ns() {
            self.claimed.fetch_sub(deliveries, Ordering::Relaxed);
        }
    }

    /// Messages due by this time were given up and do not count when they arrive; 0 for none.
    pub(super) fn since_ns(&self) -> u64 {
        self.since_ns.load(Ordering::Relaxed)
    }

    /// Counts deliveries that arrived, and opens the window.
    pub(super) fn receive(&self, deliveries: u64) {
        self.received.fetch_add(deliveries, Ordering::SeqCst);
        if self.waiters.iter().any(|waiter| waiter.is_waiting.load(Ordering::SeqCst)) && self.is_worth_it() {
            self.wake();
        }
    }

    /// Wakes all threads that wait for the window to open.
    pub(super) fn wake(&self) {
        for waiter in &self.waiters {
            if waiter.is_waiting.swap(false, Ordering::SeqCst) {
                waiter.notify.notify_one();
            }
        }
    }

    /// Asks for a wake-up of `thread` when the window opens. The caller must check [`Window::room`] once more.
    pub(super) fn announce(&self, thread: usize) {
        self.waiters[thread].is_waiting.store(true, Ordering::SeqCst);
    }

    /// Waits until this thread is woken.
    pub(super) async fn opened(&self, thread: usize) {
        self.waiters[thread].notify.notified().await;
    }

    /// Number of outstanding deliveries.
    pub(super) fn outstanding(&self) -> u64 {
        let gone = self.received.load(Ordering::SeqCst) + self.written_off.load(Ordering::SeqCst);
        self.claimed.load(Ordering::SeqCst).saturating_sub(gone)
    }

    /// Deliveries that arrived, for the watcher.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Gives up the outstanding deliveries, which opens the window. For the watcher.
    pub(super) fn write_off(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.written_off.fetch_add(self.outstanding(), Ordering::SeqCst);
        self.wake();
    }

    /// Whether enough has arrived to justify a wake-up: publishers woken for each message would send only small blocks.
    fn is_worth_it(&self) -> bool {
        let outstanding = self.outstanding();
        outstanding == 0 || self.size.saturating_sub(outstanding) >= (self.size / 16).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Window {
        /// Sends up to `wanted` messages; returns how many were sent.
        fn send(&self, wanted: u64, copies: u64) -> u64 {
            let count = wanted.min(self.room(copies));
            self.claim(count * copies, 0);
            count
        }
    }

    #[test]
    fn publishers_stay_within_the_window() {
        let window = Window::new(100, 1);
        assert_eq!([window.send(70, 1), window.send(70, 1), window.send(70, 1)], [70, 30, 0]);
        window.receive(10);
        assert_eq!(window.send(70, 1), 10);
        window.unclaim(1, 10);
        assert_eq!(window.outstanding(), 90);
    }

    #[test]
    fn message_takes_window_room_per_delivery() {
        let window = Window::new(25, 1);
        assert_eq!(window.send(70, 10), 2);
        assert_eq!((window.outstanding(), window.send(1, 10)), (20, 0));
        let narrow = Window::new(5, 1);
        assert_eq!([narrow.send(70, 10), narrow.send(70, 10)], [1, 0]);
        let to_nobody = Window::new(5, 1);
        assert_eq!([to_nobody.send(70, 0), to_nobody.send(70, 0)], [70, 70]);
    }

    #[test]
    fn written_off_deliveries_do_not_open_the_window() {
        let window = Window::new(100, 1);
        window.send(100, 1);
        window.receive(40);
        window.write_off(7);
        assert_eq!((window.outstanding(), window.since_ns()), (0, 7));
        assert_eq!((window.send(200, 1), window.claim(0, 5)), (100, 8));
        // Messages due by then no longer count, so that only messages sent later open the window.
        assert_eq!(window.send(1, 1), 0);
        window.receive(99);
        assert_eq!((window.outstanding(), window.send(200, 1)), (1, 99));
    }

    #[test]
    fn lost_deliveries_do_not_close_later_windows() {
        let window = Window::new(10, 1);
        for stall in 1..=1000 {
            assert_eq!(window.send(20, 1), 10);
            window.receive(7);
            window.write_off(stall);
            assert_eq!(window.outstanding(), 0);
        }
    }

    #[test]
    fn refusals_open_the_window_once() {
        let window = Window::new(10, 1);
        window.send(10, 1);
        window.write_off(1);
        window.unclaim(1, 10);
        assert_eq!((window.send(20, 1), window.send(20, 1)), (10, 0));
        window.unclaim(2, 10);
        assert_eq!((window.send(20, 1), window.send(20, 1)), (10, 0));
    }

    #[test]
    fn waiters_wake_once_a_sixteenth_is_open() {
        let window = Window::new(100, 2);
        let is_waiting = || [0, 1].map(|thread: usize| window.waiters[thread].is_waiting.load(Ordering::SeqCst));
        window.send(100, 1);
        window.announce(0);
        window.receive(5);
        assert_eq!(is_waiting(), [true, false]);
        window.receive(1);
        assert_eq!(is_waiting(), [false, false]);
    }
}
