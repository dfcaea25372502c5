//! Families of fresh scenarios, each with one difficulty, and the comparison of all rules in them.

pub(super) mod queues;
mod report;
mod stock;

use std::{io::Write, num::NonZeroU32};

use tenbin_balancer::{Policy, Rng};

use super::random::{Draw, count};
use tenbin_kit::Span;

use crate::{
    SimulateError,
    args::{FamiliesArgs, Format, Told},
    arrivals::Arrivals,
    chooser::Chooser,
    distribution::Distribution,
    family::Family,
    json,
    rules::Rival,
    runs::{Case, run_all},
    scenario::{Churn, Pause, Pings, Scenario, ServiceStep, WorkerKind},
};

/// The scenario of this family and seed. The same arguments always give the same scenario.
pub fn family_scenario(family: Family, seed: u64) -> Scenario {
    let mut draw = Draw(Rng::new(seed ^ (family as u64) << 56));
    if family.is_queue() {
        return queues::scenario(family, seed, &mut draw);
    }
    if !family.is_told() {
        return stock::scenario(family, seed, &mut draw);
    }
    let is_large = family == Family::Hundreds;
    let number = if is_large { draw.whole(100, 400) } else { draw.whole(3, 16) };
    let distribution = match family {
        Family::HeavyTails => heavy_tail(&mut draw),
        Family::WorkClasses => {
            Distribution::Outliers { share: draw.uniform(0.05, 0.4), times: draw.uniform(5.0, 20.0) }
        }
        _ => {
            [Distribution::Jitter(0.2), Distribution::Jitter(0.5), Distribution::Exponential][draw.whole(0, 2) as usize]
        }
    };
    let has_mixed_speeds = family == Family::MixedSpeeds || draw.chance(0.5);
    let mean_ms = draw.log_uniform(10.0, 60.0);
    let length_ms = match family {
        Family::Hundreds => 6_000.0,
        Family::IrregularReports => 60_000.0,
        _ => 20_000.0,
    };
    let workers: Vec<_> = (0..number)
        .map(|_| {
            let spread = if has_mixed_speeds { draw.log_uniform(0.3, 3.0) } else { draw.uniform(0.9, 1.1) };
            let kind = WorkerKind { distribution, ..WorkerKind::of(Span::from_ms(mean_ms * spread)) };
            let kind = with_difficulty(kind, family, length_ms, &mut draw);
            WorkerKind { concurrency: Some(concurrency(&kind)), ..kind }
        })
        .collect();
    let load = draw.uniform(0.4, 0.9);
    let interval_ms = 1.0 / (load * workers.iter().map(per_ms).sum::<f64>());
    let arrivals = match family {
        Family::Bursts => {
            let messages = draw.whole(5, 60);
            Arrivals::Bursts { messages: count(messages), every: Span::from_ms(interval_ms * f64::from(messages)) }
        }
        _ if draw.chance(0.3) => Arrivals::Fixed(Span::from_ms(interval_ms)),
        _ => Arrivals::Poisson(Span::from_ms(interval_ms)),
    };
    let pings = match family {
        Family::IrregularReports => {
            Pings { every: Span::from_ms(draw.uniform(3_000.0, 10_000.0)), eager: false, skipped: 0.3 }
        }
        _ => Pings::default(),
    };
    let churn = (family == Family::Churn)
        .then(|| Churn { every: Span::from_ms(draw.log_uniform(500.0, 3_000.0)), dies: draw.chance(0.5) });
    let about = format!("{number} workers, {distribution}, {arrivals}, load {:.0} %", load * 100.0);
    let name = format!("{} {seed}", family.name());
    let idle = Span::from_ms(draw.uniform(0.0, 3000.0));
    let messages = count((length_ms / interval_ms) as u32);
    Scenario { about, idle, pings, churn, ..Scenario::of(name, messages, arrivals, workers) }
}

/// Number of messages that the worker works on at a time.
fn concurrency(kind: &WorkerKind) -> NonZeroU32 {
    count(kind.threads.get() * kind.batch.get())
}

/// Messages that the worker can process in a millisecond.
fn per_ms(kind: &WorkerKind) -> f64 {
    f64::from(concurrency(kind).get()) / kind.service.ms()
}

