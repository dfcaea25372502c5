use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::Config;
use crate::auth::{Access, AccessError, Authenticator, Authorizer, Settings, enforcement};
use crate::config::NotTaken;
use crate::durable::{self, Durable, StoreError};
use crate::expiry::{self, ExpiryQueue};
use crate::log_limiter::LogLimiter;
use crate::long_ends::LongEnds;
use crate::metrics::MetricsSnapshot;
use crate::net;
use crate::outbox::Control;
use crate::router;
use crate::shared::Shared;
use crate::threads::{self, Running, Threads};
use crate::{descriptors, slow_receivers, sys_share, sys_topics};

/// A running broker. Dropping it stops listening at once; [`Broker::shutdown`] also says goodbye to the clients.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    /// As it was started with: the shared one may be bounded further.
    configured: Config,
    addresses: Vec<SocketAddr>,
    /// Name of the first listener, if there is one.
    first_listener: Option<Arc<str>>,
    /// Listeners and what is due later; ended with the broker.
    tasks: JoinSet<()>,
    /// Ends sessions of clients that leave, so it outlives their connections.
    _long_ends: JoinSet<()>,
    /// Those of [`BrokerBuilder::threads`].
    _threads: Option<Running>,
}

/// Sets a broker up.
#[derive(Default)]
pub struct BrokerBuilder {
    config: Config,
    authenticator: Option<Arc<dyn Authenticator>>,
    authorizer: Option<Arc<dyn Authorizer>>,
    threads: Option<usize>,
    store: Option<PathBuf>,
    log_limiter: Option<Arc<LogLimiter>>,
    is_restless: bool,
}

/// The broker cannot start; its text is one line.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// An address that cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// What is configured of access cannot be used.
    Access(AccessError),
    /// The system gives no threads.
    Threads(io::Error),
    /// What is to be kept cannot be, or what was kept cannot be read.
    Store(StoreError),
}

impl BrokerBuilder {
    /// Takes the place of [`Config::default`].
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Decides who connects, in the place of the configured password files.
    #[must_use]
    pub fn authenticator(self, authenticator: impl Authenticator) -> Self {
        Self { authenticator: Some(Arc::new(authenticator)), ..self }
    }

    /// Decides who may do what, in the place of the configured ACL.
    #[must_use]
    pub fn authorizer(self, authorizer: impl Authorizer) -> Self {
        Self { authorizer: Some(Arc::new(authorizer)), ..self }
    }

    /// Serves connections on threads of the broker's own, at most so many (1 to 256), instead of on the runtime that it is
    /// started on. As few are at work as there is work for: connections move from one to another. The threads end with the
    /// [`Broker`], and connections that are still open with them: [`Broker::shutdown`] ends those first. Each has a runtime
    /// of one thread: what an [`Authenticator`] or [`Authorizer`] does there keeps all its connections waiting.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Keeps in this directory what is to outlive the broker, and takes over what is there: sessions with their
    /// subscriptions and the messages that wait for them, retained messages, Wills. The directory is made if it is not there, and is this broker's alone as long
    /// as it runs. [`Config`] says when what is written is safe; its own directory is not looked at. Without a store nothing
    /// is kept.
    #[must_use]
    pub fn store(self, directory: impl Into<PathBuf>) -> Self {
        Self { store: Some(directory.into()), ..self }
    }

    /// Has the broker log, and count below `$SYS/`, the lines that `limiter` suppresses. The subscriber that writes the log asks
    /// `limiter` before each line with the field `peer`; without one nothing is suppressed.
    #[must_use]
    pub fn log_limiter(self, limiter: Arc<LogLimiter>) -> Self {
        Self { log_limiter: Some(limiter), ..self }
    }

    /// For tests: connections move on and on, whether or not there is a reason.
    #[doc(hidden)]
    #[must_use]
    pub fn restless(self) -> Self {
        Self { is_restless: true, ..self }
    }

    /// Opens the listeners and begins to serve, on the tokio runtime that this is called on or on
    /// [`threads`](Self::threads).
    ///
    /// # Errors
    /// An address that cannot be listened on (then none is), or a password file that cannot be used, or threads that the
    /// system does not give, or a store that cannot be had or read.
    pub async fn start(mut self) -> Result<Broker, StartError> {
        let is_configured_only = self.authenticator.is_none();
        let given = self.config.clone();
        let settings = Settings::load(&self.config, is_configured_only).map_err(StartError::Access)?;
        let access = move |settings, key| Access::new(settings, key, self.authenticator, self.authorizer);
        let (threads, running) = self.threads.map(Threads::start).transpose().map_err(StartError::Threads)?.unzip();
        let listening = threads.as_ref().map_or_else(Handle::current, |threads| threads.first().clone());
        if self.store.is_some() {
            self.config.bound_names(durable::NAME_BYTES_MAX);
        }
        let configured = self.config.all_listeners().collect::<Vec<_>>();
        let mut shared = begin(self.config, settings, access, is_configured_only, threads, self.store).await?;
        if let Some(log_limiter) = self.log_limiter {
            shared.log_limiter = log_limiter;
        }
        let shared = Arc::new(shared);
        // Whoever connects while the rest is done waits a moment.
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for configured in configured {
            let failed = |error| StartError::Listen(configured.address, error);
            let _there = listening.enter();
            let listener = net::bind(configured.address, &shared.config).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push((listener, configured.name()));
        }
        // Last of what may fail: it publishes Wills, and they are gone from the disk then.
        load(&shared).await?;
        descriptors::log_lowered(shared.config.connections.maximum, shared.connections_maximum);
        let mut long_ends = JoinSet::new();
        long_ends.spawn(LongEnds::run(Arc::clone(&shared)));
        let mut tasks = JoinSet::new();
        tasks.spawn(threads::run(Arc::clone(&shared), self.is_restless));
        tasks.spawn(ExpiryQueue::run(Arc::clone(&shared)));
        tasks.spawn(expiry::sweep_retained(Arc::clone(&shared)));
        tasks.spawn(slow_receivers::run(Arc::clone(&shared)));
        let log_limiter = Arc::clone(&shared.log_limiter);
        tasks.spawn(async move { log_limiter.run().await });
        if shared.durable.is_some() {
            tasks.spawn(durable::keep_speeds(Arc::clone(&shared)));
            tasks.spawn(durable::watch_messages(Arc::clone(&shared)));
            tasks.spawn(durable::forget_wills(Arc::clone(&shared)));
            tasks.spawn(router::read_again(Arc::clone(&shared)));
        }
        if let Some(interval) = shared.config.sys_interval() {
            tasks.spawn(sys_topics::run(Arc::clone(&shared), interval));
            tasks.spawn(sys_share::run(Arc::clone(&shared), interval));
        }
        let first_listener = listeners.first().map(|(_, name)| Arc::clone(name));
        for (listener, name) in listeners {
            tasks.spawn_on(net::run(Arc::clone(&shared), listener, name), &listening);
        }
        Ok(Broker {
            shared,
            configured: given,
            addresses,
            first_listener,
            tasks,
            _long_ends: long_ends,
            _threads: running,
        })
    }
}

