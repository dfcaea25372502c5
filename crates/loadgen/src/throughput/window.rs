use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::LoadgenError;

/// How far the publishers may be ahead of the subscribers, and what both have counted.
///
/// Every message carries the mark of the era in which it was claimed. The window is about the current era alone: what
/// belongs to an earlier one has been given up, and when it comes after all it is counted as received and takes no
/// place that it no longer has.
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
    /// Both of them, by the mark of their era.
    eras: [Era; MARKS],
    /// The mark of the current era. Written by the watcher only.
    current: AtomicU8,
    /// Messages that the broker refused. Written by the publishers' thread only.
    refused: AtomicU64,
    phase: AtomicU8,
    /// Set with `failure`, so that looking costs no lock.
    failed: AtomicBool,
    failure: Mutex<Option<LoadgenError>>,
}

/// What was claimed between two stalls, and what of it came. Written by the same threads as the totals; the watcher
/// sets both to zero when a mark is used anew.
#[derive(Debug, Default)]
struct Era {
    claimed: AtomicU64,
    received: AtomicU64,
}

/// Messages that a publisher may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) count: u64,
    /// What each of them carries.
    pub(super) mark: u8,
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
            eras: std::array::from_fn(|_| Era::default()),
            current: AtomicU8::new(0),
            refused: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Running as u8),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Claims up to `wanted` messages to send; none when the window is closed. For the publishers' thread.
    pub(super) fn claim(&self, wanted: u64) -> Claim {
        let mark = self.current.load(Ordering::Relaxed);
        if self.phase() != Phase::Running {
            return Claim { count: 0, mark };
        }
        let outstanding = self.outstanding_of(mark);
        let room = self.size.saturating_sub(outstanding) / self.copies;
        // A window smaller than one message's deliveries still lets a message through.
        let room = if outstanding == 0 { room.max(1) } else { room };
        let count = wanted.min(room);
        self.claimed.fetch_add(count, Ordering::Relaxed);
        self.eras[usize::from(mark)].claimed.fetch_add(count, Ordering::Relaxed);
        Claim { count, mark }
    }

    /// Gives back messages that were claimed and never sent.
    pub(super) fn unclaim(&self, count: u64) {
        self.claimed.fetch_sub(count, Ordering::Relaxed);
        // Nobody knows any more when they were claimed: after a stall that may have been in an era before.
        let era = &self.eras[usize::from(self.current.load(Ordering::Relaxed))];
        era.claimed.store(era.claimed.load(Ordering::Relaxed).saturating_sub(count), Ordering::Relaxed);
    }

    /// Counts deliveries of messages with this mark.
    pub(super) fn receive(&self, mark: u8, count: u64) {
        self.received.fetch_add(count, Ordering::Relaxed);
        self.eras[usize::from(mark)].received.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts messages that the broker refused to take, and so delivers to nobody.
    pub(super) fn refuse(&self, count: u64) {
        if count > 0 {
            self.unclaim(count);
            self.refused.fetch_add(count, Ordering::Relaxed);
        }
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

    /// Deliveries that have not come, those that were given up among them.
    pub(super) fn missing(&self) -> u64 {
        self.expected().saturating_sub(self.received())
    }

    /// Deliveries that the window is waiting for.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding_of(self.current.load(Ordering::Relaxed))
    }

    fn outstanding_of(&self, mark: u8) -> u64 {
        let era = &self.eras[usize::from(mark)];
        let expected = era.claimed.load(Ordering::Relaxed) * self.copies;
        expected.saturating_sub(era.received.load(Ordering::Relaxed))
    }

    /// Gives up what is outstanding, which opens the window. For the watcher.
    pub(super) fn write_off(&self) {
        let next = self.current.load(Ordering::Relaxed).wrapping_add(1);
        // Of the era that had this mark before nothing has moved for as many stalls as there are marks.
        let era = &self.eras[usize::from(next)];
        era.claimed.store(0, Ordering::Relaxed);
        era.received.store(0, Ordering::Relaxed);
        self.current.store(next, Ordering::Relaxed);
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

/// Marks there are: a byte of the payload.
const MARKS: usize = 1 << u8::BITS;

#[cfg(test)]
mod tests {
    use super::*;

    impl Window {
        fn claim_count(&self, wanted: u64) -> u64 {
            self.claim(wanted).count
        }
    }

    #[test]
    fn publishers_stay_within_the_window() {
        let window = Window::new(100, 1);
        assert_eq!(window.claim(70), Claim { count: 70, mark: 0 });
        assert_eq!(window.claim_count(70), 30);
        assert_eq!(window.claim_count(70), 0);
        window.receive(0, 10);
        assert_eq!(window.claim_count(70), 10);
        window.unclaim(10);
        assert_eq!((window.expected(), window.outstanding(), window.missing()), (100, 90, 90));
    }

    #[test]
    fn a_message_to_many_counts_as_often_as_it_is_delivered() {
        let window = Window::new(25, 10);
        assert_eq!(window.claim_count(70), 2);
        assert_eq!(window.outstanding(), 20);
        assert_eq!(window.claim_count(1), 0);
        let narrow = Window::new(5, 10);
        assert_eq!((narrow.claim_count(70), narrow.claim_count(70)), (1, 0));
    }

    #[test]
    fn what_comes_after_it_was_given_up_is_received_and_leaves_the_window_as_it_is() {
        let window = Window::new(100, 1);
        let early = window.claim(100);
        window.receive(early.mark, 40);
        window.write_off();
        assert_eq!((window.outstanding(), window.missing()), (0, 60));
        let late = window.claim(200);
        assert_eq!(late.count, 100);
        // All that was given up comes after all: a hundred messages are on their way all the same.
        window.receive(early.mark, 60);
        assert_eq!((window.outstanding(), window.missing(), window.claim_count(1)), (100, 100, 0));
        window.receive(late.mark, 99);
        assert_eq!((window.outstanding(), window.missing()), (1, 1));
        window.receive(late.mark, 1);
        assert_eq!((window.missing(), window.received(), window.expected()), (0, 200, 200));
    }

    #[test]
    fn what_never_comes_stays_missing_and_closes_no_later_window() {
        let window = Window::new(10, 1);
        for stall in 1..=1000 {
            let claim = window.claim(20);
            assert_eq!(claim.count, 10);
            window.receive(claim.mark, 7);
            window.write_off();
            assert_eq!((window.outstanding(), window.missing()), (0, 3 * stall));
        }
    }

    #[test]
    fn refusals_of_what_was_given_up_do_not_close_the_window() {
        let window = Window::new(10, 1);
        window.claim(10);
        window.write_off();
        window.refuse(10);
        assert_eq!((window.missing(), window.refused(), window.claim_count(20)), (0, 10, 10));
    }

    #[test]
    fn nothing_is_claimed_after_the_run() {
        let window = Window::new(100, 1);
        window.enter(Phase::Draining);
        assert_eq!(window.claim_count(1), 0);
        window.fail(LoadgenError::Interrupted);
        window.fail(LoadgenError::lost("late", ""));
        assert!(matches!(window.check(), Err(LoadgenError::Interrupted)));
    }
}
