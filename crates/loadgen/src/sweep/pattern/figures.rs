//! Figures of a pattern. Throughput covers the publishing time; latency covers all messages, later ones included.

use super::super::Figures;
use crate::run::{Outcome, Second};

/// The figures of one run.
pub(super) fn of(outcome: &Outcome) -> Figures {
    let seconds = publishing_seconds(outcome);
    let per_second = |of: fn(&Second) -> u64| {
        seconds.iter().map(of).sum::<u64>() as f64 / outcome.plan.schedule.time_limit.as_secs_f64()
    };
    let quarter = (seconds.len() / 4).max(1).min(seconds.len());
    let counted = f64::from(outcome.received.seconds.max(1));
    // Processors that each broker used.
    let cores = || outcome.broker_usage.iter().map(|usage| usage.cpu_seconds / counted);
    Figures::from([
        ("published_per_second", Some(per_second(|second| second.published))),
        ("received_per_second", Some(per_second(|second| second.received))),
        ("latency_mean_ms", outcome.latency.map(|latency| latency.mean)),
        ("latency_p99_ms", outcome.latency.map(|latency| latency.p99)),
        ("latency_max_ms", outcome.latency.map(|latency| latency.max)),
        ("lost", Some(outcome.verdict.lost as f64)),
        ("duplicated", Some(outcome.verdict.duplicated as f64)),
        ("first_quarter_ms", mean_latency(&seconds[..quarter])),
        ("last_quarter_ms", mean_latency(&seconds[seconds.len() - quarter..])),
        ("broker_cores", cores().reduce(f64::max)),
        ("all_brokers_cores", cores().reduce(|a, b| a + b)),
        ("own_cores", Some(outcome.own_cpu_seconds / outcome.seconds.max(1e-3))),
        ("threads", Some(outcome.plan.threads.into())),
    ])
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
        let figures = of(&outcome);
        for (name, expected) in [
            // 100, 400, 400 published; 90, 390, 407 received; the fourth second is backlog.
            ("published_per_second", 300.0),
            ("received_per_second", 887.0 / 3.0),
            ("first_quarter_ms", 10.0),
            ("last_quarter_ms", 30.0),
            // Half a processor second in the two counted seconds.
            ("broker_cores", 0.25),
            ("own_cores", 0.0625),
            ("lost", 3.0),
            ("latency_max_ms", 200.0),
        ] {
            assert_eq!(figures[name], Some(expected), "{name}");
        }
    }

    #[test]
    fn run_without_arrivals_has_no_latency() {
        let figures = of(&Outcome { per_second: Vec::new(), latency: None, ..sample::outcome() });
        assert_eq!((figures["received_per_second"], figures["first_quarter_ms"]), (Some(0.0), None));
    }
}