/// The broker's shared part with its store, of which nothing is taken over yet.
async fn begin(
    config: Config,
    mut settings: Settings,
    access: impl FnOnce(Settings, [u8; 32]) -> Access + Send + 'static,
    is_configured_only: bool,
    threads: Option<Threads>,
    store: Option<PathBuf>,
) -> Result<Shared, StartError> {
    let Some(directory) = store else {
        return Ok(Shared::new(config, access(settings, durable::new_secret()), is_configured_only, threads, None));
    };
    let work = move || {
        let durable = Durable::open_bounded(&directory, config.store.sync(), config.store.bytes_maximum())?
            .publishers_wait(config.store.publishers_wait);
        let durable = Arc::new(durable);
        let (known, key) = (durable.realms(), durable.scram_key());
        settings.recall(&known);
        if settings.realms() != known {
            durable.keep_realms(settings.realms());
        }
        Ok(Shared::new(config, access(settings, key), is_configured_only, threads, Some(durable)))
    };
    on_disk(work).await
}

/// Takes over what was kept of the last run: nobody is connected yet.
async fn load(shared: &Arc<Shared>) -> Result<(), StartError> {
    let Some(durable) = shared.durable.clone() else { return Ok(()) };
    let shared = Arc::clone(shared);
    on_disk(move || durable::load(&shared, &durable)).await
}

/// Work that waits for the disk.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StartError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(StartError::Store),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Broker {
    /// Begins to set a broker up.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder::default()
    }

    /// Where it listens, in the order of [`Config::listen`] and then [`Config::listeners`], with the ports that were taken for 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves a client at the other end of `stream`, which may be memory (`tokio::io::duplex`), as one that came from
    /// `peer` through the first listener. Returns at once: its task runs on the runtime that this is called on. The stream
    /// is dropped when the connection is over, and at once where there is no room for it or no listener at all.
    pub fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr) {
        if let Some(name) = &self.first_listener {
            net::serve(&self.shared, net::Foreign(stream), peer, name, None);
        }
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

    /// Takes over what `config` says of share groups, by what they choose, and of access: who may come in through which listener, with which password files,
    /// and the ACL. What this takes away stops at once: clients whose credentials do not hold any more are
    /// disconnected, sessions of users who are not known get no new messages, and subscriptions deliver only what is allowed. A
    /// share member that may be one again is so as soon as its connection has noticed. Share groups keep their
    /// members, and lose no message. What load reports are taken from is taken over for connections that begin from
    /// now on. Listeners are known by their names. What differs in the rest of `config` is not taken: each such key is logged.
    ///
    /// # Errors
    /// Something in it cannot be used, or it does not name a listener that is open; then all stays as it is.
    pub fn reload(&self, config: &Config) -> Result<(), AccessError> {
        let realms = enforcement::reload(&self.shared, config)?;
        self.shared.router.set_share_rules(config.share_rules());
        self.shared.report_carriers.replace(config);
        for NotTaken { key, old, new } in self.configured.not_taken(config) {
            tracing::warn!(key, old, new, "reload does not change this key: restart the broker");
        }
        // Last, since it waits for the disk.
        if let Some((realms, durable)) = realms.zip(self.shared.durable.as_ref()) {
            durable.keep_realms(&realms);
        }
        Ok(())
    }

    /// As [`Broker::reload`], after the rules of an [`Authenticator`] or [`Authorizer`] of your own have changed.
    pub fn reauthorize(&self) {
        enforcement::changed(&self.shared);
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
        self.shared.log_limiter.log_rest();
        durable::keep_speeds_now(&self.shared);
        if let Some(durable) = self.shared.durable.clone() {
            let _ = tokio::time::timeout(SHUTDOWN, durable.end_reading()).await;
            let written = tokio::task::spawn_blocking(move || durable.flush(SHUTDOWN)).await;
            if !written.unwrap_or(false) {
                tracing::error!("the last changes of the state could not be written");
            }
        }
    }
}

impl fmt::Debug for BrokerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Access(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start threads: {error}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen(_, error) => Some(error),
            Self::Access(error) => Some(error),
            Self::Threads(error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

const SHUTDOWN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
