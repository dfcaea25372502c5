//! What a policy's runs come to.

use hdrhistogram::Histogram;

use crate::{plan::Plan, simulation::Delivery};

/// Figures of one policy in one scenario, over all seeds.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From arrival at the broker until taken out of the worker's queue.
    pub waiting: Times,
    /// From arrival at the broker until finished.
    pub sojourn: Times,
    /// Messages that were not finished: lost with a worker that died, or never done.
    pub unfinished: u64,
    /// Mean waiting time in ms of each run, in the order of seeds.
    pub means_ms: Vec<f64>,
    /// By worker, in the order of joining.
    pub workers: Vec<WorkerFigures>,
}

/// One worker's part.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerFigures {
    /// Messages that it got.
    pub messages: u64,
    /// Waiting times of those that it took.
    pub waiting: Extent,
    /// The same of the stable phase: messages 500 to 999.
    pub stable: Extent,
}

/// Times of which mean and maximum are enough.
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
    pub(crate) fn new() -> Self {
        Self {
            waiting: Times::default(),
            sojourn: Times::default(),
            unfinished: 0,
            means_ms: Vec::new(),
            workers: Vec::new(),
        }
    }

    /// Of one run.
    pub(crate) fn of(plan: &Plan<'_>, deliveries: &[Delivery]) -> Self {
        let mut figures = Self { workers: vec![WorkerFigures::default(); plan.workers.len()], ..Self::new() };
        for (number, delivery) in deliveries.iter().enumerate() {
            let waited_ns = delivery.taken.map(|taken| taken.0 - delivery.arrived.0);
            if let Some(finished) = delivery.finished {
                figures.sojourn.add(finished.0 - delivery.arrived.0);
            } else {
                figures.unfinished += 1;
            }
            if let Some(waited_ns) = waited_ns {
                figures.waiting.add(waited_ns);
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
        figures.means_ms.push(figures.waiting.mean_ms());
        figures
    }

    /// Takes the runs of `other` in, which come after these.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.waiting.merge(&other.waiting);
        self.sojourn.merge(&other.sojourn);
        self.unfinished += other.unfinished;
        self.means_ms.extend(&other.means_ms);
        self.workers.resize_with(self.workers.len().max(other.workers.len()), WorkerFigures::default);
        for (worker, more) in self.workers.iter_mut().zip(&other.workers) {
            worker.messages += more.messages;
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

    /// How many.
    pub fn count(&self) -> u64 {
        self.ns.len()
    }

    /// 0 if there are none.
    pub fn mean_ms(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 / NS_PER_MS }
    }

    /// The time that this fraction of all stays within.
    pub fn quantile_ms(&self, fraction: f64) -> f64 {
        self.ns.value_at_quantile(fraction) as f64 / NS_PER_MS
    }

    /// The longest.
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

    /// 0 if there are none.
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 / NS_PER_MS }
    }

    /// The longest.
    pub fn max_ms(&self) -> f64 {
        self.max_ns as f64 / NS_PER_MS
    }
}

impl Default for Times {
    fn default() -> Self {
        Self { ns: Histogram::new(3).expect("three digits are supported"), sum_ns: 0 }
    }
}

/// Messages by which the thesis compares policies when they have settled.
const STABLE_PHASE: std::ops::Range<usize> = 500..1000;
const NS_PER_MS: f64 = 1e6;