/// The scenario with workers that tell their concurrency, or do not.
fn with_told(mut scenario: Scenario, is_told: bool) -> Scenario {
    for kind in &mut scenario.workers {
        kind.concurrency = is_told.then(|| concurrency(kind));
    }
    scenario
}

fn heavy_tail(draw: &mut Draw) -> Distribution {
    match draw.whole(0, 3) {
        0 => Distribution::Exponential,
        1 => Distribution::Pareto(draw.uniform(1.8, 3.0)),
        2 => Distribution::Lognormal(draw.uniform(1.0, 3.0)),
        _ => Distribution::Outliers { share: draw.uniform(0.005, 0.03), times: draw.uniform(10.0, 40.0) },
    }
}

/// Adds the difficulty of the family to one worker.
fn with_difficulty(kind: WorkerKind, family: Family, length_ms: f64, draw: &mut Draw) -> WorkerKind {
    let service_ms = kind.service.ms();
    let slower = |at_ms, times| ServiceStep { at: Span::from_ms(at_ms), service: Span::from_ms(service_ms * times) };
    match family {
        Family::Steps if draw.chance(0.5) => {
            let times = if draw.chance(0.7) { draw.uniform(1.5, 5.0) } else { 1.0 / draw.uniform(1.5, 3.0) };
            WorkerKind { steps: vec![slower(draw.uniform(0.2, 0.8) * length_ms, times)], ..kind }
        }
        Family::Pauses if draw.chance(0.4) => {
            let at = Span::from_ms(draw.uniform(0.1, 0.8) * length_ms);
            WorkerKind { pauses: vec![Pause { at, length: Span::from_ms(draw.log_uniform(200.0, 3_000.0)) }], ..kind }
        }
        Family::NoisyNeighbours => {
            let (mut steps, mut at_ms) = (Vec::new(), draw.uniform(0.0, 5_000.0));
            while at_ms < length_ms {
                steps.push(slower(at_ms, draw.uniform(2.0, 4.0)));
                at_ms += draw.uniform(500.0, 2_000.0);
                steps.push(slower(at_ms, 1.0));
                at_ms += draw.uniform(2_000.0, 8_000.0);
            }
            WorkerKind { steps, ..kind }
        }
        Family::FarWorkers => WorkerKind { delay: Span::from_ms(draw.log_uniform(0.2, 50.0)), ..kind },
        Family::Threads => WorkerKind { threads: count(draw.whole(1, 8)), ..kind },
        Family::Batchers => WorkerKind { batch: count(draw.whole(1, 16)), ..kind },
        _ => kind,
    }
}

/// Runs `tenbin-simulate families`.
pub(crate) fn run(args: &FamiliesArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    let seeds = || (0..args.each).map(|index| super::random_seed(args.how.seed, index));
    let is_named = |family: &Family| args.family.contains(family) || args.family.is_empty() && !family.is_queue();
    let (queues, families): (Vec<_>, Vec<_>) = Family::ALL.into_iter().filter(is_named).partition(|of| of.is_queue());
    if !queues.is_empty() {
        queues::run(&queues, &seeds().collect::<Vec<_>>(), &args.how, out)?;
    }
    if families.is_empty() {
        return Ok(out.flush()?);
    }
    let is_told = |family: Family| match args.told {
        Told::AsFamily => family.is_told(),
        Told::Yes => true,
        Told::No => false,
    };
    // Each scenario with workers that tell their concurrency or do not, and the same scenario the other way round.
    let scenarios = |is_other: bool| {
        let scenario = |family: Family, seed| with_told(family_scenario(family, seed), is_told(family) != is_other);
        let mut scenarios: Vec<_> =
            families.iter().flat_map(|&family| seeds().map(move |seed| scenario(family, seed))).collect();
        for scenario in &mut scenarios {
            scenario.qos = vec![args.qos];
            scenario.pings.eager |= args.eager;
        }
        scenarios
    };
    let mut choosers = vec![CLAIRVOYANT, super::ADAPTIVE];
    let rest = if args.how.policy.is_empty() { rivals(args.qos) } else { args.how.policy.clone() };
    choosers.extend(rest.into_iter().filter(|chooser| ![CLAIRVOYANT, super::ADAPTIVE].contains(chooser)));
    let (scenarios, others) = (scenarios(false), scenarios(true));
    let mut cases = Case::of(&scenarios, &choosers, &args.how);
    let number = cases.len();
    cases.extend(Case::of(&others, &[super::ADAPTIVE], &args.how));
    let mut figures = run_all(&cases);
    let others = figures.split_off(number);
    cases.truncate(number);
    match args.how.format {
        Format::Table => {
            let told: Vec<_> = families.iter().map(|&family| is_told(family)).collect();
            let tables =
                report::Tables { families: &families, told: &told, cases: &cases, figures: &figures, others: &others };
            tables.write(out)?;
        }
        Format::Json => {
            let cases: Vec<_> = cases.iter().zip(&figures).map(|(case, figures)| json::case(case, figures)).collect();
            writeln!(out, "{:#}", serde_json::Value::from(cases))?;
        }
    }
    Ok(out.flush()?)
}

