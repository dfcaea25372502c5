use tenbin_balancer::Nanos;

use super::{Roster, Rule};
use crate::plan::{Direction, Message, Plan, WorkerPlan};

/// Sends each message to the worker that can begin with it first, by an exact schedule. It knows delays, work, pauses and
/// deaths in advance, but no later message.
pub(super) struct Clairvoyant<'a> {
    plan: &'a Plan<'a>,
    members: Roster,
    /// By worker: when each of its threads is free.
    free_at: Vec<Vec<Nanos>>,
}

impl<'a> Clairvoyant<'a> {
    pub(super) fn new(plan: &'a Plan<'a>) -> Self {
        let threads =
            |worker: &WorkerPlan<'_>| vec![Nanos(0); (worker.kind.threads.get() * worker.kind.batch.get()) as usize];
        Self { plan, members: Roster::default(), free_at: plan.workers.iter().map(threads).collect() }
    }

    /// Takes note of threads that a worker has got or lost since the last message. It loses the first that are free.
    fn count_threads(&mut self, worker: usize, now: Nanos) {
        let of = &self.plan.workers[worker];
        if of.thread_steps.is_empty() {
            return;
        }
        let (free_at, threads) = (&mut self.free_at[worker], of.threads(now) as usize);
        if threads < free_at.len() {
            free_at.sort_unstable();
            free_at.drain(..free_at.len() - threads);
        }
        free_at.resize(threads, now);
    }

    /// Begin and end of the work on a message that is sent to `worker` now.
    fn work(&self, worker: usize, seed: u64, now: Nanos) -> (Nanos, Nanos) {
        let of = &self.plan.workers[worker];
        let free_at = self.free_at[worker].iter().min().copied().unwrap_or(Nanos(u64::MAX));
        let begin = free_at.max(Nanos(now.0 + of.crossing_ns(Direction::ToWorker, seed)));
        let begin = of.pause_end(begin).unwrap_or(begin);
        (begin, of.finish(begin, of.service_ns(begin, seed)))
    }
}

impl Rule for Clairvoyant<'_> {
    fn join(&mut self, worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {
        self.members.join(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
    }

    fn pick(&mut self, message: &Message, _waiting: usize, now: Nanos) -> Option<usize> {
        for index in 0..self.members.0.len() {
            self.count_threads(self.members.0[index], now);
        }
        let members = self.members.0.iter().map(|&worker| (worker, self.work(worker, message.seed, now)));
        // A worker that will die with the message is the last resort.
        let merit = |&(worker, (begin, end)): &(usize, (Nanos, Nanos))| {
            let dies = self.plan.workers[worker].leaves.is_some_and(|leaving| leaving.dies && leaving.at <= end);
            (dies, begin, end)
        };
        let (best, (_, end)) = members.min_by_key(merit)?;
        *self.free_at[best].iter_mut().min()? = end;
        Some(best)
    }
}
