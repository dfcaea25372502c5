use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::agents::Agents;
use super::clock::RunClock;
use super::engine::{Engine, Slice, Status};
use super::execute::ExecuteOptions;
use super::{Broker, Layout, Part, Plan};
use crate::LoadgenError;

/// All connected clients of a run, in this process or at agents.
pub(super) enum Clients {
    /// In this process.
    Here(Engine),
    /// In other processes. The addresses of each broker, as this machine resolves them, help to find its process.
    AtAgents(Agents, Vec<Vec<SocketAddr>>),
}

impl Clients {
    /// Connects all clients.
    ///
    /// # Errors
    /// As [`Engine::prepare`] and [`Agents::prepare`].
    pub(super) async fn prepare(
        plan: &Plan,
        layout: Arc<Layout>,
        options: &ExecuteOptions,
        clock: RunClock,
    ) -> Result<Self, LoadgenError> {
        if options.agents.is_empty() {
            return Engine::prepare(Arc::new(plan.clone()), layout, Slice::ALL, clock).await.map(Self::Here);
        }
        let agents = Agents::prepare(&options.agents, options.token.as_deref(), plan, clock).await?;
        let mut addresses = Vec::new();
        for broker in &plan.brokers {
            addresses.push(addresses_of(broker).await);
        }
        Ok(Self::AtAgents(agents, addresses))
    }

    /// All addresses of a broker; none if this machine cannot resolve its name.
    pub(super) fn addresses(&self, broker: usize) -> &[SocketAddr] {
        match self {
            Self::Here(engine) => engine.addresses(broker),
            Self::AtAgents(_, addresses) => &addresses[broker],
        }
    }

    /// Time from the start command to the start, so that all threads are awake and all agents have received it.
    pub(super) fn lead(&self) -> Duration {
        match self {
            Self::Here(_) => Duration::from_millis(20),
            Self::AtAgents(agents, _) => agents.lead(),
        }
    }

    /// Sets second 0 of the run to `start_ns` of the run's clock.
    ///
    /// # Errors
    /// An agent is lost.
    pub(super) async fn start(&mut self, start_ns: u64) -> Result<(), LoadgenError> {
        match self {
            Self::Here(engine) => {
                engine.start(start_ns);
                Ok(())
            }
            Self::AtAgents(agents, _) => agents.start(start_ns).await,
        }
    }

    /// Progress of all clients together.
    ///
    /// # Errors
    /// A connection was lost without a cut; an agent is lost.
    pub(super) async fn status(&mut self) -> Result<Status, LoadgenError> {
        match self {
            Self::Here(engine) => engine.take_failure().map_or_else(|| Ok(engine.status()), Err),
            Self::AtAgents(agents, _) => agents.status().await,
        }
    }

    /// Stops publishing: publishers finish begun messages and start no new ones.
    ///
    /// # Errors
    /// An agent is lost.
    pub(super) async fn stop_publishing(&mut self) -> Result<(), LoadgenError> {
        match self {
            Self::Here(engine) => {
                engine.stop_publishing();
                Ok(())
            }
            Self::AtAgents(agents, _) => agents.stop_publishing().await,
        }
    }

    /// Closes all connections; returns the results and notes on them.
    ///
    /// # Errors
    /// As [`Clients::status`].
    pub(super) async fn finish(self) -> Result<(Part, Vec<String>), LoadgenError> {
        match self {
            Self::Here(engine) => engine.finish().await.map(|part| (part, Vec::new())),
            Self::AtAgents(agents, _) => agents.finish().await,
        }
    }
}

/// Addresses of a broker; none if only the agents can resolve its name.
async fn addresses_of(broker: &Broker) -> Vec<SocketAddr> {
    tokio::net::lookup_host((broker.host.as_str(), broker.port)).await.map(Iterator::collect).unwrap_or_default()
}
