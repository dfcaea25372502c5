//! Invented runs of a scenario, the same at every call.

use super::Run;
use super::trace::RunTrace;
use crate::report::chart::Scale;
use crate::scenario;
use crate::statistics::Summary;
use crate::values::parsed;

/// The thesis' second scenario with its three policies and `adaptive`, twice each; every message waits for the mean time.
pub(super) fn thesis_runs() -> (scenario::Plan, Vec<Run>) {
    let args = parsed("scenario 2 --all --runs 2").expect("arguments are well-formed");
    let plan = scenario::Plan::new(&args).expect("the scenario is shipped");
    let waits = [
        ("random", [40.0, 41.0, 4100.0]),
        ("round_robin", [1.0, 1.1, 4400.0]),
        ("thesis_score", [20.0, 10.0, 60.0]),
        ("adaptive", [1.0, 1.2, 3.0]),
    ];
    let runs = waits.into_iter().flat_map(|(policy, waits)| {
        (1..=2).map(move |number| thesis_run(policy, number, waits.map(|wait| wait + f64::from(number))))
    });
    (plan, runs.collect())
}

fn thesis_run(policy: &str, number: u32, waits: [f64; 3]) -> Run {
    let of = |wait: f64, n: usize| Summary::of(&vec![wait; n]);
    let subscriber = |(place, wait): (usize, f64)| scenario::SubscriberFigures {
        name: format!("sub-{place}"),
        service_ms: if place == 2 { 50.0 } else { 25.0 },
        latency: of(wait, 500),
        stable: of(wait, 166),
        per_second: vec![33; 15],
        messages_per_second: 33.3,
    };
    let points = |place: usize, wait: f64| (0..500).map(|n| ((n * 3 + place) as f64, wait)).collect();
    let figures = scenario::RunFigures {
        latency: of(waits.iter().sum::<f64>() / 3.0, 1500),
        best_possible: scenario::BestPossible { as_made: of(1.0, 1500), as_received: of(1.0, 1500) },
        subscribers: waits.into_iter().enumerate().map(subscriber).collect(),
        totals: scenario::Totals { published: 1500, received: 1500, ..Default::default() },
        not_taken: 0,
        died: 0,
        lateness: Default::default(),
        wake_up: Default::default(),
    };
    let trace = RunTrace {
        seconds: 15.0,
        latencies: waits.into_iter().enumerate().map(|(place, wait)| points(place, wait)).collect(),
        latency_scale: Scale::log(1.0, 5000.0),
        reported_ms: vec![vec![(0.0, 0.0), (1.0, 12.5), (15.0, 25.0)]; 3],
        processing_ms: vec![vec![25.0; 15]; 3],
    };
    Run { policy: policy.to_owned(), number, figures, trace: Some(trace) }
}
