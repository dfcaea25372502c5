//! Figures of a policy's runs.

use hdrhistogram::Histogram;

use crate::{plan::Plan, simulation::Outcome};

/// Figures of one policy in one scenario, over all seeds.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// From arrival at the broker until a worker takes the message out of its queue.
    pub waiting: Times,
    /// From arrival at the broker until completion.
    pub sojourn: Times,
    /// Messages that were not finished: lost with a dead worker, or never processed.
    pub unfinished: u64,
    /// Messages that the group gave up: dead letters, or rejected for good. They are not finished either.
    pub dead: u64,
    /// Time in ms from the first arrival to the last completion, of all runs together.
    pub span_ms: f64,
    /// Messages that a worker began with before they expired.
    pub in_time: u64,
    /// All messages.
    pub messages: u64,
    /// As `waiting`, without the messages of the loud publisher.
    pub others: Times,
    /// Mean waiting time in ms of each run, in the order of seeds.
    pub means_ms: Vec<f64>,
    /// By worker, in the order of joining.
    pub workers: Vec<WorkerFigures>,
}

/// Figures of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerFigures {
    /// Messages of which it was the last that received them.
    pub messages: u64,
    /// Messages that it was sent, repeated ones included.
    pub sent: u64,
    /// The most that it held at a time without an answer, in a group with a `queue`.
    pub held_most: u64,
    /// Waiting times of the messages that it took.
    pub waiting: Extent,
    /// Waiting times in the stable phase: messages 500 to 999.
    pub stable: Extent,
}

/// Mean and maximum of times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

/// Times in ms. Quantiles to three digits, the rest exact.
#[derive(Clone, Debug)]
pub struct Times {
    ns: Histogram<u64>,
    sum_ns: u128,
}

impl Figures {
    /// Figures of one run.
    pub(crate) fn of(plan: &Plan<'_>, outcome: &Outcome) -> Self {
        let mut figures = Self { workers: vec![WorkerFigures::default(); plan.workers.len()], ..Self::default() };
        let loud = plan.scenario.loud.map(|_| plan.scenario.publishers.get());
        for (number, (message, delivery)) in plan.messages.iter().zip(&outcome.deliveries).enumerate() {
            figures.messages += 1;
            figures.dead += u64::from(delivery.is_dead);
            figures.in_time += u64::from(delivery.taken.is_some_and(|taken| taken < message.expires));
            let waited_ns = delivery.taken.map(|taken| taken.0 - delivery.arrived.0);
            if let Some(finished) = delivery.finished {
                figures.sojourn.add(finished.0 - delivery.arrived.0);
            } else {
                figures.unfinished += 1;
            }
            if let Some(waited_ns) = waited_ns {
                figures.waiting.add(waited_ns);
                if loud != Some(message.publisher) {
                    figures.others.add(waited_ns);
                }
            }
            if let Some(worker) = delivery.worker {
                let worker = &mut figures.workers[worker as usize];
                worker.messages += 1;
                if let Some(waited_ns) = waited_ns {
                    worker.waiting.add(waited_ns);
                    if STABLE_PHASE.contains(&number) {
                        worker.stable.add(waited_ns);
                    }
                }
            }
        }
        for (worker, handling) in figures.workers.iter_mut().zip(&outcome.workers) {
            (worker.sent, worker.held_most) = (handling.sent, handling.held_most);
        }
        let first = plan.messages.first().map_or(0, |message| message.at.0);
        let last = outcome.deliveries.iter().filter_map(|delivery| delivery.finished).max();
        figures.span_ms = last.map_or(0.0, |last| last.0.saturating_sub(first) as f64 / NS_PER_MS);
        figures.means_ms.push(figures.waiting.mean_ms());
        figures
    }

    /// Share of the messages, in %, that a worker began with before they expired.
    pub fn in_time_percent(&self) -> f64 {
        100.0 * self.in_time as f64 / self.messages.max(1) as f64
    }

    /// Adds the runs of `other`, which follow these.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.waiting.merge(&other.waiting);
        self.sojourn.merge(&other.sojourn);
        self.unfinished += other.unfinished;
        self.dead += other.dead;
        self.span_ms += other.span_ms;
        self.in_time += other.in_time;
        self.messages += other.messages;
        self.others.merge(&other.others);
        self.means_ms.extend(&other.means_ms);
        self.workers.resize_with(self.workers.len().max(other.workers.len()), WorkerFigures::default);
        for (worker, more) in self.workers.iter_mut().zip(&other.workers) {
            worker.messages += more.messages;
            worker.sent += more.sent;
            worker.held_most = worker.held_most.max(more.held_most);
            worker.waiting.merge(more.waiting);
            worker.stable.merge(more.stable);
        }
    }
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.sum_ns += u128::from(ns);
        self.ns.record(ns).expect("the histogram grows");
    }

    fn merge(&mut self, other: &Self) {
        self.sum_ns += other.sum_ns;
        self.ns.add(&other.ns).expect("the histogram grows");
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.ns.len()
    }

    /// Mean, or 0 without any time.
    pub fn mean_ms(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 / NS_PER_MS }
    }

    /// The time that this fraction of all times does not exceed.
    pub fn quantile_ms(&self, fraction: f64) -> f64 {
        self.ns.value_at_quantile(fraction) as f64 / NS_PER_MS
    }

    /// The longest time.
    pub fn max_ms(&self) -> f64 {
        self.ns.max() as f64 / NS_PER_MS
    }
}

impl Extent {
    fn add(&mut self, ns: u64) {
        self.merge(Self { count: 1, sum_ns: u128::from(ns), max_ns: ns });
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Mean, or 0 without any time.
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 / NS_PER_MS }
    }

    /// The longest time.
    pub fn max_ms(&self) -> f64 {
        self.max_ns as f64 / NS_PER_MS
    }
}

impl Default for Times {
    fn default() -> Self {
        Self { ns: Histogram::new(3).expect("three digits are supported"), sum_ns: 0 }
    }
}

/// Messages by which the thesis compares policies in the stable phase.
const STABLE_PHASE: std::ops::Range<usize> = 500..1000;
const NS_PER_MS: f64 = 1e6;
