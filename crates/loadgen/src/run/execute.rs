//! Execution of one run, from the first connection to its outcome.

use std::sync::Arc;
use std::time::Duration;

use tenbin_codec::Secret;

use super::clients::ClientHost;
use super::clock::RunClock;
use super::driver::Drivers;
use super::load::{Ended, RunningLoad};
use super::ntp;
use super::usage::{Usage, listener_at};
use super::{Broker, BrokerUsage, Doors, MessageRecord, Outcome, Plan, PublishRecord, Status, Trace};
use crate::LoadgenError;
use crate::progress::Progress;
use crate::target::RunningBroker;

/// Settings of a run that depend on this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecuteOptions {
    /// Drivers by protocol.
    pub(crate) drivers: Drivers,
    /// Processes of the brokers, in the plan's order. A missing one is found by the port it listens on.
    pub(crate) pids: Vec<Option<u32>>,
    /// Addresses of the agents that have all clients; empty for a run in this process.
    pub(crate) agents: Vec<String>,
    /// Secret that the agents ask for.
    pub(crate) token: Option<Secret<String>>,
    /// NTP server to adjust the clock to.
    pub(crate) ntp: Option<String>,
    /// Prefix of the progress line.
    pub(crate) title: String,
}

/// A completed run.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) outcome: Outcome,
    /// Each arrival and each published message, in order, if [`Plan::records`] asks for them.
    pub(crate) arrivals: Vec<MessageRecord>,
    pub(crate) departures: Vec<PublishRecord>,
    /// Records of a scenario, likewise.
    pub(crate) trace: Trace,
    /// Whether messages were still arriving when the run was given up.
    pub(crate) has_given_up: bool,
}

/// Changes between two samples of a run.
#[derive(Debug, Clone, PartialEq)]
struct Between {
    /// For each broker, if its process is known.
    cpu_seconds: Vec<Option<f64>>,
    /// The busiest driver thread's share of the time.
    busiest: f64,
}

/// Progress and usage at one time.
#[derive(Debug, Clone)]
struct Sample {
    /// Time since the start of the run.
    at: Duration,
    status: Status,
    brokers: Vec<Option<Usage>>,
}

/// Runs `plan` over MQTT with all its clients in this process, on a new runtime, without a progress line.
///
/// # Errors
/// The plan cannot be run, a broker cannot be reached, or a connection is lost without a cut.
pub fn run_plan(plan: &Plan) -> Result<Outcome, LoadgenError> {
    run_plan_with(plan, &Drivers::mqtt())
}

/// As [`run_plan`], over any protocol of `drivers`.
///
/// # Errors
/// As [`run_plan`]; also no driver for the plan's protocol.
pub fn run_plan_with(plan: &Plan, drivers: &Drivers) -> Result<Outcome, LoadgenError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadgenError::Runtime)?;
    let options = ExecuteOptions { drivers: drivers.clone(), ..ExecuteOptions::default() };
    let executed = runtime.block_on(execute(plan, &options, &mut Progress::silent()));
    executed.map(|execution| execution.outcome)
}

/// Runs `plan` on `brokers`.
///
/// # Errors
/// As [`execute`], or a broker that we started has ended.
pub(crate) async fn perform(
    plan: &Plan,
    brokers: &mut [RunningBroker],
    options: ExecuteOptions,
    progress: &mut Progress,
) -> Result<Execution, LoadgenError> {
    let options = ExecuteOptions { pids: brokers.iter().map(|broker| broker.pid).collect(), ..options };
    execute(plan, &options, progress)
        .await
        .map_err(|error| brokers.iter_mut().fold(error, |error, broker| broker.blame(error)))
}

