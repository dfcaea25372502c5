use std::pin::pin;
use std::time::{Duration, Instant};

use tenbin_codec::Secret;

use super::link::AgentLink;
use super::message::AgentMessage;
use super::stream::AgentStream;
use crate::LoadgenError;
use crate::run::clock::RunClock;
use crate::run::offset::Offset;
use crate::run::record::Part;
use crate::run::{ClientKinds, Pace, Plan, Slice, Status};
use crate::target::with_port;

/// The agents of a run, each with its slice of the plan. They replace the engine of a single-process run.
pub(crate) struct Agents {
    links: Vec<AgentLink>,
    clock: RunClock,
    /// Offsets of the agents' clocks before the run.
    before: Vec<Offset>,
    /// Whether [`AgentMessage::StopCutting`] is still to be sent.
    may_cut: bool,
    /// When the agents last got [`AgentMessage::Watching`].
    watched: Instant,
}

impl Agents {
    /// Connects to the agents at `addresses`, and goes on as [`Agents::over`].
    ///
    /// # Errors
    /// As [`Agents::over`]; also an agent that cannot be reached.
    pub(crate) async fn prepare(
        addresses: &[String],
        token: Option<&Secret<String>>,
        plan: &Plan,
        clock: RunClock,
    ) -> Result<Self, LoadgenError> {
        check_divisible(plan, addresses.len())?;
        let mut links = Vec::new();
        for address in addresses {
            let address = with_port(address, super::PORT);
            let link = watching(links.iter_mut(), AgentLink::open(&address, token)).await?;
            links.push(link);
        }
        let kinds = vec![ClientKinds::All; links.len()];
        let plans = vec![plan.clone(); links.len()];
        Self::of(links, &kinds, plans, clock).await
    }

    /// Adjusts the clocks of these agents to `clock` and lets them connect their clients.
    ///
    /// # Errors
    /// An agent refuses, or cannot connect its clients; the error names it. The plan cannot be divided.
    pub(crate) async fn over(streams: Vec<AgentStream>, plan: &Plan, clock: RunClock) -> Result<Self, LoadgenError> {
        check_divisible(plan, streams.len())?;
        let kinds: Vec<_> = streams.iter().map(|stream| stream.clients).collect();
        check_kinds(plan, &kinds)?;
        let own_plan = |stream: &AgentStream| match stream.driver.clone() {
            None => plan.clone(),
            Some((protocol, settings)) => Plan { protocol, settings, ..plan.clone() },
        };
        let plans = streams.iter().map(own_plan).collect();
        let mut links = Vec::new();
        for stream in streams {
            let link = watching(links.iter_mut(), AgentLink::over(stream)).await?;
            links.push(link);
        }
        Self::of(links, &kinds, plans, clock).await
    }

    /// `plans` has the plan of each agent: they differ in protocol and settings alone.
    async fn of(
        mut links: Vec<AgentLink>,
        kinds: &[ClientKinds],
        plans: Vec<Plan>,
        clock: RunClock,
    ) -> Result<Self, LoadgenError> {
        let before = clocks(&mut links, clock).await?;
        let may_cut = plans.iter().any(|plan| plan.cuts.is_some() && plan.publishers.count > 0);
        for (((place, link), offset), plan) in links.iter_mut().enumerate().zip(&before).zip(plans) {
            let same = |kinds: &[ClientKinds], clients| kinds.iter().filter(|other| **other == clients).count() as u32;
            let clients = kinds[place];
            let slice = Slice { index: same(&kinds[..place], clients), of: same(kinds, clients), clients };
            let (password, plan) = (plan.connection.password.clone(), Box::new(plan));
            let move_clock_ns = offset.ns.saturating_neg();
            link.send(&AgentMessage::Prepare { plan, password, slice, move_clock_ns }).await?;
        }
        for number in 0..links.len() {
            let (link, others) = one_of(&mut links, number);
            watching(others, link.ready()).await?;
        }
        Ok(Self { links, clock, before, may_cut, watched: Instant::now() })
    }

