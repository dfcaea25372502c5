use tenbin_balancer::{Nanos, Rng};

use super::{Feedback, Roster, Rule};
use crate::plan::{Message, WorkerPlan, below};

/// Join the idle queue: the worker that has been idle for longest, or else a random one. Without acknowledgements it
/// knows of no idle worker.
pub(super) struct JoinIdleQueue {
    members: Roster,
    outstanding: Vec<u64>,
    /// Idle workers, the first to become so first.
    idle: Vec<usize>,
    rng: Rng,
}

impl JoinIdleQueue {
    pub(super) fn new(workers: usize, seed: u64) -> Self {
        Self { members: Roster::default(), outstanding: vec![0; workers], idle: Vec::new(), rng: Rng::new(seed) }
    }
}

impl Rule for JoinIdleQueue {
    fn join(&mut self, worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {
        self.members.join(worker);
        self.idle.push(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
        self.idle.retain(|idle| *idle != worker);
    }

    fn pick(&mut self, _message: &Message, _waiting: usize, _now: Nanos) -> Option<usize> {
        if self.members.0.is_empty() {
            return None;
        }
        let worker = match self.idle.is_empty() {
            true => self.members.0[below(&mut self.rng, self.members.0.len())],
            false => self.idle.remove(0),
        };
        self.outstanding[worker] += 1;
        Some(worker)
    }

    fn acknowledged(&mut self, worker: usize, _feedback: &Feedback, _now: Nanos) {
        self.outstanding[worker] = self.outstanding[worker].saturating_sub(1);
        if self.outstanding[worker] == 0 && self.members.0.contains(&worker) && !self.idle.contains(&worker) {
            self.idle.push(worker);
        }
    }
}
