//! A run in the hands of its caller: it looks at the progress, and decides when to look again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::agents::AgentStream;
use super::clients::{ClientHost, Clients};
use super::clock::RunClock;
use super::driver::Drivers;
use super::watch::{Next, Watch};
use super::{Layout, Ledger, Outcome, Part, Plan, Status, Ticks};
use crate::LoadgenError;

/// A load under way: the connected clients of a plan, in this process or at agents.
///
/// Dropping it ends the load and closes all connections.
pub struct RunningLoad {
    plan: Plan,
    layout: Arc<Layout>,
    clients: Clients,
    clock: RunClock,
    watch: Watch,
    started: Option<Instant>,
    /// Whether a status was taken since the start.
    has_looked: bool,
    status: Status,
    has_given_up: bool,
    notes: Vec<String>,
    are_clients_elsewhere: bool,
    cpu_before: Duration,
}

/// Results of a load.
#[derive(Debug)]
pub struct Finished {
    /// All figures, without usage of the brokers.
    pub outcome: Outcome,
    /// Fate of each message; `None` if payloads are too small to identify messages, or nothing was published.
    pub ledger: Option<Ledger>,
    /// Latencies and counts by time, if [`Plan::ticks`] asks for them.
    pub ticks: Ticks,
}

/// A load that has ended, before its results are computed.
pub(super) struct Ended {
    pub(super) part: Part,
    pub(super) notes: Vec<String>,
    pub(super) has_given_up: bool,
    pub(super) own_cpu: Duration,
}

impl RunningLoad {
    /// Connects the clients of `plan`, subscribers first; they wait for [`RunningLoad::start`].
    ///
    /// Without `agents` all clients are in this process, over one of `drivers`. With agents, the agents run all clients over
    /// the agents' drivers: client k of each kind is at agent k mod n.
    ///
    /// # Errors
    /// The plan cannot be run or divided, no driver has its protocol, a client cannot connect, or an agent refuses or
    /// fails.
    pub async fn prepare(plan: &Plan, drivers: &Drivers, agents: Vec<AgentStream>) -> Result<Self, LoadgenError> {
        let host = if agents.is_empty() { ClientHost::Here(drivers) } else { ClientHost::Streams(agents) };
        Self::at(plan, host, RunClock::new(0)).await
    }

    /// As [`RunningLoad::prepare`], with clients at `host`.
    pub(super) async fn at(plan: &Plan, host: ClientHost<'_>, clock: RunClock) -> Result<Self, LoadgenError> {
        let cpu_before = process_cpu();
        let layout = Arc::new(Layout::of(plan)?);
        let are_clients_elsewhere = !matches!(host, ClientHost::Here(_));
        let clients = Clients::prepare(plan, Arc::clone(&layout), host, clock).await?;
        Ok(Self {
            watch: Watch::new(plan),
            plan: plan.clone(),
            layout,
            clients,
            clock,
            started: None,
            has_looked: false,
            status: Status::default(),
            has_given_up: false,
            notes: Vec::new(),
            are_clients_elsewhere,
            cpu_before,
        })
    }

    /// The clock of all times of the run.
    pub fn clock(&self) -> RunClock {
        self.clock
    }

    /// Streams and receivers by number.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Starts the load after [`Schedule::lead`](super::Schedule::lead) and waits for its start; returns the start of
    /// second 0, by the run's clock.
    ///
    /// # Errors
    /// An agent is lost, or got the start command too late.
    pub async fn start(&mut self) -> Result<u64, LoadgenError> {
        let start = Instant::now() + self.clients.lead() + self.plan.schedule.lead;
        let start_ns = self.clock.at_ns(start);
        self.clients.start(start_ns).await?;
        tokio::time::sleep_until(start.into()).await;
        self.started = Some(start);
        Ok(start_ns)
    }

    /// Progress at the last [`RunningLoad::tick`].
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |start| start.elapsed())
    }

    /// Waits 10 ms and returns the progress; `None` once the run is over, which [`RunningLoad::finish`] then completes.
    ///
    /// Publishing stops after [`Schedule::time_limit`](super::Schedule::time_limit), or when everything is sent and
    /// received. Call it again at once: agents give up a controller that is silent for 10 s. It is not cancel safe.
    ///
    /// # Errors
    /// A client was lost and the plan does not let it reconnect; an agent is lost.
    pub async fn tick(&mut self) -> Result<Option<&Status>, LoadgenError> {
        if std::mem::replace(&mut self.has_looked, true) {
            let left = self.plan.schedule.time_limit.saturating_sub(self.elapsed());
            tokio::time::sleep(if left.is_zero() { TICK } else { TICK.min(left) }).await;
        }
        self.status = self.clients.status().await?;
        let at = self.elapsed();
        match self.watch.look(&self.status, at) {
            Next::GoOn => {}
            Next::Stop => self.clients.stop_publishing().await?,
            Next::End => return Ok(None),
            Next::GiveUp => {
                self.has_given_up = true;
                self.notes.push(format!(
                    "{} deliveries were still missing when the run was given up, {} s after its time",
                    self.status.expected.saturating_sub(self.status.received),
                    at.saturating_sub(self.plan.schedule.time_limit).as_secs()
                ));
                return Ok(None);
            }
        }
        Ok(Some(&self.status))
    }

    /// Stops publishing before its time; [`RunningLoad::tick`] then waits for messages under way.
    ///
    /// # Errors
    /// An agent is lost.
    pub async fn stop_publishing(&mut self) -> Result<(), LoadgenError> {
        self.watch.stop(self.elapsed());
        self.clients.stop_publishing().await
    }

    /// Closes all connections and computes the results.
    ///
    /// # Errors
    /// As [`RunningLoad::tick`].
    pub async fn finish(self) -> Result<Finished, LoadgenError> {
        let (plan, layout) = (self.plan.clone(), Arc::clone(&self.layout));
        let Ended { mut part, notes, own_cpu, .. } = self.end().await?;
        let ticks = part.take_ticks();
        let mut outcome = Outcome::of_part(&plan, &layout, &part);
        outcome.own_cpu_seconds = own_cpu.as_secs_f64();
        outcome.notes = notes;
        outcome.notes.extend(outcome.notes_of_sending());
        Ok(Finished { outcome, ledger: Ledger::of(&plan, layout, part), ticks })
    }

    /// Closes all connections.
    pub(super) async fn end(mut self) -> Result<Ended, LoadgenError> {
        let status = self.clients.status().await?;
        let (part, of_clients) = self.clients.finish().await?;
        self.notes.extend(of_clients);
        let mut own_cpu = process_cpu().saturating_sub(self.cpu_before);
        if self.are_clients_elsewhere {
            own_cpu += Duration::from_nanos(status.cpu_ns.iter().sum());
        }
        Ok(Ended { part, notes: self.notes, has_given_up: self.has_given_up, own_cpu })
    }
}

impl fmt::Debug for RunningLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningLoad").field("tag", &self.plan.tag).field("status", &self.status).finish_non_exhaustive()
    }
}

/// Processor time of this process.
fn process_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Interval between two checks of a run.
const TICK: Duration = Duration::from_millis(10);
