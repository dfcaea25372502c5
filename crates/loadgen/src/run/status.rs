use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Declares the counters of a thread, and their sums in [`Status`], in the order in which a status reads them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Progress counters of a thread.
        ///
        /// Only that thread writes them and the watcher reads them; they guard no other memory. Each takes two cache
        /// lines, because processors prefetch in pairs.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Count,)*
            /// Processor time of the thread.
            pub cpu_ns: Count,
            /// p99 of the latencies of the last full second with arrivals, in microseconds; 0 for none.
            pub p99_us: Count,
        }

        /// Progress of a run in one process, or in several.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Status {
            $($(#[$doc])* pub $name: u64,)*
            /// Processor time of each driver thread.
            pub cpu_ns: Vec<u64>,
            /// p99 of the latencies of the last full second with arrivals, in microseconds, for each driver thread; 0 for
            /// none.
            pub p99_us: Vec<u64>,
            /// The first connection that was lost without a cut.
            pub failure: Option<String>,
        }

        impl Status {
            /// Sum of all threads.
            pub fn of(threads: &[Counters], failure: Option<String>) -> Self {
                $(let $name = threads.iter().map(|thread| thread.$name.get()).sum();)*
                let each = |of: fn(&Counters) -> &Count| threads.iter().map(|thread| of(thread).get()).collect();
                Self { $($name,)* cpu_ns: each(|thread| &thread.cpu_ns), p99_us: each(|thread| &thread.p99_us), failure }
            }

            /// Adds the progress of another process.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.cpu_ns.extend_from_slice(&other.cpu_ns);
                self.p99_us.extend_from_slice(&other.p99_us);
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
pub struct Count(AtomicU64);

impl Counters {
    /// Records the processor time of the calling thread.
    pub fn note_cpu(&self) {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        self.cpu_ns.set(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64);
    }
}

impl Count {
    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds without read-modify-write, as there is one writer.
    pub fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    /// Subtracts; the counter stays at 0 or above.
    pub fn sub(&self, less: u64) {
        self.set(self.get().saturating_sub(less));
    }
}
