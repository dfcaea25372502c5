use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::LoadgenError;

/// What all driver threads and their watcher have in common.
#[derive(Debug)]
pub(super) struct Shared {
    phase: AtomicU8,
    /// One for each thread.
    pub(super) counters: Vec<Counters>,
    /// Only where the plan has a closed loop.
    pub(super) window: Option<Window>,
    cuts_while: CutsWhile,
    /// Whether somebody has said that no more connections are to be cut.
    has_stopped_cutting: AtomicBool,
    /// Set with `failure`, so that looking costs no lock.
    failed: AtomicBool,
    failure: Mutex<Option<LoadgenError>>,
}

/// How long connections are cut, where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutsWhile {
    /// As long as publishers of this process have messages left.
    Publishing,
    /// Until the time is over or somebody says that it is enough.
    Running,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Everybody connects.
    Connecting = 0,
    /// Publishers publish.
    Running = 1,
    /// They send what they have begun and nothing new.
    Draining = 2,
    /// Connections are being closed.
    Ended = 3,
}

/// What a thread tells while the load runs. Written by that thread alone, read by the watcher; they guard no other
/// memory. Two cache lines each, for processors fetch in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    /// Messages.
    pub(super) published: Count,
    /// Deliveries that these call for.
    pub(super) expected: Count,
    /// Deliveries of this run that came, each counted once at its receiver.
    pub(super) received: Count,
    /// Further copies of them.
    pub(super) copies: Count,
    /// Deliveries by which more may have come than is expected; see [`Status::doubtful`].
    pub(super) doubtful: Count,
    /// Wills that came.
    pub(super) wills: Count,
    /// Messages at QoS 1 and 2 that the broker refused to take.
    pub(super) not_taken: Count,
    /// Messages on their way to the broker: not written at QoS 0, without their last acknowledgement above.
    pub(super) in_flight: Count,
    /// Publishers that have messages left to send.
    pub(super) publishing: Count,
    /// By the run's clock; 0 before the first.
    pub(super) last_arrival_ns: Count,
    /// Messages that simulated workers have and have not finished.
    pub(super) queued: Count,
    /// Connections that are to be made, or made again: idle ones that nobody has answered, and those that were cut.
    pub(super) connecting: Count,
    /// Processor time of the thread.
    pub(super) cpu_ns: Count,
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

/// How far a run is; numbers are those of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Messages: written at QoS 0, acknowledged above.
    pub(crate) published: u64,
    /// Deliveries that published messages call for, at subscribers of all processes.
    pub(crate) expected: u64,
    /// Deliveries of this run that came: each counts once at its receiver, and what is not of this run does not count.
    pub(crate) received: u64,
    /// Further copies of them.
    pub(crate) copies: u64,
    /// Deliveries by which more may have come than is expected: those to members of a share group that are sent again,
    /// for another member may have them too, and those whose confirmation was lost with a session. Where there are any,
    /// as much may have come as is expected and not be all of it.
    pub(crate) doubtful: u64,
    /// Wills that came.
    pub(crate) wills: u64,
    /// Messages that the broker refused to take.
    pub(crate) not_taken: u64,
    /// Messages on their way to the broker: not written at QoS 0, without their last acknowledgement above.
    pub(crate) in_flight: u64,
    /// Publishers that have messages left to send.
    pub(crate) publishing: u64,
    /// By the run's clock; 0 before the first.
    pub(crate) last_arrival_ns: u64,
    /// Messages that simulated workers have and have not finished.
    pub(crate) queued: u64,
    /// Connections that are to be made, or made again: idle ones that nobody has answered, and those that were cut.
    pub(crate) connecting: u64,
    /// Processor time of each driver thread.
    pub(crate) cpu_ns: Vec<u64>,
    /// The first connection that was lost although nobody cut it.
    pub(crate) failure: Option<String>,
}

impl Counters {
    /// Tells how much processor time the thread that calls has used.
    pub(super) fn note_cpu(&self) {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        self.cpu_ns.set(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64);
    }
}

impl Count {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// No read-modify-write: nobody else writes.
    pub(super) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    pub(super) fn sub(&self, less: u64) {
        self.set(self.get().saturating_sub(less));
    }
}

