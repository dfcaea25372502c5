//! Families of work queues: workers that reject messages or do not acknowledge them.

use std::{io::Write, sync::Arc};

use tenbin_balancer::Policy;
use tenbin_kit::Span;

use super::{Draw, count, family_scenario};
use crate::{
    SimulateError,
    args::{Format, How},
    arrivals::Arrivals,
    chooser::Chooser,
    distribution::Distribution,
    family::Family,
    figures::Figures,
    json,
    runs::{Case, run_all},
    scenario::{Acknowledges, Pause, Poison, Reports, Scenario, WorkQueue, WorkerKind},
    table::number,
};

/// The scenario of one of these families. The worker with the fault is the last one.
pub(super) fn scenario(family: Family, seed: u64, draw: &mut Draw) -> Scenario {
    let mean_ms = draw.log_uniform(10.0, 60.0);
    let distribution = if draw.chance(0.5) { Distribution::Exponential } else { Distribution::Jitter(0.5) };
    let worker = |draw: &mut Draw| {
        let service = Span::from_ms(mean_ms * draw.uniform(0.7, 1.4));
        let acknowledges = Acknowledges::CompletionOrder;
        WorkerKind { distribution, acknowledges, reports: Reports::Never, ..WorkerKind::of(service) }
    };
    let mut workers: Vec<_> = (0..draw.whole(4, 8)).map(|_| worker(draw)).collect();
    let able: f64 = workers.iter().map(super::per_ms).sum();
    // At more than full load the throughput shows what poison costs.
    let load = if family == Family::Poison { draw.uniform(0.8, 1.3) } else { draw.uniform(0.4, 0.9) };
    let interval_ms = 1.0 / (load * able);
    let mut queue = WorkQueue {
        retry_delay: Span::from_ms(draw.log_uniform(100.0, 1_000.0)),
        retry_delay_maximum: Span::from_ms(10_000.0),
        deliveries_maximum: 0,
        acknowledge_within: None,
    };
    let mut poison = None;
    let about = match family {
        Family::FastFailer => {
            workers.push(WorkerKind { rejects: Some(Span::from_ms(draw.log_uniform(0.01, 1.0))), ..worker(draw) });
            "one more rejects everything"
        }
        Family::StuckWorker => {
            queue.acknowledge_within = Some(Span::from_ms(draw.uniform(1_000.0, 5_000.0)));
            let window = draw.chance(0.5).then(|| count(draw.whole(1, 20)));
            let begins_ms = if draw.chance(0.5) { 0.0 } else { draw.uniform(0.1, 0.6) * LENGTH_MS };
            let pauses = vec![Pause { at: Span::from_ms(begins_ms), length: Span::from_ms(FOR_EVER_MS) }];
            let stuck = WorkerKind { pauses, receive_maximum: window, ..worker(draw) };
            workers.push(stuck);
            "one more acknowledges nothing any more"
        }
        _ => {
            queue.deliveries_maximum = draw.whole(3, 5);
            poison = Some(Poison { share: 0.01, after: Span::from_ms(mean_ms * draw.uniform(0.05, 0.5)) });
            "1 % of the messages are rejected"
        }
    };
    let able = workers.len() - usize::from(family != Family::Poison);
    let arrivals = Arrivals::Poisson(Span::from_ms(interval_ms));
    let about = format!("{able} workers, {distribution}, {arrivals}, load {:.0} %; {about}", load * 100.0);
    let messages = count((LENGTH_MS / interval_ms) as u32);
    let of = Scenario::of(format!("{} {seed}", family.name()), messages, arrivals, workers);
    Scenario { about, poison, queue: Some(queue), qos: vec![1], ..of }
}

/// The same without the fault.
fn healthy(mut scenario: Scenario, family: Family) -> Scenario {
    scenario.poison = None;
    if family != Family::Poison {
        scenario.workers.pop();
    }
    scenario
}

/// Figures of a policy in a scenario of a work queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueFigures {
    /// Messages finished in a second, as a multiple of the same without the fault. Poison counts on neither side.
    pub throughput: f64,
    /// Share of all deliveries, in %, that went to the last worker.
    pub share: f64,
    /// The most messages that the last worker held at a time.
    pub held_most: u64,
    /// Its window: its Receive Maximum, or the messages that a silent worker gets.
    pub window: u64,
    /// Dead letters.
    pub dead: u64,
    /// Messages that are neither finished nor dead letters.
    pub undone: u64,
}

