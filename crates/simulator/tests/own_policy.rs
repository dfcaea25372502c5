//! Policies of the caller's own among the others.

use std::sync::Arc;

use clap::Parser;
use tenbin_balancer::{Candidates, Dispatch, Rng};
use tenbin_simulator::{Case, Chooser, Choosers, Figures, Policy, SimulateArgs, run_all, run_with, suite::shipped};

/// `least_inflight`, written as a chooser.
struct Fewest;

impl tenbin_balancer::Chooser for Fewest {
    fn choose(&self, _: &Dispatch, candidates: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
        candidates.ready().min_by_key(|&index| (candidates.in_flight(index), candidates.turn(index)))
    }
}

fn own() -> Choosers {
    let mut own = Choosers::default();
    own.add("fewest", Fewest).expect("there is room");
    own
}

#[test]
fn own_least_inflight_has_the_figures_of_the_built_in_one() {
    let scenarios = shipped();
    let scenario = scenarios.iter().find(|scenario| scenario.name == "step").expect("it is shipped");
    let own = own();
    let policies = [Policy::LeastInflight, own.policy("fewest").expect("it was added"), Policy::RoundRobin];
    let choosers = policies.map(Chooser::Policy).to_vec();
    let case = Case { scenario, qos: 1, choosers, own: Arc::new(own), seed: 3, seeds: 1 };
    let figures = run_all(&[case]).remove(0);
    let shape = |figures: &Figures| (figures.waiting.mean_ms(), figures.waiting.max_ms(), figures.sojourn.mean_ms());
    assert_eq!(shape(&figures[0]), shape(&figures[1]));
    assert_ne!(shape(&figures[1]), shape(&figures[2]), "the scenario tells policies apart");
}

#[test]
fn command_with_own_policies_compares_them_first() {
    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: SimulateArgs,
    }
    let args = Program::parse_from(["simulate", "random", "700003", "--policy", "random", "--seeds", "1"]).args;
    let mut out = Vec::new();
    run_with(&args, own(), &mut out).expect("the scenario can be simulated");
    let out = String::from_utf8(out).expect("a table is text");
    let row = |name: &str| out.lines().position(|line| line.starts_with(&format!("  {name} ")));
    assert!(row("fewest").expect("a row") < row("random").expect("a row"), "{out}");
}
