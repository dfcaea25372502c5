//! Rules that choose the worker of a message: the balancer's, other systems' and a clairvoyant one.

mod balancer;
mod clairvoyant;
mod idle_queue;
mod least_score;
mod prequal;
mod pull;

use std::sync::Arc;

use tenbin_balancer::{Choosers, LoadReport, Nanos, Policy, Rules};

use crate::{
    plan::{Message, Plan, WorkerPlan},
    rules::{
        balancer::Balancer,
        clairvoyant::Clairvoyant,
        idle_queue::JoinIdleQueue,
        least_score::{LeastScore, Server},
        prequal::Prequal,
        pull::Pull,
    },
};

/// Chooses workers from observations of them. A worker is a number in the plan.
pub(crate) trait Rule {
    /// A worker becomes a member of the group.
    fn join(&mut self, worker: usize, plan: &WorkerPlan<'_>, now: Nanos);

    /// A worker is no longer a member.
    fn leave(&mut self, worker: usize);

    /// Chooses a member for a message, which is sent to it at once. `None`: the message waits at the broker, together
    /// with `waiting` others, and is offered again after each event.
    fn pick(&mut self, message: &Message, waiting: usize, now: Nanos) -> Option<usize>;

    /// Takes a report.
    fn report(&mut self, _worker: usize, _report: &LoadReport, _now: Nanos) {}

    /// Takes a ping without a report.
    fn plain_ping(&mut self, _worker: usize, _now: Nanos) {}

    /// Takes the acknowledgement of a message.
    fn acknowledged(&mut self, _worker: usize, _feedback: &Feedback, _now: Nanos) {}

    /// Takes the rejection of a message. A rule that knows none takes it for an acknowledgement.
    fn rejected(&mut self, worker: usize, feedback: &Feedback, now: Nanos) {
        self.acknowledged(worker, feedback, now);
    }

    /// Takes the number of overdue messages of a worker, when it changes.
    fn overdue(&mut self, _worker: usize, _messages: u32) {}

    /// Workers to probe after a pick. The answers come after a round trip.
    fn probes(&mut self) -> Vec<usize> {
        Vec::new()
    }

    /// Takes the answer to a probe.
    fn probed(&mut self, _worker: usize, _answer: Probe) {}

    /// Whether publishers take turns while messages wait at the broker. Otherwise the oldest message is next.
    fn takes_turns(&self) -> bool {
        false
    }

    /// Whether messages that wait at the broker are dropped when they expire.
    fn drops_expired(&self) -> bool {
        false
    }
}

/// Content of an acknowledgement. MQTT has only the time; rules of richer protocols may use the other fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feedback {
    /// Time when the broker sent the message.
    pub(crate) sent_at: Nanos,
    /// Messages at the worker when it acknowledged, including messages in work.
    pub(crate) queue: u64,
    /// Time for which the worker worked on the message.
    pub(crate) service_ns: u64,
}

/// Answer to a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Messages at the worker, including messages in work.
    pub(crate) in_flight: u64,
    /// Median of recent times from receipt to completion, at a similar number in flight; 0 = unknown.
    pub(crate) latency_ns: u64,
}

named! {
    /// A rule that is no policy of the balancer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Rival {
        /// `clairvoyant`: knows the work of each message and all pauses in advance. It sends a message at once to the worker
        /// that can begin with it first.
        Clairvoyant = "clairvoyant",
        /// `c3`: cubic replica selection (Suresh et al., NSDI 2015). Acknowledgements tell it queue and service time.
        C3 = "c3",
        /// `shortest_expected_delay`: outstanding messages × service time, which acknowledgements tell.
        ShortestExpectedDelay = "shortest_expected_delay",
        /// `prequal`: probes for requests in flight and latency (Wydrowski et al., NSDI 2024).
        Prequal = "prequal",
        /// `pull`: a queue of the group. A client with nothing in flight takes up to 50 messages, as at `HiveMQ` CE.
        Pull = "pull",
        /// `join_idle_queue`: an idle worker, or else a random one (Lu et al., 2011).
        JoinIdleQueue = "join_idle_queue",
        /// `early_binding`: `adaptive` with `late_binding = false`.
        EarlyBinding = "early_binding",
    }
}

impl Rival {
    pub(crate) fn rule<'a>(self, plan: &'a Plan<'a>, is_acknowledged: bool) -> Box<dyn Rule + 'a> {
        let (workers, seed) = (plan.workers.len(), plan.picks_seed);
        match self {
            Self::Clairvoyant => Box::new(Clairvoyant::new(plan)),
            Self::C3 => Box::new(LeastScore::new(Server::c3, workers)),
            Self::ShortestExpectedDelay => Box::new(LeastScore::new(Server::expected_delay, workers)),
            Self::Prequal => Box::new(Prequal::new(seed)),
            Self::Pull => Box::new(Pull::new(workers, is_acknowledged, seed)),
            Self::JoinIdleQueue => Box::new(JoinIdleQueue::new(workers, seed)),
            Self::EarlyBinding => {
                let rules = Rules { late_binding: tenbin_balancer::LateBinding::Off, ..Rules::default() };
                Box::new(Balancer::new(rules, Arc::default(), is_acknowledged, workers, seed))
            }
        }
    }
}

/// A policy of the balancer; `own` holds the caller's policies.
pub(crate) fn policy(policy: Policy, own: &Arc<Choosers>, plan: &Plan<'_>, is_acknowledged: bool) -> Box<dyn Rule> {
    Box::new(Balancer::new(policy.into(), Arc::clone(own), is_acknowledged, plan.workers.len(), plan.picks_seed))
}

/// The members of a group in the order of joining.
#[derive(Debug, Default)]
struct Roster(Vec<usize>);

impl Roster {
    fn join(&mut self, worker: usize) {
        self.0.push(worker);
    }

    fn leave(&mut self, worker: usize) {
        self.0.retain(|member| *member != worker);
    }
}