/// The rules that `adaptive` is compared with.
fn rivals(qos: u8) -> Vec<Chooser> {
    use Policy::{LeastInflight, LeastResponseTime, PowerOfTwo, RoundRobin, ThesisScore};
    let mut rivals = Vec::new();
    if qos > 0 {
        let known = [Rival::C3, Rival::ShortestExpectedDelay, Rival::Pull, Rival::JoinIdleQueue];
        rivals.extend(known.map(Chooser::Rival));
        rivals.extend([LeastResponseTime, LeastInflight, PowerOfTwo].map(Chooser::Policy));
    }
    rivals.push(Chooser::Rival(Rival::Prequal));
    rivals.extend([ThesisScore, RoundRobin].map(Chooser::Policy));
    if qos > 0 {
        rivals.push(Chooser::Rival(Rival::EarlyBinding));
        rivals.push(Chooser::CentralQueue);
    }
    rivals
}

const CLAIRVOYANT: Chooser = Chooser::Rival(Rival::Clairvoyant);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Acknowledges, Reports};

    #[test]
    fn a_seed_is_a_scenario_of_its_family() {
        for family in Family::ALL {
            assert_eq!(family.name().parse(), Ok(family));
            assert_eq!(family_scenario(family, 5), family_scenario(family, 5));
            for seed in 0..20 {
                let scenario = family_scenario(family, seed);
                assert!((100..200_000).contains(&scenario.messages.get()), "{}: {}", scenario.name, scenario.messages);
                let fault = scenario.workers.iter().find_map(WorkerKind::fault);
                assert_eq!(fault, None, "{}", scenario.name);
            }
        }
    }

    #[test]
    fn stock_families_tell_nothing_and_have_their_difficulty() {
        let all = |family: Family, has: fn(&WorkerKind) -> bool| {
            let workers = (0..20).flat_map(|seed| family_scenario(family, seed).workers).collect::<Vec<_>>();
            assert!(workers.iter().all(|kind| kind.concurrency.is_none() && kind.reports == Reports::Never));
            workers.iter().all(has)
        };
        assert!(all(Family::Stock, |kind| kind.acknowledges == Acknowledges::AfterNextRead && kind.nagle));
        assert!(all(Family::Proxied, |kind| (5.0..20.0).contains(&kind.hidden.ms()) && kind.service.ms() < 10.0));
        assert!(all(Family::Jitter, |kind| kind.jitter <= 0.3
            && kind.delay.ms() + kind.hidden.ms() >= 0.49 * kind.service.ms()));
        assert!(all(Family::Habits, |kind| kind.acknowledges != Acknowledges::OnArrival));
        assert!(!all(Family::EarlyAcks, |kind| kind.acknowledges != Acknowledges::OnArrival));
        assert!(all(Family::UnknownThreads, |kind| kind.threads.get() <= 16));
    }

    #[test]
    fn told_variant_differs_in_concurrency_alone() {
        for family in Family::ALL.into_iter().filter(|family| !family.is_queue()) {
            let scenario = family_scenario(family, 7);
            assert_eq!(with_told(scenario.clone(), family.is_told()), scenario, "{}", scenario.name);
            let other = with_told(scenario.clone(), !family.is_told());
            assert_ne!(other, scenario);
            assert_eq!(with_told(other, family.is_told()), scenario);
        }
    }
}
