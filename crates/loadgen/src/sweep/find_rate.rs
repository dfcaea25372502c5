//! Search for the highest publishing rate of a broker: `run --find-rate 'p99<50ms'`.
//!
//! Rates are doubled until one is too high. Then the gap between the highest rate that held and the lowest that failed
//! is halved, on a logarithmic scale, down to 5 %. The load is an open loop: messages are sent when they are due,
//! whether the broker keeps up or not.

use std::io::Write;
use std::time::Duration;

use crate::LoadgenError;
use crate::progress::Progress;
use crate::run::assertion::{Assertions, Check};
use crate::run::command::Load;
use crate::run::{Drivers, ExecuteOptions, Latency, Outcome, Pace, Plan, RunArgs, perform, planning};

/// Prints the highest rate at which `bound` holds for the load of `args`, and all rates that were tried.
pub(crate) async fn run(
    args: &RunArgs,
    drivers: &Drivers,
    bound: &Assertions,
    out: &mut dyn Write,
) -> Result<(), LoadgenError> {
    let mut load = Load::of(args, drivers).await?;
    writeln!(out, "looking for the highest rate with {bound}, each for {:?}", args.step)
        .map_err(LoadgenError::Print)?;
    let mut search = Search::new(args.load.publish_rate.unwrap_or(FIRST_RATE));
    while let Some(rate) = search.next() {
        let plan = step_of(load.plan(args)?, rate, args.step)?;
        let options = ExecuteOptions { title: format!("{rate} msg/s: "), ..load.options.clone() };
        let (latency, faults) = match perform(&plan, &mut load.brokers, options, &mut Progress::new()).await {
            Ok(execution) => (execution.outcome.latency, faults(&execution.outcome, rate, args.step, bound)),
            // A broker may drop clients that it cannot keep up with. If a broker that we started has ended, that is
            // another error.
            Err(error @ LoadgenError::ConnectionLost { .. }) => (None, vec![error.to_string()]),
            Err(error) => return Err(error),
        };
        write_step(out, rate, latency, &faults)?;
        search.tried(rate, faults.is_empty());
    }
    write_result(out, &search, bound)
}

/// State of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Search {
    first: f64,
    /// Highest rate that held.
    held: Option<f64>,
    /// Lowest rate that failed.
    failed: Option<f64>,
}

impl Search {
    /// Begins at `first` messages a second.
    fn new(first: f64) -> Self {
        Self { first, held: None, failed: None }
    }

    /// Next rate to try; `None` when the search is over.
    fn next(&self) -> Option<f64> {
        let (next, is_possible) = match (self.held, self.failed) {
            (None, None) => (self.first, true),
            (Some(held), None) => (2.0 * held, 2.0 * held <= RATE_MAX),
            (None, Some(failed)) => (failed / 2.0, failed / 2.0 >= RATE_MIN),
            (Some(held), Some(failed)) => ((held * failed).sqrt(), failed / held > CLOSE_ENOUGH),
        };
        is_possible.then(|| round(next))
    }

    /// Records the result of `rate`.
    fn tried(&mut self, rate: f64, held: bool) {
        *if held { &mut self.held } else { &mut self.failed } = Some(rate);
    }
}

/// `plan` with `rate` messages a second for `step`.
///
/// # Errors
/// The rate cannot be timed.
fn step_of(mut plan: Plan, rate: f64, step: Duration) -> Result<Plan, LoadgenError> {
    plan.publishers.pace = Pace::Open { interval: planning::interval(rate, plan.publishers.count)? };
    plan.publishers.messages = None;
    plan.schedule.time_limit = step;
    Ok(plan)
}

/// Reasons why `rate` was too high; empty if it held.
fn faults(outcome: &Outcome, rate: f64, step: Duration, bound: &Assertions) -> Vec<String> {
    let mut faults: Vec<_> = bound.check(outcome).iter().filter(|check| !check.holds).map(Check::found).collect();
    if outcome.verdict.lost > 0 {
        faults.push(format!("lost {}", outcome.verdict.lost));
    }
    if !outcome.gives_messages_up() {
        faults.extend(outcome.untaken().map(|(count, why)| format!("{why} {count}")));
    }
    let (due, published) = (rate * step.as_secs_f64(), outcome.published.messages as f64);
    if published < REACHED * due {
        faults.push(format!("published {:.0} % of the due messages", 100.0 * published / due));
    }
    faults
}

/// Prints the result of one rate.
fn write_step(out: &mut dyn Write, rate: f64, latency: Option<Latency>, faults: &[String]) -> Result<(), LoadgenError> {
    let latency = latency.map_or("no latency".to_owned(), |latency| {
        format!("p50 {:.3}, p99 {:.3}, max {:.3} ms", latency.p50, latency.p99, latency.max)
    });
    let verdict = if faults.is_empty() { "held".to_owned() } else { format!("too high: {}", faults.join("; ")) };
    writeln!(out, "  {rate:>10} msg/s: {latency}: {verdict}").and_then(|()| out.flush()).map_err(LoadgenError::Print)
}

