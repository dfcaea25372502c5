use std::sync::Arc;
use std::time::Duration;

use tenbin_codec::Secret;

use super::agents::{AgentStream, Agents};
use super::clock::RunClock;
use super::driver::{Assignment, DriverRun, Drivers};
use super::{Layout, Part, Plan, Slice, Status};
use crate::LoadgenError;

/// Where the clients of a run are.
#[derive(Debug)]
pub(super) enum ClientHost<'a> {
    /// In this process, over one of these drivers.
    Here(&'a Drivers),
    /// At agents that listen at these addresses.
    Agents { addresses: &'a [String], token: Option<&'a Secret<String>> },
    /// At agents at the ends of these streams.
    Streams(Vec<AgentStream>),
}

/// All connected clients of a run, in this process or at agents.
pub(super) enum Clients {
    /// In this process.
    Here(Box<dyn DriverRun>),
    /// In other processes.
    AtAgents(Agents),
}

impl Clients {
    /// Connects all clients.
    ///
    /// # Errors
    /// As [`Driver::prepare`](super::Driver::prepare) and [`Agents::prepare`].
    pub(super) async fn prepare(
        plan: &Plan,
        layout: Arc<Layout>,
        host: ClientHost<'_>,
        clock: RunClock,
    ) -> Result<Self, LoadgenError> {
        match host {
            ClientHost::Here(drivers) => {
                let driver = drivers.get(&plan.protocol)?;
                let plan = Arc::new(plan.clone());
                driver.prepare(Assignment { plan, layout, slice: Slice::ALL, clock }).await.map(Self::Here)
            }
            ClientHost::Agents { addresses, token } => {
                Agents::prepare(addresses, token, plan, clock).await.map(Self::AtAgents)
            }
            ClientHost::Streams(streams) => Agents::over(streams, plan, clock).await.map(Self::AtAgents),
        }
    }

    /// Time from the start command to the start, so that all threads are awake and all agents have received it.
    pub(super) fn lead(&self) -> Duration {
        match self {
            Self::Here(_) => Duration::from_millis(20),
            Self::AtAgents(agents) => agents.lead(),
        }
    }

    /// Sets second 0 of the run to `start_ns` of the run's clock.
    ///
    /// # Errors
    /// An agent is lost.
    pub(super) async fn start(&mut self, start_ns: u64) -> Result<(), LoadgenError> {
        match self {
            Self::Here(clients) => {
                clients.start(start_ns);
                Ok(())
            }
            Self::AtAgents(agents) => agents.start(start_ns).await,
        }
    }

    /// Progress of all clients together.
    ///
    /// # Errors
    /// A connection was lost without a cut; an agent is lost.
    pub(super) async fn status(&mut self) -> Result<Status, LoadgenError> {
        match self {
            Self::Here(clients) => clients.take_failure().map_or_else(|| Ok(clients.status()), Err),
            Self::AtAgents(agents) => agents.status().await,
        }
    }

    /// Stops publishing: publishers finish begun messages and start no new ones.
    ///
    /// # Errors
    /// An agent is lost.
    pub(super) async fn stop_publishing(&mut self) -> Result<(), LoadgenError> {
        match self {
            Self::Here(clients) => {
                clients.stop_publishing();
                Ok(())
            }
            Self::AtAgents(agents) => agents.stop_publishing().await,
        }
    }

    /// Closes all connections; returns the results and notes on them.
    ///
    /// # Errors
    /// As [`Clients::status`].
    pub(super) async fn finish(self) -> Result<(Part, Vec<String>), LoadgenError> {
        match self {
            Self::Here(clients) => clients.finish().await.map(|part| (part, Vec::new())),
            Self::AtAgents(agents) => agents.finish().await,
        }
    }
}