/// Runs `plan` with all its clients in this process, or at agents.
///
/// # Errors
/// The plan cannot be run, a broker cannot be reached, or a connection is lost without a cut. An agent refuses or is
/// lost. The NTP server gives no time.
async fn execute(plan: &Plan, options: &ExecuteOptions, progress: &mut Progress) -> Result<Execution, LoadgenError> {
    let (clock, note) = clock(options).await?;
    let host = match options.agents.as_slice() {
        [] => ClientHost::Here(&options.drivers),
        addresses => ClientHost::Agents { addresses, token: options.token.as_ref() },
    };
    let load = RunningLoad::at(plan, host, clock).await?;
    let layout = Arc::clone(load.layout());
    let Watched { ended, samples, pids } = watch(plan, options, load, progress).await?;
    progress.clear();

    let Ended { mut part, notes, has_given_up, own_cpu } = ended;
    let (arrivals, departures, trace) = (part.take_records(), part.take_publish_records(), part.take_trace());
    let mut outcome = Outcome::of(plan, &layout, part);
    outcome.own_cpu_seconds = own_cpu.as_secs_f64();
    outcome.notes = note.into_iter().chain(notes).collect();
    let counted = outcome.received.seconds_range();
    // Without messages, as with idle connections alone, the whole run counts.
    let end = if counted.is_empty() { Duration::MAX } else { seconds(counted.end) };
    if let Some(between) = between(&samples, seconds(counted.start), end) {
        outcome.broker_usage = broker_usage(plan, &outcome, &between, &samples, &pids);
        outcome.notes.extend(note_of_busy_threads(between.busiest));
    }
    outcome.notes.extend(outcome.notes_of_sending());
    Ok(Execution { outcome, arrivals, departures, trace, has_given_up })
}

/// The system clock, or one adjusted to an NTP server with a note on its offset.
async fn clock(options: &ExecuteOptions) -> Result<(RunClock, Option<String>), LoadgenError> {
    let clock = RunClock::new(0);
    let Some(server) = &options.ntp else { return Ok((clock, None)) };
    let offset = ntp::offset(server, clock).await?;
    Ok((clock.moved(offset.ns), Some(format!("clock of {server}: {offset}, which ours was set to"))))
}

/// A run that was watched to its end.
struct Watched {
    ended: Ended,
    samples: Vec<Sample>,
    pids: Vec<Option<u32>>,
}

async fn watch(
    plan: &Plan,
    options: &ExecuteOptions,
    mut load: RunningLoad,
    progress: &mut Progress,
) -> Result<Watched, LoadgenError> {
    let mut pids = Vec::new();
    for (number, broker) in plan.brokers.iter().enumerate() {
        pids.push(pid_of(options.pids.get(number).copied().flatten(), broker).await);
    }
    load.start().await?;
    let mut samples = Samples::new(pids);
    while let Some(status) = load.tick().await?.cloned() {
        let at = load.elapsed();
        samples.take_if_due(&status, at);
        progress.show(|| format!("{}{}", options.title, samples.live_line(&status, at)));
    }
    samples.take(load.status(), load.elapsed());
    let ended = load.end().await?;
    Ok(Watched { ended, samples: samples.taken, pids: samples.pids })
}

/// Samples of a run, at each full second.
struct Samples {
    pids: Vec<Option<u32>>,
    next_second: u32,
    taken: Vec<Sample>,
}

impl Samples {
    fn new(pids: Vec<Option<u32>>) -> Self {
        Self { pids, next_second: 0, taken: Vec::new() }
    }

    fn take_if_due(&mut self, status: &Status, at: Duration) {
        if at >= Duration::from_secs(self.next_second.into()) {
            self.next_second = at.as_secs() as u32 + 1;
            self.take(status, at);
        }
    }

    fn take(&mut self, status: &Status, at: Duration) {
        let brokers = self.pids.iter().map(|pid| Usage::of((*pid)?)).collect();
        self.taken.push(Sample { at, status: status.clone(), brokers });
    }

    /// Progress line, with rates since the last sample that is at least half a second old.
    fn live_line(&self, status: &Status, at: Duration) -> String {
        let old = |sample: &&Sample| at.saturating_sub(sample.at) >= Duration::from_millis(500);
        let (since, published, received) = self
            .taken
            .iter()
            .rev()
            .find(old)
            .map_or((Duration::ZERO, 0, 0), |sample| (sample.at, sample.status.published, sample.status.received));
        let seconds = at.saturating_sub(since).as_secs_f64().max(1e-3);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        format!(
            "{} s: {:.0} published/s, {:.0} received/s",
            at.as_secs(),
            rate(status.published, published),
            rate(status.received, received)
        )
    }
}

