use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::LoadgenError;

/// How far the publishers may be ahead of the subscribers, and what both have counted.
///
/// The counters guard no other memory, so that relaxed ordering does: a value that is read late closes the
/// window a little early.
#[derive(Debug)]
pub(super) struct Window {
    /// Deliveries that may be outstanding.
    size: u64,
    /// Deliveries of each message.
    copies: u64,
    /// Messages that publishers send. Written by the publishers' thread only.
    claimed: AtomicU64,
    /// Deliveries that came. Written by the subscribers' thread only.
    received: AtomicU64,
    /// Deliveries that are no longer waited for. Written by the watcher only.
    written_off: AtomicU64,
    /// Messages that the broker refused. Written by the publishers' thread only.
    refused: AtomicU64,
    phase: AtomicU8,
    /// Set with `failure`, so that looking costs no lock.
    failed: AtomicBool,
    failure: Mutex<Option<LoadgenError>>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Publishers publish.
    Running = 0,
    /// They send what they have begun and nothing new.
    Draining = 1,
    /// Connections are being closed.
    Ended = 2,
}

impl Window {
    pub(super) fn new(size: u64, copies: u64) -> Self {
        Self {
            size,
            copies,
            claimed: AtomicU64::new(0),
            received: AtomicU64::new(0),
            written_off: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Running as u8),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Claims up to `wanted` messages to send; 0 when the window is closed. For the publishers' thread.
    pub(super) fn claim(&self, wanted: u64) -> u64 {
        if self.phase() != Phase::Running {
            return 0;
        }
        let outstanding = self.outstanding();
        let room = self.size.saturating_sub(outstanding) / self.copies;
        // A window smaller than one message's deliveries still lets a message through.
        let room = if outstanding == 0 { room.max(1) } else { room };
        let count = wanted.min(room);
        self.claimed.fetch_add(count, Ordering::Relaxed);
        count
    }

    /// Gives back messages that were claimed and never sent.
    pub(super) fn unclaim(&self, count: u64) {
        self.claimed.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts deliveries.
    pub(super) fn receive(&self, count: u64) {
        self.received.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts messages that the broker refused to take, and so delivers to nobody.
    pub(super) fn refuse(&self, count: u64) {
        self.unclaim(count);
        self.refused.fetch_add(count, Ordering::Relaxed);
    }

    /// Deliveries that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Messages refused so far.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Deliveries that all claimed messages amount to.
    pub(super) fn expected(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed) * self.copies
    }

    /// Deliveries that are waited for.
    pub(super) fn outstanding(&self) -> u64 {
        let gone = self.received() + self.written_off.load(Ordering::Relaxed);
        self.expected().saturating_sub(gone)
    }

    /// Waits no longer for what is outstanding: reopens the window. For the watcher.
    pub(super) fn write_off(&self) {
        self.written_off.fetch_add(self.outstanding(), Ordering::Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Ended,
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Tells the watcher that a connection failed. The first failure counts, and none after the end.
    pub(super) fn fail(&self, error: LoadgenError) {
        if self.phase() != Phase::Ended {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.failed.store(true, Ordering::Release); // after the failure is there
        }
    }

    /// # Errors
    /// The first failure of a connection.
    pub(super) fn check(&self) -> Result<(), LoadgenError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_stay_within_the_window() {
        let window = Window::new(100, 1);
        assert_eq!(window.claim(70), 70);
        assert_eq!(window.claim(70), 30);
        assert_eq!(window.claim(70), 0);
        window.receive(10);
        assert_eq!(window.claim(70), 10);
        window.unclaim(10);
        assert_eq!((window.expected(), window.outstanding()), (100, 90));
    }

    #[test]
    fn a_message_to_many_counts_as_often_as_it_is_delivered() {
        let window = Window::new(25, 10);
        assert_eq!(window.claim(70), 2);
        assert_eq!(window.outstanding(), 20);
        assert_eq!(window.claim(1), 0);
        let narrow = Window::new(5, 10);
        assert_eq!((narrow.claim(70), narrow.claim(70)), (1, 0));
    }

    #[test]
    fn what_is_written_off_reopens_the_window_and_may_still_come() {
        let window = Window::new(100, 1);
        window.claim(100);
        window.receive(40);
        window.write_off();
        assert_eq!((window.outstanding(), window.claim(200)), (0, 100));
        window.receive(60 + 100);
        assert_eq!((window.outstanding(), window.received(), window.expected()), (0, 200, 200));
    }

    #[test]
    fn nothing_is_claimed_after_the_run() {
        let window = Window::new(100, 1);
        window.enter(Phase::Draining);
        assert_eq!(window.claim(1), 0);
        window.fail(LoadgenError::Interrupted);
        window.fail(LoadgenError::lost("late", ""));
        assert!(matches!(window.check(), Err(LoadgenError::Interrupted)));
    }
}
