//! One run of a scenario before any policy has chosen: all its random numbers.

use tenbin_balancer::{Nanos, Rng};

use crate::{
    arrivals::Arrival,
    scenario::{EAGER_GAP, Scenario, WorkerKind},
};

/// Everything in a run that does not depend on the choice of workers. Every policy is measured on the same plan.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) messages: Vec<Message>,
    /// In the order of joining, also at the same instant.
    pub(crate) workers: Vec<WorkerPlan<'a>>,
    /// Seed of the policies' own random numbers.
    pub(crate) picks_seed: u64,
}

/// A message that arrives at the broker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) at: Nanos,
    pub(crate) publisher: u32,
    pub(crate) topic: u32,
    /// Random number that its service time is drawn from.
    pub(crate) seed: u64,
    /// When it expires; without an expiry [`NEVER`].
    pub(crate) expires: Nanos,
    /// Whether every worker rejects it.
    pub(crate) is_poison: bool,
}

/// Expiry of a message that does not expire.
pub(crate) const NEVER: Nanos = Nanos(u64::MAX);

/// A worker, and its time in the group.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan<'a> {
    pub(crate) kind: &'a WorkerKind,
    pub(crate) joins: Nanos,
    pub(crate) first_ping: Nanos,
    pub(crate) leaves: Option<Leaving>,
    /// Start and end of each pause.
    pub(crate) pauses: Vec<(Nanos, Nanos)>,
    /// Start of each step, and its mean service time in ns.
    pub(crate) steps: Vec<(Nanos, u64)>,
    /// Start of each change of the number of threads, and that number.
    pub(crate) thread_steps: Vec<(Nanos, u32)>,
}

/// Direction of a packet between broker and worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    ToWorker = 1,
    ToBroker,
}

/// End of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) at: Nanos,
    /// True if the worker dies with its messages.
    pub(crate) dies: bool,
}

impl<'a> Plan<'a> {
    /// Plans the run of `scenario` with this seed. The same arguments always give the same plan.
    pub(crate) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        // Separate random streams, so that another worker changes no message.
        let mut streams = Rng::new(seed);
        let mut stream = || Rng::new(streams.next_u64());
        let (mut arrivals, mut messages, mut pings, mut churn) = (stream(), stream(), stream(), stream());
        let picks_seed = stream().next_u64();

        let start = scenario.idle.ns();
        let instants = scenario.arrivals.instants(scenario.messages.get(), &mut arrivals);
        let end = start + instants.last().copied().unwrap_or(0);
        let mut message = |at: u64| Message {
            at: Nanos(start + at),
            publisher: below(&mut messages, scenario.publishers.get() as usize) as u32,
            topic: below(&mut messages, scenario.topics.get() as usize) as u32,
            seed: messages.next_u64(),
            expires: NEVER,
            is_poison: false,
        };
        let mut messages: Vec<_> = instants.into_iter().map(&mut message).collect();
        if let Some(loud) = scenario.loud {
            let bursts =
                (start..end).step_by(loud.every.ns() as usize).flat_map(|at| vec![at; loud.messages.get() as usize]);
            let publisher = scenario.publishers.get();
            messages.extend(bursts.map(|at| Message { publisher, ..message(at - start) }).collect::<Vec<_>>());
            messages.sort_by_key(|message| message.at);
        }
        if let Some(expiry) = scenario.expiry {
            let (from, range) = (expiry.from.ns(), expiry.to.ns() - expiry.from.ns());
            let mut lifetimes = stream();
            let mut lifetime = || from + ((u128::from(lifetimes.next_u64()) * u128::from(range)) >> 64) as u64;
            messages.iter_mut().for_each(|message| message.expires = Nanos(message.at.0 + lifetime()));
        }

