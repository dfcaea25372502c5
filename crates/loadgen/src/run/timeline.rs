//! Times at which a simulated worker takes and finishes messages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tenbin_simulator::scenario::WorkerKind;
use tenbin_simulator::{Distribution, Rng, Span};

/// A worker's speed in the course of a run.
#[derive(Debug, Clone)]
pub struct Speed {
    /// Start of each step and mean service time from then on; in nanoseconds of the run's clock, ascending.
    steps: Vec<(u64, u64)>,
    distribution: Distribution,
    /// Start and end of each pause; ascending, without overlap.
    pauses: Vec<(u64, u64)>,
    seed: u64,
}

impl Speed {
    /// A constant service time.
    pub fn steady(service: Duration) -> Self {
        Self::of(&WorkerKind::of(Span::from_ns(service.as_nanos() as u64)), 0, 0)
    }

    /// The speed of a worker of this kind; the run begins at `start_ns` of the run's clock.
    ///
    /// Random times are drawn for each message from `seed` and its number. So they do not depend on the worker that
    /// gets it, and are the same in every run of a comparison.
    pub fn of(kind: &WorkerKind, start_ns: u64, seed: u64) -> Self {
        let at = |span: Span| start_ns.saturating_add(span.ns());
        let steps = kind.steps.iter().map(|step| (at(step.at), step.service.ns()));
        let pauses = kind.pauses.iter().map(|pause| (at(pause.at), at(pause.at).saturating_add(pause.length.ns())));
        Self {
            steps: [(0, kind.service.ns())].into_iter().chain(steps).collect(),
            distribution: kind.distribution,
            pauses: pauses.collect(),
            seed: Rng::new(seed).next_u64(),
        }
    }

    /// Seed of the service time of message `number`, the same for every worker.
    pub(crate) fn message_seed(&self, number: u64) -> u64 {
        Rng::new(self.seed.wrapping_add(number)).next_u64()
    }

    /// `at_ns`, or the end of the pause that contains it.
    fn awake_ns(&self, at_ns: u64) -> u64 {
        self.pauses.iter().fold(at_ns, |at, &(from, until)| if (from..until).contains(&at) { until } else { at })
    }

    /// End time of message `number`, taken at `taken_ns`; pauses in between are added.
    fn finish_ns(&self, taken_ns: u64, number: u64) -> u64 {
        let step = self.steps.iter().rfind(|&&(since, _)| since <= taken_ns).expect("the first is from 0 on");
        let finished_ns = taken_ns + self.distribution.service_ns(step.1, self.message_seed(number));
        let passed = |finished: u64, &(from, until): &(u64, u64)| {
            if taken_ns <= from && from < finished { finished + (until - from) } else { finished }
        };
        self.pauses.iter().fold(finished_ns, passed)
    }
}

/// Times at which a worker takes and finishes its messages, one or a few at a time.
///
/// Deadlines are absolute. While the queue is not empty, the worker takes the next message at the very instant at which
/// it finishes one. So a timer that wakes late delays no later message.
///
/// ```text
/// received   m1     m2  m3
/// taken      m1     .   m2        m3         (. = waits)
/// worker     [ service ][ service ][ service ]
/// ```
#[derive(Debug, Clone)]
pub struct Timeline {
    speed: Speed,
    /// When each processing slot is free, the earliest on top; at least one.
    free_at_ns: BinaryHeap<Reverse<u64>>,
}

/// Processing of one message, in nanoseconds of the run's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// When the worker takes the message out of the queue.
    pub taken_ns: u64,
    /// When the worker finishes the message.
    pub finished_ns: u64,
}

impl Timeline {
    /// Timeline of an idle worker.
    pub fn new(speed: Speed) -> Self {
        Self::parallel(speed, 1)
    }

    /// Timeline of an idle worker that processes `slots` messages at once.
    pub fn parallel(speed: Speed, slots: u32) -> Self {
        Self { speed, free_at_ns: (0..slots.max(1)).map(|_| Reverse(0)).collect() }
    }

    /// Slot of the next message in the queue: message `number`, received at `received_ns`, created at `created_ns`.
    pub fn take(&mut self, number: u64, received_ns: u64, created_ns: u64) -> Slot {
        let mut free_at_ns = self.free_at_ns.peek_mut().expect("a worker has a slot");
        let taken_ns = self.speed.awake_ns(received_ns.max(created_ns).max(free_at_ns.0));
        let finished_ns = self.speed.finish_ns(taken_ns, number);
        free_at_ns.0 = finished_ns;
        Slot { taken_ns, finished_ns }
    }
}
