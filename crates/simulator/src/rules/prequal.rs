use std::collections::VecDeque;

use tenbin_balancer::{Nanos, Rng};

use super::{Probe, Roster, Rule};
use crate::plan::{Message, WorkerPlan, below};

/// Prequal: each pick sends three probes to random workers. Of the pooled answers, those with few messages in flight
/// are cold. The coldest latency wins; if all are hot, the fewest in flight.
pub(super) struct Prequal {
    members: Roster,
    /// Newest last.
    pool: VecDeque<Pooled>,
    /// Messages in flight by the last answers, for the limit between hot and cold.
    recent: VecDeque<u64>,
    rng: Rng,
}

#[derive(Clone, Copy, Debug)]
struct Pooled {
    worker: usize,
    answer: Probe,
    uses: u32,
}

impl Prequal {
    pub(super) fn new(seed: u64) -> Self {
        Self { members: Roster::default(), pool: VecDeque::new(), recent: VecDeque::new(), rng: Rng::new(seed) }
    }

    /// Answers with more messages in flight are hot.
    fn cold_limit(&self) -> u64 {
        let mut recent: Vec<_> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        recent.get((recent.len() as f64 * HOT_QUANTILE) as usize).copied().unwrap_or(u64::MAX)
    }
}

impl Rule for Prequal {
    fn join(&mut self, worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {
        self.members.join(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
        self.pool.retain(|pooled| pooled.worker != worker);
    }

    fn pick(&mut self, _message: &Message, _waiting: usize, _now: Nanos) -> Option<usize> {
        if self.members.0.is_empty() {
            return None;
        }
        if self.pool.len() < POOL_LEAST {
            return Some(self.members.0[below(&mut self.rng, self.members.0.len())]);
        }
        let limit = self.cold_limit();
        let merit = |pooled: &Pooled| {
            let Probe { in_flight, latency_ns } = pooled.answer;
            if in_flight <= limit { (false, latency_ns, in_flight) } else { (true, in_flight, latency_ns) }
        };
        let best = (0..self.pool.len()).min_by_key(|&index| merit(&self.pool[index]))?;
        let pooled = &mut self.pool[best];
        let worker = pooled.worker;
        // The message itself is in flight from now on.
        pooled.answer.in_flight += 1;
        pooled.uses += 1;
        if pooled.uses >= USES_MOST {
            self.pool.remove(best);
        }
        // The oldest answer goes with each pick.
        if self.pool.len() > POOL_LEAST {
            self.pool.pop_front();
        }
        Some(worker)
    }

    fn probes(&mut self) -> Vec<usize> {
        let members = &self.members.0;
        let mut drawn = Vec::with_capacity(PROBES);
        for _ in 0..PROBES.min(members.len()) {
            drawn.push(members[below(&mut self.rng, members.len())]);
        }
        drawn
    }

    fn probed(&mut self, worker: usize, answer: Probe) {
        if !self.members.0.contains(&worker) {
            return;
        }
        // The newest answer of a worker replaces earlier ones.
        self.pool.retain(|pooled| pooled.worker != worker);
        self.pool.push_back(Pooled { worker, answer, uses: 0 });
        self.recent.push_back(answer.in_flight);
        if self.pool.len() > POOL_MOST {
            self.pool.pop_front();
        }
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

const PROBES: usize = 3;
const POOL_LEAST: usize = 2;
const POOL_MOST: usize = 16;
const USES_MOST: u32 = 3;
const RECENT: usize = 128;
const HOT_QUANTILE: f64 = 0.84;
