use serde::Serialize;

use super::STABLE_PHASE;
use super::best_possible::BestPossible;
use super::record::{Delivery, RunRecord, Taken, Totals, WorkerRecord};
use crate::statistics::Summary;

/// Figures of one run.
///
/// Latencies are in ms, from creation at the publisher until a worker takes the message. If a message was processed
/// twice, the first copy counts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunFigures {
    /// Latency of all messages.
    #[serde(rename = "latency_ms")]
    pub(crate) latency: Option<Summary>,
    #[serde(flatten)]
    pub(crate) best_possible: BestPossible,
    pub(crate) subscribers: Vec<SubscriberFigures>,
    #[serde(flatten)]
    pub(crate) totals: Totals,
    /// Messages still queued when the run ended.
    pub(crate) not_taken: u64,
    /// Messages that workers had and had not finished when they died; some may have been sent again.
    #[serde(rename = "died_with_a_worker")]
    pub(crate) died: u64,
    /// Time from due to creation of messages.
    #[serde(rename = "publisher_lateness_ms")]
    pub(crate) lateness: Delays,
    /// Wake-up delay of the workers' threads, which is not part of the latencies.
    #[serde(rename = "worker_wake_up_ms")]
    pub(crate) wake_up: Delays,
}

/// Figures of one worker.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SubscriberFigures {
    pub(crate) name: String,
    /// Mean service time at the start, in ms.
    pub(crate) service_ms: f64,
    #[serde(rename = "latency_ms")]
    pub(crate) latency: Option<Summary>,
    /// Latency in the stable phase only.
    #[serde(rename = "stable_phase_ms")]
    pub(crate) stable: Option<Summary>,
    /// Messages that reached the worker in each second since the first was due.
    #[serde(rename = "messages_in_each_second")]
    pub(crate) per_second: Vec<u64>,
    /// Mean number of messages a second while messages were published.
    pub(crate) messages_per_second: f64,
}

/// Quantiles of delays, in ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Delays {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl RunFigures {
    pub(crate) fn of(record: &RunRecord) -> Self {
        let deliveries = || record.workers.iter().flat_map(|worker| &worker.deliveries);
        let first_copies = || deliveries().filter(|delivery| delivery.is_first);
        let woke_late_ms = |taken: Taken| taken.observed_ns.saturating_sub(taken.taken_ns) as f64 / 1e6;
        let wake_up_ms: Vec<_> = first_copies().filter_map(|delivery| delivery.taken).map(woke_late_ms).collect();
        Self {
            latency: summary(first_copies()),
            best_possible: BestPossible::of(record),
            subscribers: record.workers.iter().map(|worker| SubscriberFigures::of(record, worker)).collect(),
            totals: record.totals,
            not_taken: first_copies().filter(|delivery| delivery.taken.is_none()).count() as u64,
            died: record.workers.iter().map(|worker| worker.died_with_it).sum(),
            lateness: Delays::of(&record.lateness_ms),
            wake_up: Delays::of(&wake_up_ms),
        }
    }
}

impl SubscriberFigures {
    fn of(record: &RunRecord, worker: &WorkerRecord) -> Self {
        let deliveries = &worker.deliveries;
        let first_copies = || deliveries.iter().filter(|delivery| delivery.is_first);
        let per_second = per_second(record.start_ns, deliveries);
        let seconds = record.duration.as_secs_f64();
        Self {
            name: worker.name.clone(),
            service_ms: worker.kind.service.ms(),
            latency: summary(first_copies()),
            stable: summary(first_copies().filter(|delivery| STABLE_PHASE.contains(&delivery.sequence))),
            messages_per_second: per_second.iter().sum::<u64>() as f64 / seconds,
            per_second,
        }
    }
}

impl Delays {
    /// Quantiles of `ms`; 0 if there are none.
    fn of(ms: &[f64]) -> Self {
        let summary = Summary::of(ms);
        let figure = |of: fn(Summary) -> f64| summary.map_or(0.0, of);
        Self { p50: figure(|all| all.p50), p99: figure(|all| all.p99), max: figure(|all| all.max) }
    }
}

fn summary<'a>(deliveries: impl Iterator<Item = &'a Delivery>) -> Option<Summary> {
    Summary::of(&deliveries.filter_map(Delivery::latency_ms).collect::<Vec<_>>())
}

fn per_second(start_ns: u64, deliveries: &[Delivery]) -> Vec<u64> {
    let mut counts = Vec::new();
    for delivery in deliveries {
        let second = (delivery.received_ns.saturating_sub(start_ns) / 1_000_000_000) as usize;
        if counts.len() <= second {
            counts.resize(second + 1, 0);
        }
        counts[second] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenbin_codec::QoS;
    use tenbin_simulator::Scenario;

    use super::super::workers;
    use super::*;

    const MS: u64 = 1_000_000;

    fn delivery(sequence: u64, created_ms: u64, taken_ms: Option<u64>, is_first: bool) -> Delivery {
        let taken = |ms: u64| Taken { taken_ns: ms * MS, observed_ns: ms * MS + MS / 2, finished_ns: ms * MS + MS };
        let created_ns = created_ms * MS;
        Delivery { sequence, created_ns, received_ns: created_ns, is_first, taken: taken_ms.map(taken) }
    }

    #[test]
    fn first_copies_count_and_the_stable_phase_is_half_open() {
        let deliveries = [
            vec![delivery(499, 0, Some(10), true), delivery(500, 500, Some(504), true)],
            vec![delivery(499, 0, Some(900), false), delivery(999, 1000, Some(1002), true)],
            vec![delivery(1000, 2500, Some(2520), true), delivery(1001, 2600, None, true)],
        ];
        let text = "messages = 6\narrivals = { fixed = \"500ms\" }\n[[workers]]\nservice = \"1ms\"\ncount = 3";
        let kinds = workers::of(&Scenario::parse("test", text).unwrap(), Duration::from_secs(3), 0);
        let worker = |(kind, deliveries)| WorkerRecord { deliveries, died_with_it: 2, ..WorkerRecord::new(kind) };
        let record = RunRecord {
            created_ns: Vec::new(),
            lateness_ms: vec![0.25, 0.75],
            start_ns: 0,
            duration: Duration::from_secs(3),
            qos: QoS::AtMostOnce,
            seed: 0,
            workers: kinds.into_iter().zip(deliveries).map(worker).collect(),
            totals: Totals { published: 6, received: 5, lost: 1, duplicated: 1, unknown: 0 },
        };
        let figures = RunFigures::of(&record);

        let latency = figures.latency.expect("some were taken");
        assert_eq!((latency.n, latency.mean, latency.p50, latency.p99), (4, 9.0, 4.0, 20.0));
        assert_eq!((figures.not_taken, figures.totals.lost, figures.died), (1, 1, 6));
        let stable: Vec<_> =
            figures.subscribers.iter().map(|of| of.stable.map(|stable| (stable.n, stable.mean))).collect();
        assert_eq!(stable, [Some((1, 4.0)), Some((1, 2.0)), None]);
        assert_eq!(figures.subscribers[2].per_second, [0, 0, 2]);
        assert_eq!(figures.subscribers[0].messages_per_second, 2.0 / 3.0);
        assert_eq!((figures.wake_up.p99, figures.lateness.p50, figures.lateness.max), (0.5, 0.25, 0.75));
    }
}
