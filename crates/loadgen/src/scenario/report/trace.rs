//! Data of a run for figures, beyond its key figures.

use std::collections::VecDeque;

use crate::report::chart::{Ink, Scale, Thinned};
use crate::report::charts::{Dots, POINTS_MAX};
use crate::scenario::{RunFigures, RunRecord, WorkerRecord};

/// The course of a run. Times are in seconds since the first message was due.
#[derive(Debug)]
pub(super) struct RunTrace {
    /// Planned time of publishing.
    pub(super) seconds: f64,
    /// Message number and latency in ms, reduced to distinguishable points.
    ///
    /// One list per worker, or one for all if there are too many workers.
    pub(super) latencies: Vec<Dots>,
    /// Scale of the latencies.
    pub(super) latency_scale: Scale,
    /// Time and value in ms of each worker's t_p, the mean of the last five reports; empty for workers without reports.
    pub(super) reported_ms: Vec<Vec<(f64, f64)>>,
    /// Mean processing time of each worker in each second, in ms; NaN if it took no message.
    pub(super) processing_ms: Vec<Vec<f64>>,
}

impl RunTrace {
    pub(super) fn of(record: &RunRecord, figures: &RunFigures) -> Self {
        let messages = record.totals.published.max(1) as f64;
        let x = Scale::Linear { from: 0.0, to: messages };
        let y = figures.latency.map_or(Scale::from_zero(1.0), |l| Scale::for_latencies(l.min, l.p50, l.max, LEAST_MS));
        let workers = || record.workers.iter();
        let is_few = record.workers.len() <= Ink::COLOURS;
        let mut latencies: Vec<_> =
            (0..if is_few { record.workers.len() } else { 1 }).map(|_| Thinned::new(x, y)).collect();
        for (number, worker) in workers().enumerate() {
            for delivery in worker.deliveries.iter().filter(|delivery| delivery.is_first) {
                if let Some(latency_ms) = delivery.latency_ms() {
                    latencies[if is_few { number } else { 0 }].add(delivery.sequence as f64, latency_ms);
                }
            }
        }
        let limit = POINTS_MAX / latencies.len().max(1);
        let seconds = record.duration.as_secs_f64();
        Self {
            seconds,
            latencies: latencies.into_iter().map(|points| points.into_points(limit)).collect(),
            latency_scale: y,
            reported_ms: workers().map(|worker| reported_ms(worker, record.start_ns, seconds)).collect(),
            processing_ms: workers().map(|worker| processing_ms(worker, record.start_ns)).collect(),
        }
    }
}

/// The broker's evaluation of reports (thesis §4.1.2): the mean of the last five, empty reports included.
fn reported_ms(worker: &WorkerRecord, start_ns: u64, seconds: f64) -> Vec<(f64, f64)> {
    let (mut last, mut before, mut course) = (VecDeque::new(), None, Vec::new());
    for &(at_ns, mean) in &worker.reports {
        if last.len() == REPORTS_THAT_COUNT {
            last.pop_front();
        }
        last.push_back(mean.as_secs_f64() * 1e3);
        let t_p = last.iter().sum::<f64>() / last.len() as f64;
        let at = (at_ns as f64 - start_ns as f64) / 1e9;
        if at < 0.0 {
            before = Some((0.0, t_p));
        } else if at <= seconds {
            course.push((at, t_p));
        }
    }
    let end = course.last().or(before.as_ref()).map(|(_, t_p)| (seconds, *t_p));
    before.into_iter().chain(course).chain(end).collect()
}

fn processing_ms(worker: &WorkerRecord, start_ns: u64) -> Vec<f64> {
    let mut sums: Vec<(f64, u32)> = Vec::new();
    for taken in worker.deliveries.iter().filter_map(|delivery| delivery.taken) {
        let second = (taken.taken_ns.saturating_sub(start_ns) / 1_000_000_000) as usize;
        if sums.len() <= second {
            sums.resize(second + 1, (0.0, 0));
        }
        sums[second].0 += (taken.finished_ns - taken.taken_ns) as f64 / 1e6;
        sums[second].1 += 1;
    }
    // 0 of 0 yields NaN.
    sums.into_iter().map(|(sum, count)| sum / f64::from(count)).collect()
}

/// Shortest drawn latency: ten microseconds.
const LEAST_MS: f64 = 0.01;

/// Table 3 of the thesis.
const REPORTS_THAT_COUNT: usize = 5;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenbin_simulator::Span;
    use tenbin_simulator::scenario::WorkerKind;

    use super::*;

    fn none() -> WorkerRecord {
        WorkerRecord::new(WorkerKind::of(Span::from_ms(1.0)))
    }

    #[test]
    fn t_p_is_the_mean_of_the_last_five_reports() {
        let second = |n: u64| n * 1_000_000_000;
        let means = [0, 0, 10, 20, 30, 40, 50];
        let reports = means.into_iter().enumerate().map(|(n, ms)| (second(n as u64), Duration::from_millis(ms)));
        let worker = WorkerRecord { reports: reports.collect(), ..none() };
        // The first message is due at 1.5 s: earlier reports apply from there on.
        let course = reported_ms(&worker, second(1) + 500_000_000, 5.0);
        assert_eq!(
            course,
            [(0.0, 0.0), (0.5, 10.0 / 3.0), (1.5, 7.5), (2.5, 12.0), (3.5, 20.0), (4.5, 30.0), (5.0, 30.0)]
        );
        assert!(reported_ms(&none(), 0, 5.0).is_empty());
    }
}