impl QueueFigures {
    fn of(scenario: &Scenario, figures: &Figures, healthy: &Figures) -> Self {
        let sent: u64 = figures.workers.iter().map(|worker| worker.sent).sum();
        let last = figures.workers.last().copied().unwrap_or_default();
        let window = scenario.workers.last().and_then(|kind| kind.receive_maximum);
        Self {
            throughput: healthy.span_ms / figures.span_ms,
            share: 100.0 * last.sent as f64 / sent.max(1) as f64,
            held_most: last.held_most,
            window: window.map_or(SILENT_WINDOW, |window| window.get().into()),
            dead: figures.dead,
            undone: figures.unfinished - figures.dead,
        }
    }

    /// Returns whether the goals of `adaptive` in this family are met.
    pub fn meets_goals(self, family: Family) -> bool {
        let meets = match family {
            Family::Poison => self.throughput >= 0.97,
            Family::FastFailer => self.share <= 5.0,
            _ => self.held_most <= self.window,
        };
        meets && self.undone == 0
    }
}

/// Runs the scenarios of a family of work queues at QoS 1. Returns the figures by scenario, and in it by chooser.
pub fn queue_figures(family: Family, seeds: &[u64], choosers: &[Chooser]) -> Vec<Vec<QueueFigures>> {
    let scenarios: Vec<_> = seeds.iter().map(|&seed| family_scenario(family, seed)).collect();
    let (figures, without) = with_and_without(family, &scenarios, choosers);
    let pairs = scenarios.iter().zip(figures.iter().zip(&without));
    pairs
        .map(|(scenario, (figures, healthy))| {
            figures.iter().zip(healthy).map(|(of, healthy)| QueueFigures::of(scenario, of, healthy)).collect()
        })
        .collect()
}

/// Figures of the scenarios, and of the same without the fault.
fn with_and_without(
    family: Family,
    scenarios: &[Scenario],
    choosers: &[Chooser],
) -> (Vec<Vec<Figures>>, Vec<Vec<Figures>>) {
    let healthy: Vec<_> = scenarios.iter().map(|scenario| healthy(scenario.clone(), family)).collect();
    let case =
        |scenario| Case { scenario, qos: 1, choosers: choosers.to_vec(), own: Arc::default(), seed: 1, seeds: 1 };
    let mut figures = run_all(&scenarios.iter().chain(&healthy).map(case).collect::<Vec<_>>());
    let without = figures.split_off(scenarios.len());
    (figures, without)
}

/// Runs the families of work queues and prints the worst of each figure.
pub(super) fn run(families: &[Family], seeds: &[u64], how: &How, out: &mut dyn Write) -> Result<(), SimulateError> {
    let choosers = if how.policy.is_empty() { POLICIES.map(Chooser::Policy).to_vec() } else { how.policy.clone() };
    if how.format == Format::Json {
        let scenarios: Vec<_> =
            families.iter().flat_map(|&family| seeds.iter().map(move |&seed| family_scenario(family, seed))).collect();
        let cases = Case::of(&scenarios, &choosers, how);
        let figures = run_all(&cases);
        let cases: Vec<_> = cases.iter().zip(&figures).map(|(case, figures)| json::case(case, figures)).collect();
        return Ok(writeln!(out, "{:#}", serde_json::Value::from(cases))?);
    }
    writeln!(out, "work queues, QoS 1, {} scenarios of each family: the worst of each figure", seeds.len())?;
    writeln!(
        out,
        "  {:<36}{:>12}{:>20}{:>18}{:>8}",
        "", "throughput", "last worker: share", "held ÷ window", "undone"
    )?;
    for &family in families {
        let all = queue_figures(family, seeds, &choosers);
        for (column, chooser) in choosers.iter().enumerate() {
            let of = || all.iter().map(|scenario| scenario[column]);
            let least = of().map(|of| of.throughput).fold(f64::INFINITY, f64::min);
            let share = of().map(|of| of.share).fold(0.0, f64::max);
            let held = of().map(|of| of.held_most as f64 / of.window as f64).fold(0.0, f64::max);
            let undone: u64 = of().map(|of| of.undone).sum();
            let share = if family == Family::Poison { "-".to_owned() } else { format!("{} %", number(share)) };
            let held = if family == Family::StuckWorker { number(held) } else { "-".to_owned() };
            let name = format!("{:<14}{}", family.name(), chooser.name());
            writeln!(out, "  {name:<36}{least:>12.2}{share:>20}{held:>18}{undone:>8}")?;
        }
    }
    Ok(writeln!(out)?)
}

/// The policies that are compared by default.
const POLICIES: [Policy; 4] = [Policy::Adaptive, Policy::LeastInflight, Policy::LeastResponseTime, Policy::RoundRobin];
/// Messages of a worker that is silent, without Receive Maximum.
const SILENT_WINDOW: u64 = 8;
const LENGTH_MS: f64 = 30_000.0;
/// Longer than a run.
const FOR_EVER_MS: f64 = 36_000_000.0;
