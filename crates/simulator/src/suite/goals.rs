//! Goals of `adaptive` in the shipped scenarios.

use crate::figures::{Figures, WorkerFigures};

/// An upper bound for one figure of `adaptive`.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Name of a shipped scenario.
    pub scenario: &'static str,
    /// Quality of Service: 0 or 1.
    pub qos: u8,
    /// The figure that is bounded.
    pub figure: Figure,
    /// The bound, in the unit of the figure's name.
    pub at_most: f64,
}

named! {
    /// A figure of a policy in a scenario.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Figure {
        /// Mean waiting time.
        Mean = "mean, ms",
        /// 99th percentile of the waiting time.
        P99 = "p99, ms",
        /// Mean waiting time of messages 500 to 999 at the worker where they wait longest.
        StableMean = "worst worker's mean, ms",
        /// Longest waiting time of messages 500 to 999.
        StableMax = "worst worker's max, ms",
        /// Share of the messages, in %, that goes to the last worker.
        Share = "last worker's share, %",
        /// Mean waiting time, as a percentage of that with round robin.
        OfRoundRobin = "mean, % of round robin",
        /// Share of the messages, in %, that no worker began with before they expired.
        Late = "not begun in time, %",
        /// Mean waiting time of the publishers except the loud one.
        OthersMean = "the others' mean, ms",
        /// 99th percentile of the waiting time of the publishers except the loud one.
        OthersP99 = "the others' p99, ms",
    }
}

impl Figure {
    /// Value of the figure; `round_robin` are the figures of that policy.
    pub fn value(self, figures: &Figures, round_robin: &Figures) -> f64 {
        let worst = |of: fn(&WorkerFigures) -> f64| figures.workers.iter().map(of).fold(0.0, f64::max);
        match self {
            Self::Mean => figures.waiting.mean_ms(),
            Self::P99 => figures.waiting.quantile_ms(0.99),
            Self::StableMean => worst(|worker| worker.stable.mean_ms()),
            Self::StableMax => worst(|worker| worker.stable.max_ms()),
            Self::Share => {
                let all: u64 = figures.workers.iter().map(|worker| worker.messages).sum();
                let last = figures.workers.last().map_or(0, |worker| worker.messages);
                100.0 * last as f64 / all.max(1) as f64
            }
            Self::OfRoundRobin => 100.0 * figures.waiting.mean_ms() / round_robin.waiting.mean_ms(),
            Self::Late => 100.0 - figures.in_time_percent(),
            Self::OthersMean => figures.others.mean_ms(),
            Self::OthersP99 => figures.others.quantile_ms(0.99),
        }
    }
}

const fn goal(scenario: &'static str, qos: u8, figure: Figure, at_most: f64) -> Goal {
    Goal { scenario, qos, figure, at_most }
}

/// All goals.
pub const GOALS: &[Goal] = &[
    goal("scenario_1", 0, Figure::Mean, 0.7),
    goal("scenario_1", 1, Figure::Mean, 0.5),
    goal("scenario_2_10.7ms", 0, Figure::Mean, 12.0),
    goal("scenario_2_10.7ms", 1, Figure::Mean, 3.0),
    goal("scenario_2_10.7ms", 0, Figure::StableMean, 3.0),
    goal("scenario_2_10.7ms", 0, Figure::StableMax, 8.0),
    goal("scenario_2_10.7ms", 1, Figure::StableMean, 3.0),
    goal("scenario_2_10.7ms", 1, Figure::StableMax, 8.0),
    goal("scenario_2_10.7ms_eager", 0, Figure::Mean, 3.0),
    goal("scenario_2_10.7ms_eager", 1, Figure::Mean, 3.0),
    goal("scenario_2_10.7ms_remembered", 0, Figure::Mean, 3.0),
    goal("scenario_2_10.7ms_remembered", 1, Figure::Mean, 3.0),
    goal("scenario_2_10.0ms", 0, Figure::Mean, 140.0),
    goal("scenario_2_10.0ms", 1, Figure::Mean, 8.0),
    goal("scenario_2_10.0ms_remembered", 0, Figure::Mean, 4.0),
    goal("scenario_2_10.0ms_remembered", 1, Figure::Mean, 4.0),
    goal("scenario_2_10.0ms_eager", 0, Figure::Mean, 16.0),
    goal("scenario_2_10.0ms_eager", 1, Figure::Mean, 8.0),
    goal("step", 0, Figure::Mean, 40.0),
    goal("step", 0, Figure::P99, 1800.0),
    goal("step", 1, Figure::Mean, 1.0),
    goal("step", 1, Figure::P99, 5.0),
    goal("step_eager", 0, Figure::Mean, 6.0),
    goal("step_eager", 0, Figure::P99, 50.0),
    goal("step_eager", 1, Figure::Mean, 1.0),
    goal("step_eager", 1, Figure::P99, 5.0),
    goal("pause", 0, Figure::Mean, 40.0),
    goal("pause", 0, Figure::P99, 1800.0),
    goal("pause", 1, Figure::Mean, 8.0),
    goal("pause", 1, Figure::P99, 80.0),
    goal("burst", 0, Figure::P99, 530.0),
    goal("burst", 1, Figure::P99, 520.0),
    goal("churn", 0, Figure::P99, 100.0),
    goal("churn", 1, Figure::P99, 70.0),
    goal("threads", 0, Figure::Mean, 75.0),
    goal("threads", 1, Figure::Mean, 32.0),
    goal("wan", 0, Figure::Mean, 40.0),
    goal("wan", 1, Figure::Mean, 35.0),
    // Twice its fair share.
    goal("black_hole", 1, Figure::Share, 50.0),
    goal("deadlines", 1, Figure::Late, 30.0),
    goal("loud_publisher", 1, Figure::OthersMean, 45.0),
    goal("loud_publisher", 1, Figure::OthersP99, 200.0),
    // The other 23 have 4.1 % each.
    goal("black_hole_24", 1, Figure::Share, 15.0),
    goal("no_information", 0, Figure::OfRoundRobin, 100.0),
];
