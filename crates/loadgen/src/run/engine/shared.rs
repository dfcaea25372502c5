use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::window::Window;
use crate::LoadgenError;
use crate::run::{Counters, Status};

/// State that all driver threads and their watcher share.
#[derive(Debug)]
pub(super) struct SharedEngine {
    phase: AtomicU8,
    /// One for each thread.
    pub(super) counters: Vec<Counters>,
    /// Only if the plan has a closed loop.
    pub(super) window: Option<Window>,
    cuts_while: CutsWhile,
    /// Whether cutting was stopped from outside.
    has_stopped_cutting: AtomicBool,
    failure: Mutex<Option<LoadgenError>>,
}

/// Period in which connections are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutsWhile {
    /// While publishers of this process have messages left.
    Publishing,
    /// Until the time is over or cutting is stopped.
    Running,
}

/// Phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Clients connect.
    Connecting = 0,
    /// Publishers publish.
    Running = 1,
    /// Publishers finish begun messages and start no new ones.
    Draining = 2,
    /// Connections are being closed.
    Ended = 3,
}

impl SharedEngine {
    pub(super) fn new(threads: usize, window: Option<u64>, cuts_while: CutsWhile) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            counters: (0..threads).map(|_| Counters::default()).collect(),
            window: window.map(|size| Window::new(size, threads)),
            cuts_while,
            has_stopped_cutting: AtomicBool::new(false),
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

    /// Enters a phase; an earlier phase than the current one has no effect.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Reports a failed connection to the watcher. Only the first failure counts, and none after the end.
    pub(super) fn fail(&self, error: LoadgenError) {
        if self.phase() != Phase::Ended {
            self.failure().get_or_insert(error);
        }
    }

    /// Takes the first failure of a connection. It is returned once.
    pub(super) fn take_failure(&self) -> Option<LoadgenError> {
        self.failure().take()
    }

    fn failure(&self) -> MutexGuard<'_, Option<LoadgenError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages that simulated workers hold and have not finished.
    pub(super) fn queued(&self) -> u64 {
        self.counters.iter().map(|counters| counters.queued.get()).sum()
    }

    /// Whether connections may still be cut. Cutting ends once everything is sent, so that messages under way can
    /// arrive.
    pub(super) fn may_cut(&self) -> bool {
        let publishing = || self.counters.iter().any(|counters| counters.publishing.get() > 0);
        let is_on = self.phase() == Phase::Running && !self.has_stopped_cutting.load(Ordering::Relaxed);
        is_on && (self.cuts_while == CutsWhile::Running || publishing())
    }

    pub(super) fn stop_cutting(&self) {
        self.has_stopped_cutting.store(true, Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> Status {
        Status::of(&self.counters, self.failure().as_ref().map(LoadgenError::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_sum_of_all_threads_and_processes() {
        let shared = SharedEngine::new(3, None, CutsWhile::Publishing);
        for (thread, counters) in (1..).zip(&shared.counters) {
            counters.published.add(10 * thread);
            counters.received.add(thread);
            counters.in_flight.add(5);
            counters.in_flight.sub(thread);
        }
        let status = shared.status();
        assert_eq!((status.published, status.received, status.in_flight), (60, 6, 9));
        let mut both = Status { cpu_ns: vec![7], ..status.clone() };
        both.add(&status);
        assert_eq!((both.published, both.in_flight, both.cpu_ns), (120, 18, vec![7, 0, 0, 0]));
    }

    #[test]
    fn connections_are_cut_while_messages_are_being_published() {
        let [sending, listening] =
            [CutsWhile::Publishing, CutsWhile::Running].map(|cuts_while| SharedEngine::new(1, None, cuts_while));
        assert_eq!([&sending, &listening].map(SharedEngine::may_cut), [false; 2], "not yet");
        sending.enter(Phase::Running);
        listening.enter(Phase::Running);
        assert_eq!([&sending, &listening].map(SharedEngine::may_cut), [false, true]);
        sending.counters[0].publishing.add(1);
        assert!(sending.may_cut());
        sending.enter(Phase::Draining);
        listening.stop_cutting();
        assert_eq!([&sending, &listening].map(SharedEngine::may_cut), [false; 2]);
    }

    #[test]
    fn the_first_failure_counts_and_none_after_the_end() {
        let shared = SharedEngine::new(1, None, CutsWhile::Publishing);
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
