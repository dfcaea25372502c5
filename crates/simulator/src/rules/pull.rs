use tenbin_balancer::{Nanos, Rng};

use super::{Feedback, Roster, Rule};
use crate::plan::{Message, WorkerPlan, below};

/// A queue of the group. A client with nothing in flight takes up to [`BATCH`] messages; the order of clients is random.
/// Without acknowledgements each message goes to a random client.
pub(super) struct Pull {
    members: Roster,
    is_acknowledged: bool,
    outstanding: Vec<u64>,
    /// The client that takes messages now, and how many more.
    taking: Option<(usize, u64)>,
    rng: Rng,
}

impl Pull {
    pub(super) fn new(workers: usize, is_acknowledged: bool, seed: u64) -> Self {
        let rng = Rng::new(seed);
        Self { members: Roster::default(), is_acknowledged, outstanding: vec![0; workers], taking: None, rng }
    }
}

impl Rule for Pull {
    fn join(&mut self, worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {
        self.members.join(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
        self.taking = self.taking.filter(|(taking, _)| *taking != worker);
    }

    fn pick(&mut self, _message: &Message, waiting: usize, _now: Nanos) -> Option<usize> {
        if !self.is_acknowledged {
            return (!self.members.0.is_empty()).then(|| self.members.0[below(&mut self.rng, self.members.0.len())]);
        }
        let (worker, left) = match self.taking.take() {
            Some(taking) => taking,
            None => {
                let free = self.members.0.iter().filter(|worker| self.outstanding[**worker] == 0);
                let free: Vec<_> = free.copied().collect();
                let worker = *free.get(below(&mut self.rng, free.len().max(1)))?;
                // It takes the messages that are there now, this one included.
                (worker, BATCH.min(waiting as u64 + 1))
            }
        };
        self.taking = (left > 1).then_some((worker, left - 1));
        self.outstanding[worker] += 1;
        Some(worker)
    }

    fn acknowledged(&mut self, worker: usize, _feedback: &Feedback, _now: Nanos) {
        self.outstanding[worker] = self.outstanding[worker].saturating_sub(1);
    }
}

const BATCH: u64 = 50;
