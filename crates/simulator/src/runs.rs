//! Many runs on all processors, with results that do not depend on the number of processors.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use tenbin_balancer::{Choosers, Policy};

use crate::{args::How, chooser::Chooser, figures::Figures, plan::Plan, scenario::Scenario, simulation::simulate};

/// A scenario at one Quality of Service, with the choosers to compare.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Scenario to simulate.
    pub scenario: &'a Scenario,
    /// Quality of Service: 0 or 1.
    pub qos: u8,
    /// Choosers, each on the same arrivals and the same work.
    pub choosers: Vec<Chooser>,
    /// Policies of the caller's own, which [`Policy::Custom`] in `choosers` names.
    pub own: Arc<Choosers>,
    /// Seed of the first run. Each further run has the next seed.
    pub seed: u64,
    /// Number of runs.
    pub seeds: u32,
}

impl<'a> Case<'a> {
    /// Each scenario at each of its Qualities of Service.
    pub(crate) fn of(scenarios: &'a [Scenario], choosers: &[Chooser], how: &How) -> Vec<Self> {
        let mut cases = Vec::new();
        for scenario in scenarios {
            let seeds = how.seeds.unwrap_or(scenario.seeds).get();
            let case =
                |&qos| Case { scenario, qos, choosers: choosers.to_vec(), own: Arc::default(), seed: how.seed, seeds };
            cases.extend(scenario.qos.iter().map(case));
        }
        cases
    }

    /// Name of a chooser, the caller's own included.
    pub fn name_of(&self, chooser: Chooser) -> &str {
        match chooser {
            Chooser::Policy(policy @ Policy::Custom(_)) => self.own.name_of(policy),
            chooser => chooser.name(),
        }
    }
}

/// Runs all cases. Returns the figures of each in the order of its choosers.
pub fn run_all(cases: &[Case<'_>]) -> Vec<Vec<Figures>> {
    let one = |case: usize, run: u32, chooser: usize| Job { case, run, chooser };
    let jobs: Vec<_> = (0..cases.len())
        .flat_map(|case| (0..cases[case].seeds).map(move |run| (case, run)))
        .flat_map(|(case, run)| (0..cases[case].choosers.len()).map(move |chooser| one(case, run, chooser)))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)).filter(|&index| index < jobs.len()));
        mine.map(|index| (index, jobs[index].figures(cases))).collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a simulation does not panic")).collect()
    });
    done.sort_by_key(|(index, _)| *index);

    let mut all: Vec<_> = cases.iter().map(|case| vec![Figures::default(); case.choosers.len()]).collect();
    for (index, figures) in done {
        let job = &jobs[index];
        all[job.case][job.chooser].merge(&figures);
    }
    all
}

/// One run under one chooser.
struct Job {
    case: usize,
    run: u32,
    chooser: usize,
}

impl Job {
    fn figures(&self, cases: &[Case<'_>]) -> Figures {
        let case = &cases[self.case];
        let plan = Plan::new(case.scenario, case.seed.wrapping_add(u64::from(self.run)));
        let outcome = simulate(&plan, case.qos > 0, case.choosers[self.chooser], &case.own);
        Figures::of(&plan, &outcome)
    }
}
