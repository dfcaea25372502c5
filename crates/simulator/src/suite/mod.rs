//! All shipped scenarios, the goals, and random scenarios.

mod families;
mod goals;
mod random;
mod report;
mod shipped;

use std::{io::Write, sync::Arc};

use tenbin_balancer::Policy;

pub use families::family_scenario;
pub use families::queues::{QueueFigures, queue_figures};
pub(crate) use families::run as run_families;
pub use goals::{Figure, GOALS, Goal};
pub use random::random_scenario;
pub use shipped::shipped;

pub use crate::family::Family;

use crate::{
    SimulateError,
    args::{Format, How, SuiteArgs},
    chooser::Chooser,
    figures::Figures,
    json,
    runs::{Case, run_all},
};

/// A goal and the value reached.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The goal.
    pub goal: Goal,
    /// The value reached.
    pub value: f64,
}

impl Judged {
    /// Whether the goal is met. Values count as printed, to a tenth.
    pub fn is_met(&self) -> bool {
        self.value < self.goal.at_most + 0.05
    }
}

/// Runs the scenarios of the goals with their own seeds, and compares `adaptive` with its goals.
pub fn judge() -> Vec<Judged> {
    let scenarios = shipped();
    let mut cases = Vec::new();
    for scenario in &scenarios {
        let is_meant = |qos| GOALS.iter().any(|goal| goal.scenario == scenario.name && goal.qos == qos);
        let qos = scenario.qos.iter().copied().filter(|&qos| is_meant(qos));
        let choosers = vec![ADAPTIVE, ROUND_ROBIN];
        cases.extend(qos.map(|qos| Case {
            scenario,
            qos,
            choosers: choosers.clone(),
            own: Arc::default(),
            seed: 1,
            seeds: scenario.seeds.get(),
        }));
    }
    judge_cases(&cases, &run_all(&cases))
}

pub(crate) fn run(args: &SuiteArgs, out: &mut dyn Write) -> Result<(), SimulateError> {
    let how = &args.how;
    let scenarios = shipped();
    let choosers = choosers(how);
    let cases = Case::of(&scenarios, &choosers, how);
    let figures = run_all(&cases);

    let random: Vec<_> = (0..args.random).map(|index| random_scenario(random_seed(how.seed, index))).collect();
    let random_cases = Case::of(&random, &[ADAPTIVE, THESIS_SCORE], how);
    let random_figures = run_all(&random_cases);

    let judged = judge_cases(&cases, &figures);
    match how.format {
        Format::Table => {
            report::write_overview(out, &cases, &figures)?;
            report::write_goals(out, &judged)?;
            report::write_random(out, &random_cases, &random_figures)?;
        }
        Format::Json => {
            let all = cases.iter().chain(&random_cases).zip(figures.iter().chain(&random_figures));
            let cases: Vec<_> = all.map(|(case, figures)| json::case(case, figures)).collect();
            writeln!(out, "{:#}", serde_json::json!({ "scenarios": cases, "goals": report::goals_json(&judged) }))?;
        }
    }
    Ok(out.flush()?)
}

fn choosers(how: &How) -> Vec<Chooser> {
    let mut choosers = if how.policy.is_empty() { Chooser::telling() } else { how.policy.clone() };
    // Policies that the goals need.
    for needed in [ADAPTIVE, ROUND_ROBIN] {
        if !choosers.contains(&needed) {
            choosers.push(needed);
        }
    }
    choosers
}

fn judge_cases(cases: &[Case<'_>], figures: &[Vec<Figures>]) -> Vec<Judged> {
    let judge = |&goal: &Goal| {
        let of_goal = |case: &Case<'_>| case.scenario.name == goal.scenario && case.qos == goal.qos;
        let index = cases.iter().position(of_goal)?;
        let of = |chooser| {
            let column = cases[index].choosers.iter().position(|&is| is == chooser)?;
            figures[index].get(column)
        };
        Some(Judged { goal, value: goal.figure.value(of(ADAPTIVE)?, of(ROUND_ROBIN)?) })
    };
    GOALS.iter().filter_map(judge).collect()
}

/// A range of a hundred thousand seeds for each seed of the suite, so that another seed gives only new scenarios.
fn random_seed(seed: u64, index: u32) -> u64 {
    seed.wrapping_mul(100_000).wrapping_add(u64::from(index))
}

const ADAPTIVE: Chooser = Chooser::Policy(Policy::Adaptive);
const ROUND_ROBIN: Chooser = Chooser::Policy(Policy::RoundRobin);
const THESIS_SCORE: Chooser = Chooser::Policy(Policy::ThesisScore);