        if let Some(poison) = scenario.poison {
            // By the message's seed, so that the other random numbers stay the same.
            let is_poison = |message: &Message| fraction(message.seed.rotate_left(31)) < poison.share;
            messages.iter_mut().for_each(|message| message.is_poison = is_poison(message));
        }
        let mut workers = WorkerPlan::all(scenario, &mut pings);
        plan_churn(scenario, &mut workers, end, &mut churn, &mut pings);
        Self { scenario, messages, workers, picks_seed }
    }

    /// Plans a run of the scenario's workers with these messages instead of the scenario's own, without churn and randomness.
    pub(crate) fn with(scenario: &'a Scenario, arrivals: &[Arrival]) -> Self {
        let start = scenario.idle.ns();
        let message = |&Arrival { at, seed }: &Arrival| Message {
            at: Nanos(start + at.ns()),
            publisher: 0,
            topic: 0,
            seed,
            expires: NEVER,
            is_poison: false,
        };
        let messages = arrivals.iter().map(message).collect();
        Self { scenario, messages, workers: WorkerPlan::all(scenario, &mut Rng::new(0)), picks_seed: 0 }
    }

    /// Whether a worker leaves out the ping with this number.
    pub(crate) fn skips_ping(&self, worker: u32, ping: u32) -> bool {
        let skipped = self.scenario.pings.skipped;
        skipped > 0.0 && fraction(self.ping_seed(worker, ping)) < skipped
    }

    /// Seed of what happens to the ping with this number.
    pub(crate) fn ping_seed(&self, worker: u32, ping: u32) -> u64 {
        self.picks_seed ^ u64::from(worker) << 32 ^ u64::from(ping)
    }
}

impl<'a> WorkerPlan<'a> {
    /// All workers that are present from the start, or have a time of joining.
    fn all(scenario: &'a Scenario, pings: &mut Rng) -> Vec<Self> {
        let kinds = scenario.workers.iter().flat_map(|kind| (0..kind.count.get()).map(move |_| kind));
        kinds.map(|kind| Self::new(scenario, kind, pings)).collect()
    }

    fn new(scenario: &Scenario, kind: &'a WorkerKind, pings: &mut Rng) -> Self {
        let start = scenario.idle.ns();
        let from_start = |span: tenbin_kit::Span| Nanos(start + span.ns());
        let leaving = kind.leaves.map(|at| (at, false)).or(kind.dies.map(|at| (at, true)));
        let mut plan = Self {
            kind,
            joins: Nanos(0),
            first_ping: Nanos(0),
            leaves: leaving.map(|(at, dies)| Leaving { at: from_start(at), dies }),
            pauses: kind
                .pauses
                .iter()
                .map(|pause| (from_start(pause.at), Nanos(start + pause.at.ns() + pause.length.ns())))
                .collect(),
            steps: kind.steps.iter().map(|step| (from_start(step.at), step.service.ns())).collect(),
            thread_steps: kind.thread_steps.iter().map(|step| (from_start(step.at), step.threads.get())).collect(),
        };
        plan.join_at(kind.joins.map_or(Nanos(0), from_start), scenario, pings);
        plan
    }

    /// Sets the time of joining, and a random offset of the pings within their interval.
    fn join_at(&mut self, joins: Nanos, scenario: &Scenario, pings: &mut Rng) {
        self.joins = joins;
        let every_us = scenario.pings.every.ns().max(EAGER_GAP.ns()) / 1000;
        self.first_ping = Nanos(joins.0 + 1000 * (1 + below(pings, every_us as usize) as u64));
    }

    /// Whether it is a member of the group at `at`.
    fn is_member(&self, at: Nanos) -> bool {
        self.joins <= at && self.leaves.is_none_or(|leaving| leaving.at > at)
    }

    /// Mean service time in ns of a message taken at `now`.
    pub(crate) fn mean_ns(&self, now: Nanos) -> u64 {
        let step = self.steps.iter().rev().find(|(at, _)| *at <= now);
        step.map_or(self.kind.service.ns(), |(_, mean_ns)| *mean_ns)
    }

    /// Number of messages that it works on at a time at `now`.
    pub(crate) fn threads(&self, now: Nanos) -> u32 {
        let step = self.thread_steps.iter().rev().find(|(at, _)| *at <= now);
        step.map_or(self.kind.threads.get(), |(_, threads)| *threads)
    }

    /// Mean time in ns that a packet takes from the broker to the worker, or back.
    pub(crate) fn path_ns(&self) -> u64 {
        self.kind.delay.ns() + self.kind.hidden.ns()
    }

    /// Time in ns that the packet with this seed takes in this direction.
    pub(crate) fn crossing_ns(&self, direction: Direction, seed: u64) -> u64 {
        let (path_ns, jitter) = (self.path_ns(), self.kind.jitter);
        if jitter == 0.0 {
            return path_ns;
        }
        // The work has another seed, so that long work has no long way.
        let deviation = 2.0 * fraction(seed.rotate_left(17) ^ direction as u64) - 1.0;
        (path_ns as f64 * (1.0 + jitter * deviation)) as u64
    }

