use serde::Serialize;

use super::args::Pattern;
use crate::run::{Outcome, Second};

/// Results of a pattern at one QoS.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pattern: Pattern,
    pub(super) qos: u8,
    /// Mean of all runs.
    pub(super) mean: Measured,
    pub(super) runs: Vec<Measured>,
}

/// Figures of a run. Throughput covers the publishing time; latency covers all messages, later ones included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Measured {
    pub(super) published_per_second: f64,
    pub(super) received_per_second: f64,
    pub(super) latency_mean_ms: Option<f64>,
    pub(super) latency_p99_ms: Option<f64>,
    pub(super) latency_max_ms: Option<f64>,
    pub(super) lost: f64,
    pub(super) duplicated: f64,
    /// Mean latency of arrivals in the first quarter of the publishing time.
    pub(super) first_quarter_ms: Option<f64>,
    /// Mean latency of arrivals in the last quarter.
    pub(super) last_quarter_ms: Option<f64>,
    /// Processors that the busiest broker used, if known.
    pub(super) broker_cores: Option<f64>,
    /// Processors that all brokers used together.
    pub(super) all_brokers_cores: Option<f64>,
    /// Processors that this program used.
    pub(super) own_cores: f64,
    /// Load threads of this program.
    pub(super) threads: f64,
}

impl Measured {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let seconds = publishing_seconds(outcome);
        let per_second = |of: fn(&Second) -> u64| {
            seconds.iter().map(of).sum::<u64>() as f64 / outcome.plan.schedule.time_limit.as_secs_f64()
        };
        let quarter = (seconds.len() / 4).max(1).min(seconds.len());
        let counted = f64::from(outcome.received.seconds.max(1));
        let cores: Vec<f64> = outcome.broker_usage.iter().map(|usage| usage.cpu_seconds / counted).collect();
        Self {
            published_per_second: per_second(|second| second.published),
            received_per_second: per_second(|second| second.received),
            latency_mean_ms: outcome.latency.map(|latency| latency.mean),
            latency_p99_ms: outcome.latency.map(|latency| latency.p99),
            latency_max_ms: outcome.latency.map(|latency| latency.max),
            lost: outcome.verdict.lost as f64,
            duplicated: outcome.verdict.duplicated as f64,
            first_quarter_ms: mean_latency(&seconds[..quarter]),
            last_quarter_ms: mean_latency(&seconds[seconds.len() - quarter..]),
            broker_cores: cores.iter().copied().reduce(f64::max),
            all_brokers_cores: cores.iter().copied().reduce(|a, b| a + b),
            own_cores: outcome.own_cpu_seconds / outcome.seconds.max(1e-3),
            threads: f64::from(outcome.plan.threads),
        }
    }

    /// Mean of several runs; a figure that only some runs have is the mean of those.
    pub(super) fn mean(runs: &[Self]) -> Self {
        let some = |of: fn(&Self) -> Option<f64>| {
            let known: Vec<f64> = runs.iter().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let all = |of: fn(&Self) -> f64| runs.iter().map(of).fold(0.0, |sum, of| sum + of) / runs.len().max(1) as f64;
        Self {
            published_per_second: all(|run| run.published_per_second),
            received_per_second: all(|run| run.received_per_second),
            latency_mean_ms: some(|run| run.latency_mean_ms),
            latency_p99_ms: some(|run| run.latency_p99_ms),
            latency_max_ms: some(|run| run.latency_max_ms),
            lost: all(|run| run.lost),
            duplicated: all(|run| run.duplicated),
            first_quarter_ms: some(|run| run.first_quarter_ms),
            last_quarter_ms: some(|run| run.last_quarter_ms),
            broker_cores: some(|run| run.broker_cores),
            all_brokers_cores: some(|run| run.all_brokers_cores),
            own_cores: all(|run| run.own_cores),
            threads: all(|run| run.threads),
        }
    }

    /// Ratio of the last quarter's latency to the first quarter's.
    pub(super) fn growth(&self) -> Option<f64> {
        let growth = self.last_quarter_ms? / self.first_quarter_ms?;
        growth.is_finite().then_some(growth)
    }
}

/// Seconds of publishing. Later arrivals are the broker's backlog.
fn publishing_seconds(outcome: &Outcome) -> &[Second] {
    let limit = outcome.plan.schedule.time_limit.as_secs_f64().ceil() as usize;
    &outcome.per_second[..limit.min(outcome.per_second.len())]
}

fn mean_latency(seconds: &[Second]) -> Option<f64> {
    let latencies = || seconds.iter().filter_map(|second| second.latency);
    let messages: u64 = latencies().map(|latency| latency.count).sum();
    let sum = latencies().map(|latency| latency.mean * latency.count as f64).fold(0.0, |sum, of| sum + of);
    (messages > 0).then(|| sum / messages as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::sample;

    #[test]
    fn throughput_and_quarters_cover_publishing_time() {
        let mut outcome = sample::outcome();
        outcome.plan.schedule.time_limit = Duration::from_secs(3);
        let measured = Measured::of(&outcome);
        // 100, 400, 400 published; 90, 390, 407 received; the fourth second is backlog.
        assert_eq!((measured.published_per_second, measured.received_per_second), (300.0, 887.0 / 3.0));
        assert_eq!(
            (measured.first_quarter_ms, measured.last_quarter_ms, measured.growth()),
            (Some(10.0), Some(30.0), Some(3.0))
        );
        // Half a processor second in the two counted seconds.
        assert_eq!((measured.broker_cores, measured.own_cores), (Some(0.25), 0.0625));
        assert_eq!((measured.lost, measured.latency_max_ms), (3.0, Some(200.0)));
    }

    #[test]
    fn run_without_arrivals_has_no_latency() {
        let outcome = Outcome { per_second: Vec::new(), latency: None, ..sample::outcome() };
        let measured = Measured::of(&outcome);
        assert_eq!((measured.received_per_second, measured.first_quarter_ms, measured.growth()), (0.0, None, None));
    }

    #[test]
    fn mean_ignores_unknown_values() {
        let one = Measured::of(&sample::outcome());
        let other = Measured { lost: 5.0, broker_cores: None, ..one.clone() };
        let mean = Measured::mean(&[one, other]);
        assert_eq!((mean.lost, mean.broker_cores), (4.0, Some(0.25)));
    }
}