impl Shared {
    pub(super) fn new(threads: usize, window: Option<u64>, cuts_while: CutsWhile) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            counters: (0..threads).map(|_| Counters::default()).collect(),
            window: window.map(|size| Window::new(size, threads)),
            cuts_while,
            has_stopped_cutting: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Connecting,
            1 => Phase::Running,
            2 => Phase::Draining,
            _ => Phase::Ended,
        }
    }

    /// Phases follow each other; an earlier one than that which is on is not entered.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Tells the watcher that a connection failed. The first failure counts, and none after the end.
    pub(super) fn fail(&self, error: LoadgenError) {
        if self.phase() != Phase::Ended {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            self.failed.store(true, Ordering::Release); // after the failure is there
        }
    }

    /// The first failure of a connection. It is told once.
    pub(super) fn take_failure(&self) -> Option<LoadgenError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Messages that simulated workers have and have not finished.
    pub(super) fn queued(&self) -> u64 {
        self.counters.iter().map(|counters| counters.queued.get()).sum()
    }

    /// Whether connections are still to be cut: not once everything has been sent, so that what is on its way can come.
    pub(super) fn may_cut(&self) -> bool {
        let publishing = || self.counters.iter().any(|counters| counters.publishing.get() > 0);
        let is_on = self.phase() == Phase::Running && !self.has_stopped_cutting.load(Ordering::Relaxed);
        is_on && (self.cuts_while == CutsWhile::Running || publishing())
    }

    pub(super) fn stop_cutting(&self) {
        self.has_stopped_cutting.store(true, Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> Status {
        let sum = |of: fn(&Counters) -> &Count| self.counters.iter().map(|counters| of(counters).get()).sum();
        let failure = if self.failed.load(Ordering::Acquire) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(LoadgenError::to_string)
        } else {
            None
        };
        Status {
            // What is expected is read before what came, so that nothing seems to come before it was sent.
            expected: sum(|counters| &counters.expected),
            published: sum(|counters| &counters.published),
            not_taken: sum(|counters| &counters.not_taken),
            in_flight: sum(|counters| &counters.in_flight),
            publishing: sum(|counters| &counters.publishing),
            received: sum(|counters| &counters.received),
            copies: sum(|counters| &counters.copies),
            doubtful: sum(|counters| &counters.doubtful),
            wills: sum(|counters| &counters.wills),
            queued: self.queued(),
            connecting: sum(|counters| &counters.connecting),
            last_arrival_ns: self.counters.iter().map(|counters| counters.last_arrival_ns.get()).max().unwrap_or(0),
            cpu_ns: self.counters.iter().map(|counters| counters.cpu_ns.get()).collect(),
            failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_sum_of_all_threads() {
        let shared = Shared::new(3, None, CutsWhile::Publishing);
        for (thread, counters) in (1..).zip(&shared.counters) {
            counters.published.add(10 * thread);
            counters.received.add(thread);
            counters.last_arrival_ns.set(100 - thread);
            counters.in_flight.add(5);
            counters.in_flight.sub(thread);
        }
        let status = shared.status();
        assert_eq!((status.published, status.received, status.in_flight), (60, 6, 9));
        assert_eq!(status.last_arrival_ns, 99);
    }

    #[test]
    fn connections_are_cut_while_messages_are_being_published() {
        let [sending, listening] =
            [CutsWhile::Publishing, CutsWhile::Running].map(|cuts_while| Shared::new(1, None, cuts_while));
        assert_eq!([&sending, &listening].map(Shared::may_cut), [false; 2], "not yet");
        sending.enter(Phase::Running);
        listening.enter(Phase::Running);
        assert_eq!([&sending, &listening].map(Shared::may_cut), [false, true]);
        sending.counters[0].publishing.add(1);
        assert!(sending.may_cut());
        sending.enter(Phase::Draining);
        listening.stop_cutting();
        assert_eq!([&sending, &listening].map(Shared::may_cut), [false; 2]);
    }

    #[test]
    fn the_first_failure_counts_and_none_after_the_end() {
        let shared = Shared::new(1, None, CutsWhile::Publishing);
        assert!(shared.take_failure().is_none());
        shared.fail(LoadgenError::Interrupted);
        shared.fail(LoadgenError::lost("late", ""));
        assert_eq!(shared.status().failure.as_deref(), Some("interrupted"));
        assert!(matches!(shared.take_failure(), Some(LoadgenError::Interrupted)));
        shared.enter(Phase::Ended);
        shared.enter(Phase::Draining);
        shared.fail(LoadgenError::lost("late", ""));
        assert!(shared.phase() == Phase::Ended && shared.take_failure().is_none());
    }
}
