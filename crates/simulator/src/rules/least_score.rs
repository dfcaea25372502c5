use tenbin_balancer::Nanos;

use super::{Feedback, Roster, Rule};
use crate::plan::{Message, WorkerPlan};

/// The member with the least score, by its outstanding messages and smoothed figures that acknowledgements tell.
pub(super) struct LeastScore {
    score: fn(&Server) -> f64,
    members: Roster,
    servers: Vec<Server>,
    /// Number of picks so far; the oldest pick wins among equals.
    picks: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    outstanding: u64,
    queue: f64,
    response_ns: f64,
    service_ns: f64,
    is_known: bool,
    picked: u64,
}

impl LeastScore {
    pub(super) fn new(score: fn(&Server) -> f64, workers: usize) -> Self {
        Self { score, members: Roster::default(), servers: vec![Server::default(); workers], picks: 0 }
    }
}

impl Rule for LeastScore {
    fn join(&mut self, worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {
        self.members.join(worker);
        self.servers[worker] = Server::default();
    }

    fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
    }

    fn pick(&mut self, _message: &Message, _waiting: usize, _now: Nanos) -> Option<usize> {
        let (servers, score) = (&self.servers, self.score);
        let order = |a: &&usize, b: &&usize| {
            let (a, b) = (&servers[**a], &servers[**b]);
            score(a).total_cmp(&score(b)).then(a.picked.cmp(&b.picked))
        };
        let best = *self.members.0.iter().min_by(order)?;
        self.picks += 1;
        let server = &mut self.servers[best];
        (server.outstanding, server.picked) = (server.outstanding + 1, self.picks);
        Some(best)
    }

    fn acknowledged(&mut self, worker: usize, feedback: &Feedback, now: Nanos) {
        let server = &mut self.servers[worker];
        server.outstanding = server.outstanding.saturating_sub(1);
        let response_ns = now.0.saturating_sub(feedback.sent_at.0) as f64;
        let samples = [feedback.queue as f64, response_ns, feedback.service_ns as f64];
        let weight = if server.is_known { NEW_WEIGHT } else { 1.0 };
        let values = [&mut server.queue, &mut server.response_ns, &mut server.service_ns];
        for (value, sample) in values.into_iter().zip(samples) {
            *value += weight * (sample - *value);
        }
        server.is_known = true;
    }
}

impl Server {
    /// Cubic replica selection: R − s + q³ · s, with the estimated queue q = 1 + outstanding + reported queue, the
    /// response time R and the service time s.
    pub(super) fn c3(&self) -> f64 {
        let queue = 1.0 + self.outstanding as f64 + self.queue;
        // Servers without a sample differ by their outstanding messages only.
        let service_ns = self.service_ns.max(1.0);
        self.response_ns - service_ns + queue.powi(3) * service_ns
    }

    /// Shortest expected delay: the time of all outstanding messages and this one.
    pub(super) fn expected_delay(&self) -> f64 {
        (1 + self.outstanding) as f64 * self.service_ns.max(1.0)
    }
}

/// Weight of a new sample.
const NEW_WEIGHT: f64 = 0.1;