/// Changes between the samples nearest to two times of the run; `None` if there are not two samples.
fn between(samples: &[Sample], from: Duration, to: Duration) -> Option<Between> {
    let at = |time: Duration| samples.iter().min_by_key(|sample| sample.at.abs_diff(time));
    let (first, last) = (at(from)?, at(to)?);
    let elapsed = last.at.checked_sub(first.at).filter(|elapsed| !elapsed.is_zero())?;
    let brokers = || first.brokers.iter().zip(&last.brokers);
    let busy = |(then, now): (&u64, &u64)| now.saturating_sub(*then) as f64 / elapsed.as_nanos() as f64;
    let threads = first.status.cpu_ns.iter().zip(&last.status.cpu_ns);
    Some(Between {
        cpu_seconds: brokers().map(|(then, now)| Some((*now)?.cpu_seconds - (*then)?.cpu_seconds)).collect(),
        busiest: threads.map(busy).fold(0.0, f64::max),
    })
}

fn broker_usage(
    plan: &Plan,
    outcome: &Outcome,
    between: &Between,
    samples: &[Sample],
    pids: &[Option<u32>],
) -> Vec<BrokerUsage> {
    let peak =
        |broker: usize| samples.iter().filter_map(|sample| Some(sample.brokers[broker]?.resident_peak_kib)).max();
    let usage = |(broker, pid): (usize, &Option<u32>)| {
        let name = &plan.brokers[broker].name;
        let cpu_seconds = between.cpu_seconds[broker]?;
        let deliveries = outcome.received_from(name) as f64;
        // Which of several doors a message came through is unknown.
        let is_alone = plan.doors == Doors::Independent || plan.brokers.len() == 1;
        Some(BrokerUsage {
            broker: name.clone(),
            pid: (*pid)?,
            cpu_seconds,
            deliveries_per_cpu_second: (is_alone && cpu_seconds > 0.0 && deliveries > 0.0)
                .then(|| deliveries / cpu_seconds),
            resident_kib: samples.last()?.brokers[broker].map_or(0, |usage| usage.resident_kib),
            resident_peak_kib: peak(broker).unwrap_or(0),
        })
    };
    pids.iter().enumerate().filter_map(usage).collect()
}

fn note_of_busy_threads(busiest: f64) -> Option<String> {
    (busiest >= BUSY).then(|| {
        format!(
            "this program was the bottleneck: one of its threads was {:.0} % busy; give it more with --threads",
            busiest * 100.0
        )
    })
}

/// The given process, or the one that listens at one of the broker's addresses, as far as this machine can resolve them.
async fn pid_of(given: Option<u32>, broker: &Broker) -> Option<u32> {
    if given.is_some() {
        return given;
    }
    let addresses = tokio::net::lookup_host((broker.host.as_str(), broker.port)).await.ok()?;
    listener_at(&addresses.collect::<Vec<_>>())
}

fn seconds(count: usize) -> Duration {
    Duration::from_secs(count as u64)
}

/// Share of its time from which on a thread counts as saturated.
const BUSY: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, received: u64, cpu: f64, threads: [u64; 2]) -> Sample {
        let usage = Usage { cpu_seconds: cpu, resident_kib: ms, resident_peak_kib: ms, written_bytes: 0 };
        let status = Status { received, cpu_ns: threads.into(), ..Status::default() };
        Sample { at: Duration::from_millis(ms), status, brokers: vec![Some(usage), None] }
    }

    #[test]
    fn between_uses_the_samples_nearest_to_the_times() {
        let samples = [
            sample(0, 0, 1.0, [0, 0]),
            sample(1_001, 100, 1.5, [100, 900]),
            sample(2_001, 300, 2.5, [200_000_100, 980_000_900]),
            sample(2_500, 350, 9.0, [0, 0]),
        ];
        let found = between(&samples, seconds(1), seconds(2)).unwrap();
        assert_eq!(found.cpu_seconds, [Some(1.0), None]);
        assert_eq!(found.busiest, 0.98);
        assert!(note_of_busy_threads(found.busiest).is_some() && note_of_busy_threads(0.9).is_none());
        assert_eq!(between(&samples, seconds(9), seconds(10)), None);
        assert_eq!(between(&[], seconds(0), seconds(1)), None);
    }
}