/// Prints the result of the search.
///
/// # Errors
/// No rate held.
fn write_result(out: &mut dyn Write, search: &Search, bound: &Assertions) -> Result<(), LoadgenError> {
    match (search.held, search.failed) {
        (Some(held), Some(failed)) => writeln!(out, "highest rate with {bound}: {held} msg/s ({failed} is too high)"),
        (Some(held), None) => writeln!(out, "highest rate with {bound}: above {held} msg/s, the highest rate tried"),
        (None, _) => return Err(LoadgenError::NoRate { bound: bound.to_string() }),
    }
    .map_err(LoadgenError::Print)
}

/// Rounds to three digits, for readability.
fn round(rate: f64) -> f64 {
    let unit = 10f64.powf(rate.log10().floor() - 2.0);
    // Division by the reciprocal of a small unit is exact where multiplication is not.
    if unit < 1.0 { (rate / unit).round() / (1.0 / unit).round() } else { (rate / unit).round() * unit }
}

/// First rate, in messages a second.
const FIRST_RATE: f64 = 1000.0;

const RATE_MAX: f64 = 1e8;
const RATE_MIN: f64 = 1.0;

/// Ratio of failed to held rate at which the search ends.
const CLOSE_ENOUGH: f64 = 1.05;

/// Share of the due messages that must have been published.
const REACHED: f64 = 0.97;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sample;

    /// Searches for `limit`, the highest rate that holds.
    fn search(first: f64, limit: f64) -> (Search, Vec<f64>) {
        let (mut search, mut tried) = (Search::new(first), Vec::new());
        while let Some(rate) = search.next() {
            tried.push(rate);
            search.tried(rate, rate <= limit);
        }
        (search, tried)
    }

    #[test]
    fn the_limit_is_found_to_5_percent_from_below_and_from_above() {
        for first in [1000.0, 37.0, 1e6] {
            for limit in [3.0, 999.0, 1000.0, 52_345.0, 3.3e6] {
                let (found, tried) = search(first, limit);
                let (held, failed) = (found.held.unwrap(), found.failed.unwrap());
                assert!(held <= limit && limit < failed && failed / held <= 1.055, "{first} {limit} {tried:?}");
                assert!(tried.len() < 30, "{tried:?}");
            }
        }
    }

    #[test]
    fn search_ends_if_no_rate_or_every_rate_holds() {
        let (found, tried) = search(1000.0, 0.0);
        assert!(found.held.is_none() && tried.len() < 12, "{tried:?}");
        let (found, tried) = search(1000.0, f64::INFINITY);
        assert!(found.failed.is_none() && tried.len() < 20, "{tried:?}");
    }

    #[test]
    fn error_if_no_rate_holds() {
        let bound = "p99<50ms".parse().unwrap();
        let error = write_result(&mut Vec::new(), &search(1000.0, 0.0).0, &bound).unwrap_err();
        assert_eq!(error.to_string(), "p99 < 50 ms does not hold at any rate that was tried");
        assert!(write_result(&mut Vec::new(), &search(1000.0, 3.0).0, &bound).is_ok());
    }

    #[test]
    fn rates_are_round() {
        for (rate, expected) in
            [(1414.2, 1410.0), (1000.0, 1000.0), (7.0711, 7.07), (123_456.0, 123_000.0), (99.96, 100.0)]
        {
            assert_eq!(round(rate), expected);
        }
    }

    #[test]
    fn rate_is_too_high_on_failed_bound_loss_or_shortfall() {
        let step = Duration::from_secs(2);
        let faults = |outcome: &Outcome, rate, bound: &str| faults(outcome, rate, step, &bound.parse().unwrap());
        let mut outcome = sample::outcome();
        assert_eq!(faults(&outcome, 500.0, "p99<50ms"), ["p99 = 61.2 ms, wanted < 50 ms", "lost 3"]);
        outcome.verdict.lost = 0;
        assert!(faults(&outcome, 500.0, "p99<100ms").is_empty());
        let unanswered = Outcome { unacknowledged: 1, ..outcome.clone() };
        assert_eq!(faults(&unanswered, 500.0, "p99<100ms"), ["never acknowledged 1"]);
        assert_eq!(faults(&outcome, 1000.0, "p99<100ms"), ["published 50 % of the due messages"]);
    }

    #[test]
    fn a_step_is_an_open_loop_of_its_own_length() {
        let plan = step_of(sample::outcome().plan, 2000.0, Duration::from_secs(3)).unwrap();
        assert_eq!(plan.publishers.pace, Pace::Open { interval: Duration::from_micros(500) });
        assert_eq!((plan.publishers.messages, plan.schedule.time_limit.as_secs()), (None, 3));
    }
}