    /// End of the pause that contains `now`.
    pub(crate) fn pause_end(&self, now: Nanos) -> Option<Nanos> {
        self.pauses.iter().find(|(from, to)| (*from..*to).contains(&now)).map(|(_, to)| *to)
    }

    /// Time that a message with this seed takes if it is begun at `start`, without pauses.
    pub(crate) fn service_ns(&self, start: Nanos, seed: u64) -> u64 {
        self.kind.distribution.service_ns(self.mean_ns(start), seed)
    }

    /// End of work of `service_ns` that begins at `start`. Pauses during the work are added.
    pub(crate) fn finish(&self, start: Nanos, service_ns: u64) -> Nanos {
        let mut finish = start.0 + service_ns;
        for (from, to) in &self.pauses {
            if from.0 < finish && to.0 > start.0 {
                finish += to.0 - from.0.max(start.0);
            }
        }
        Nanos(finish)
    }
}

/// Adds a worker for each one that churn removes.
fn plan_churn<'a>(
    scenario: &'a Scenario,
    workers: &mut Vec<WorkerPlan<'a>>,
    end: u64,
    churn: &mut Rng,
    pings: &mut Rng,
) {
    let Some(rule) = &scenario.churn else { return };
    let mut at = Nanos(scenario.idle.ns() + rule.every.ns());
    while at.0 < end {
        let members: Vec<_> = (0..workers.len()).filter(|&index| workers[index].is_member(at)).collect();
        if !members.is_empty() {
            let leaver = members[below(churn, members.len())];
            let mut joiner = workers[leaver].clone();
            workers[leaver].leaves = Some(Leaving { at, dies: rule.dies });
            joiner.join_at(at, scenario, pings);
            workers.push(joiner);
        }
        at.0 += rule.every.ns();
    }
}

/// A number from 0 to 1 that depends on the seed alone.
fn fraction(seed: u64) -> f64 {
    (Rng::new(seed).next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws a number below `bound`, which is not 0.
pub(crate) fn below(rng: &mut Rng, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(rest: &str) -> Scenario {
        Scenario::parse("x", &format!("messages = 1000\narrivals = {{ fixed = \"10ms\" }}\n{rest}")).unwrap()
    }

    #[test]
    fn pause_delays_work_that_overlaps_it() {
        let scenario = scenario("[[workers]]\nservice = \"25ms\"\npauses = [{ at = \"1s\", for = \"2s\" }]");
        let plan = Plan::new(&scenario, 1);
        let worker = &plan.workers[0];
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        // The load starts after one second of idleness.
        let cases = [(1000, 1025), (1975, 2000), (1990, 4015), (2500, 4025), (4000, 4025)];
        for (start, finish) in cases {
            assert_eq!(worker.finish(ms(start), 25_000_000), ms(finish), "{start}");
        }
        assert_eq!((worker.pause_end(ms(1999)), worker.pause_end(ms(2000))), (None, Some(ms(4000))));
    }

    #[test]
    fn churn_keeps_the_number_of_members() {
        let scenario = scenario("churn = { every = \"500ms\" }\n[[workers]]\nservice = \"25ms\"\ncount = 4");
        let plan = Plan::new(&scenario, 7);
        assert_eq!(plan.workers.len(), 4 + 19);
        for at in (0..11).map(|second| Nanos(second * 1_000_000_000 + 1)) {
            assert_eq!(plan.workers.iter().filter(|worker| worker.is_member(at)).count(), 4);
        }
    }

    #[test]
    fn seed_decides_the_plan_and_workers_change_no_message() {
        let (one, two) = ("[[workers]]\nservice = \"25ms\"", "[[workers]]\nservice = \"25ms\"\ncount = 2");
        let (one, two) = (scenario(one), scenario(two));
        let seeds = |scenario, seed| Plan::new(scenario, seed).messages.iter().map(|m| m.seed).collect::<Vec<_>>();
        assert_eq!(seeds(&one, 1), seeds(&two, 1));
        assert_ne!(seeds(&one, 1), seeds(&one, 2));
    }
}