    /// Time from sending the start command to the start: long enough for it to reach all agents.
    pub(crate) fn lead(&self) -> Duration {
        let farthest = self.before.iter().map(|offset| offset.uncertainty_ns).max().unwrap_or(0);
        START_LEAD + Duration::from_nanos(farthest) * 10
    }

    /// Sets second 0 of the run to `at_unix_ns` of the controller's clock.
    ///
    /// # Errors
    /// An agent is lost, or got the start command too late.
    pub(crate) async fn start(&mut self, at_unix_ns: u64) -> Result<(), LoadgenError> {
        self.tell(|| AgentMessage::Start { at_unix_ns }).await?;
        for link in &mut self.links {
            link.started().await?;
        }
        Ok(())
    }

    /// Sum of all agents' progress, at most 20 ms old. Call it more than once a second.
    ///
    /// # Errors
    /// An agent is lost or silent, or has reported an error.
    pub(crate) async fn status(&mut self) -> Result<Status, LoadgenError> {
        if self.watched.elapsed() > WATCHING_INTERVAL {
            self.watched = Instant::now();
            self.tell(|| AgentMessage::Watching).await?;
        }
        let mut sum = Status::default();
        for link in &mut self.links {
            link.listen()?;
            sum.add(link.status());
        }
        // Each agent knows only its own publishers.
        if sum.publishing == 0 && std::mem::take(&mut self.may_cut) {
            self.tell(|| AgentMessage::StopCutting).await?;
        }
        Ok(sum)
    }

    /// Stops publishing.
    pub(crate) async fn stop_publishing(&mut self) -> Result<(), LoadgenError> {
        self.tell(|| AgentMessage::StopPublishing).await
    }

    /// Ends the run; returns the merged parts of all agents, and notes on their clocks.
    ///
    /// # Errors
    /// As [`Agents::status`].
    pub(crate) async fn finish(mut self) -> Result<(Part, Vec<String>), LoadgenError> {
        self.tell(|| AgentMessage::Finish).await?;
        let mut merged: Option<Part> = None;
        for number in 0..self.links.len() {
            let (link, others) = one_of(&mut self.links, number);
            let bytes = watching(others, link.part()).await?;
            let link = &self.links[number];
            let part = Part::from_bytes(&bytes)
                .map_err(|error| LoadgenError::agent(link.address(), format!("cannot read its records: {error}")))?;
            match &mut merged {
                Some(merged) => merged.merge(part),
                None => merged = Some(part),
            }
        }
        let after = clocks(&mut self.links, self.clock).await?;
        let mut notes = Vec::new();
        for ((link, before), after) in self.links.into_iter().zip(self.before).zip(after) {
            notes.push(note(link.address(), before, after));
            link.close().await;
        }
        Ok((merged.expect("there is at least one agent"), notes))
    }

    async fn tell(&mut self, message: impl Fn() -> AgentMessage) -> Result<(), LoadgenError> {
        for link in &mut self.links {
            link.send(&message()).await?;
        }
        Ok(())
    }
}

/// The link with this number, and all others.
fn one_of(links: &mut [AgentLink], number: usize) -> (&mut AgentLink, impl Iterator<Item = &mut AgentLink>) {
    let (before, rest) = links.split_at_mut(number);
    let (link, after) = rest.split_first_mut().expect("there are more links than this number");
    (link, before.iter_mut().chain(after))
}

/// Does `work` with one agent, and tells the others once a second that the controller is alive, or they would give up.
async fn watching<'a, T>(
    others: impl Iterator<Item = &'a mut AgentLink>,
    work: impl Future<Output = Result<T, LoadgenError>>,
) -> Result<T, LoadgenError> {
    let (mut work, mut others) = (pin!(work), others.collect::<Vec<_>>());
    loop {
        match tokio::time::timeout(WATCHING_INTERVAL, &mut work).await {
            Ok(done) => return done,
            Err(_) => {
                for other in &mut others {
                    other.send(&AgentMessage::Watching).await?;
                }
            }
        }
    }
}

