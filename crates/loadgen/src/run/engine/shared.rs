use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::LoadgenError;

/// State that all driver threads and their watcher share.
#[derive(Debug)]
pub(super) struct Shared {
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

/// Declares the counters of a thread, and their sums in [`Status`], in the order in which a status reads them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Progress counters of a thread.
        ///
        /// Only that thread writes them and the watcher reads them; they guard no other memory. Each takes two cache
        /// lines, because processors prefetch in pairs.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(super) struct Counters {
            $($(#[$doc])* pub(super) $name: Count,)*
            /// Processor time of the thread.
            pub(super) cpu_ns: Count,
        }

        /// Progress of a run in one process, or in several.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) struct Status {
            $($(#[$doc])* pub(crate) $name: u64,)*
            /// Processor time of each driver thread.
            pub(crate) cpu_ns: Vec<u64>,
            /// The first connection that was lost without a cut.
            pub(crate) failure: Option<String>,
        }

        impl Status {
            /// Sum of all threads.
            fn of(threads: &[Counters], failure: Option<String>) -> Self {
                $(let $name = threads.iter().map(|thread| thread.$name.get()).sum();)*
                Self { $($name,)* cpu_ns: threads.iter().map(|thread| thread.cpu_ns.get()).collect(), failure }
            }

            /// Adds the progress of another process.
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.cpu_ns.extend_from_slice(&other.cpu_ns);
            }
        }
    };
}

counters! {
    /// Deliveries that published messages call for, at subscribers of all processes.
    ///
    /// It is read before `received`, so that no message seems to arrive before it was sent.
    expected,
    /// Messages published: written at QoS 0, acknowledged at QoS 1 and 2.
    published,
    /// Messages at QoS 1 and 2 that the broker refused.
    not_taken,
    /// Messages on their way to the broker: unwritten at QoS 0, without their last acknowledgement at QoS 1 and 2.
    in_flight,
    /// Publishers that have messages left to send.
    publishing,
    /// First copies of this run's messages at each receiver; foreign messages do not count.
    received,
    /// Further copies.
    copies,
    /// Deliveries that may have arrived beyond the expected ones.
    ///
    /// These are repeated deliveries to members of a share group, which another member may have too, and messages whose
    /// confirmation was lost with a session. If there are any, `received` may reach `expected` although messages are
    /// missing.
    doubtful,
    /// Will Messages that arrived.
    wills,
    /// Messages that simulated workers hold and have not finished.
    queued,
    /// Connections to be made or made again: idle ones without an answer, and those that were cut.
    connecting,
}

/// A counter with a single writer thread.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Counters {
    /// Records the processor time of the calling thread.
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

    /// Adds without read-modify-write, as there is one writer.
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
        let shared = Shared::new(3, None, CutsWhile::Publishing);
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
