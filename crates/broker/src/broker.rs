use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::Config;
use crate::expiry::ExpiryQueue;
use crate::metrics::MetricsSnapshot;
use crate::net;
use crate::outbox::Control;
use crate::shared::Shared;
use crate::sys_topics;

/// A running broker. Dropping it stops listening at once; [`Broker::shutdown`] also says goodbye to the clients.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// Listeners and the expiry queue; ended with the broker.
    tasks: JoinSet<()>,
}

/// Sets a broker up.
#[derive(Debug, Default)]
pub struct BrokerBuilder {
    config: Config,
}

/// The broker cannot start.
#[derive(Debug)]
pub struct StartError {
    address: SocketAddr,
    error: io::Error,
}

impl BrokerBuilder {
    /// Takes the place of [`Config::default`].
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config }
    }

    /// Opens the listeners and begins to serve, on the tokio runtime that this is called on.
    ///
    /// # Errors
    /// An address that cannot be listened on; then none is.
    pub async fn start(self) -> Result<Broker, StartError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for &address in &self.config.listen {
            let failed = |error| StartError { address, error };
            let listener = net::bind(address).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let shared = Arc::new(Shared::new(self.config));
        let mut tasks = JoinSet::new();
        tasks.spawn(ExpiryQueue::run(Arc::clone(&shared)));
        if let Some(interval) = shared.config.sys_interval() {
            tasks.spawn(sys_topics::run(Arc::clone(&shared), interval));
        }
        for listener in listeners {
            tasks.spawn(net::run(Arc::clone(&shared), listener));
        }
        Ok(Broker { shared, addresses, tasks })
    }
}

impl Broker {
    /// Begins to set a broker up.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder::default()
    }

    /// Where it listens, in the order of [`Config::listen`], with the ports that were taken for 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How it is set up.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The counters now.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.shared.metrics.snapshot()
    }

    /// Network Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Sessions, connected or not.
    pub fn sessions(&self) -> usize {
        self.shared.registry.len()
    }

    /// Stops: no new connections; every client gets DISCONNECT 0x8B (v5) and is closed. Returns when all are, or
    /// after five seconds.
    pub async fn shutdown(mut self) {
        self.shared.stopping.send_replace(true);
        self.tasks.shutdown().await;
        let patience = tokio::time::Instant::now() + SHUTDOWN;
        while self.connections() > 0 && tokio::time::Instant::now() < patience {
            // Again and again: one that was between CONNECT and its first wait may have missed it.
            self.shared.registry.for_each(|client| client.outbox.control(Control::ShuttingDown));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.error)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

const SHUTDOWN: Duration = Duration::from_secs(5);