/// Checks that the plan can be divided.
///
/// # Errors
/// There are no agents, or the plan is for a single process.
fn check_divisible(plan: &Plan, agents: usize) -> Result<(), LoadgenError> {
    if agents == 0 {
        return Err(LoadgenError::Arguments("--agents: want at least one HOST:PORT".to_owned()));
    }
    if agents > 1 && matches!(plan.publishers.pace, Pace::Closed { .. }) {
        // A process counts only its own subscribers' deliveries, but its messages go to all processes.
        let instead = "with several agents use --in-flight at QoS 1 or 2, or an interval";
        return Err(LoadgenError::Arguments(format!(
            "a window of outstanding deliveries is of one process: {instead}"
        )));
    }
    Ok(())
}

/// Checks that each client of the plan is at one agent.
///
/// # Errors
/// Agents with all kinds are mixed with others, or a kind has no agent.
fn check_kinds(plan: &Plan, kinds: &[ClientKinds]) -> Result<(), LoadgenError> {
    let has = |wanted: ClientKinds| kinds.contains(&wanted);
    let audiences = (0..plan.audiences.len() as u32).all(|audience| has(ClientKinds::Audience(audience)));
    let is_complete = match has(ClientKinds::All) {
        true => kinds.iter().all(|kind| *kind == ClientKinds::All),
        false => audiences && (plan.publishers.count == 0 || has(ClientKinds::Publishers)),
    };
    let problem = || LoadgenError::Arguments("the agents do not divide all clients among them".to_owned());
    is_complete.then_some(()).ok_or_else(problem)
}

/// Offsets of the agents' clocks.
///
/// Probes of one agent follow each other at once, as both sides answer quickest while awake. The agents take turns, so
/// that a brief disturbance of a machine affects few probes of each.
async fn clocks(links: &mut [AgentLink], clock: RunClock) -> Result<Vec<Offset>, LoadgenError> {
    let mut probes = vec![Vec::new(); links.len()];
    for _ in 0..PROBE_ROUNDS {
        for (link, probes) in links.iter_mut().zip(&mut probes) {
            for _ in 0..PROBES {
                probes.push(link.probe(clock).await?);
            }
        }
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    Ok(probes.iter().map(|probes| Offset::of(probes).expect("each was asked")).collect())
}

/// Note on the clock of the agent at `address`, for readers of latencies.
fn note(address: &str, before: Offset, after: Offset) -> String {
    let drift_ns = after.ns - before.ns;
    let drift = format!("{:+.3} ms by the end", drift_ns as f64 / 1e6);
    // A change below the measurement's uncertainty is not drift.
    let is_known = drift_ns.unsigned_abs() > before.uncertainty_ns + after.uncertainty_ns;
    let warning = match is_known && drift_ns.unsigned_abs() > DRIFT_LIMIT_NS {
        true => "; latencies across machines are wrong by up to as much",
        false => "",
    };
    format!("clock of agent {address}: {before}, set right; {drift}{warning}")
}

const PROBE_ROUNDS: usize = 4;
const PROBES: usize = 10;
const PROBE_PAUSE: Duration = Duration::from_millis(100);
const START_LEAD: Duration = Duration::from_millis(200);
const WATCHING_INTERVAL: Duration = Duration::from_secs(1);

/// Drift above this adds a warning, in nanoseconds.
const DRIFT_LIMIT_NS: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_reports_clock_offset_and_warns_of_drift() {
        let offset = |ns| Offset { ns, uncertainty_ns: 30_000 };
        assert_eq!(
            note("lab:4500", offset(300_000_000), offset(300_020_000)),
            "clock of agent lab:4500: 300.000 ms ahead (±0.030 ms), set right; +0.020 ms by the end"
        );
        let note = note("lab:4500", offset(-2_000_000), offset(-2_700_000));
        assert!(note.ends_with("-0.700 ms by the end; latencies across machines are wrong by up to as much"), "{note}");
    }
}
