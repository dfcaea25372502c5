#[cfg_attr(not(feature = "admin"), path = "broker/no_admin.rs")]
mod administered;
mod check;
mod drain;
mod error;
mod handle;
mod listeners;
mod relays;
mod reload;
mod sockets;
mod stop;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tenbin_balancer::Choosers;
use tenbin_store::mirror::Mirror;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime;
use tokio::task::JoinSet;

use crate::Config;
use crate::auth::{Access, Authenticator, Authorizer, Settings};
use crate::config::{ConfigError, ListenAddress};
use crate::durable::{self, Durable, StoreError};
use crate::gateways::Gateways;
use crate::hooks::{Events, Handle, HookSet, Hooks};
use crate::lease::Lease;
use crate::lifecycle::{self, BrokerState, Leadership, enforcement};
use crate::log_limiter::LogLimiter;
use crate::metrics::MetricsSnapshot;
use crate::net::{self, Embedded, ListeningSocket};
use crate::threads::{Running, Threads};
use crate::values::TransportProtocol;
use crate::webhooks::{Sending, Webhooks};
use crate::{descriptors, tasks};
use administered::Operators;
pub use check::ConfigCheck;
pub use error::{ReloadError, StartError};
use handle::Embedding;
use listeners::Listeners;
pub use sockets::OpenSockets;

/// A running broker. Dropping it stops listening at once; [`Broker::shutdown`] also disconnects the clients in order.
#[derive(Debug)]
pub struct Broker {
    parts: Arc<Parts>,
    handle: Handle,
    operators: Operators,
    /// Periodic tasks; they end with the broker.
    jobs: JoinSet<()>,
    /// They end with the broker, and at a shutdown after its last events.
    webhooks: Sending,
    /// Ends sessions of clients that leave, so it outlives their connections.
    long_ends: JoinSet<()>,
    /// Threads of [`BrokerBuilder::threads`].
    _threads: Option<Running>,
}

/// Parts of a broker that a [`Handle`] uses too.
#[derive(Debug)]
struct Parts {
    shared: Arc<BrokerState>,
    /// Configuration as given at the start; the shared one may have lower bounds.
    configured: Config,
    listeners: Mutex<Listeners>,
    admin_tls: administered::Tls,
    /// Configuration that the last reload applied. Held by a reload from before it reads; it takes the listeners only when it has read all
    /// files and looked up all names.
    in_effect: Mutex<Config>,
    /// The last reload failed.
    is_reload_failed: AtomicBool,
    on_reload: reload::OnReload,
}

/// Builder of a [`Broker`].
#[derive(Default)]
pub struct BrokerBuilder {
    config: Config,
    authenticator: Option<Arc<dyn Authenticator>>,
    authorizer: Option<Arc<dyn Authorizer>>,
    threads: Option<usize>,
    store: Option<PathBuf>,
    log_limiter: Option<Arc<LogLimiter>>,
    hooks: HookSet,
    gateways: Option<Arc<dyn Gateways>>,
    sockets: OpenSockets,
    lease: Lease,
    is_restless: bool,
    mirror: Option<Arc<Mirror>>,
    on_reload: reload::OnReload,
    operators: administered::Wanted,
}

impl BrokerBuilder {
    /// Replaces [`Config::default`].
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Decides which clients may connect, instead of the configured password files.
    #[must_use]
    pub fn authenticator(self, authenticator: impl Authenticator) -> Self {
        Self { authenticator: Some(Arc::new(authenticator)), ..self }
    }

    /// Decides which actions a client may perform, instead of the configured ACL.
    #[must_use]
    pub fn authorizer(self, authorizer: impl Authorizer) -> Self {
        Self { authorizer: Some(Arc::new(authorizer)), ..self }
    }

    /// Serves connections on at most `threads` (1 to 256) threads of the broker's own, instead of on the runtime that
    /// calls [`start`](Self::start).
    ///
    /// Only as many threads are active as the load needs; connections move between them. The threads end with the
    /// [`Broker`] and close connections that are still open: [`Broker::shutdown`] ends those first. Each thread has a
    /// single-threaded runtime, so an [`Authenticator`] or [`Authorizer`] that blocks delays all connections of its
    /// thread.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Stores state in `directory` and restores the state found there. Without this, and without `directory` of
    /// `[store]` in a parsed configuration, the broker keeps nothing.
    ///
    /// The state is sessions with their subscriptions and queued messages, retained messages and Wills. The broker
    /// creates the directory if it does not exist and holds it exclusively while it runs. `directory` overrides the
    /// directory in [`Config`]; the other store settings come from there.
    #[must_use]
    pub fn store(self, directory: impl Into<PathBuf>) -> Self {
        Self { store: Some(directory.into()), ..self }
    }

    /// Keeps a second copy of the store on another machine: see [`Mirror`].
    #[must_use]
    pub fn mirror(self, mirror: Arc<Mirror>) -> Self {
        Self { mirror: Some(mirror), ..self }
    }

    /// Logs, and counts below `$SYS/`, the lines that `limiter` suppresses.
    ///
    /// The subscriber that writes the log asks `limiter` before each line with the field `peer`. Without a limiter no
    /// line is suppressed.
    #[must_use]
    pub fn log_limiter(self, limiter: Arc<LogLimiter>) -> Self {
        Self { log_limiter: Some(limiter), ..self }
    }

    /// Adds code of the embedding program at the broker's events, behind hooks that were added before.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks.add(Box::new(hooks));
        self
    }

    /// Adds policies of the program's own for share groups. [`Config::parse_for`] reads their names in `policy` and
    /// `shadow`; in code, [`Config::policy`] and a [`ShareRule`](crate::config::ShareRule) take the results of [`Choosers::add`].
    ///
    /// A chooser that panics chooses no member, so that [`Policy::Adaptive`](crate::Policy::Adaptive) chooses.
    #[must_use]
    pub fn choosers(mut self, choosers: Choosers) -> Self {
        self.hooks.set_choosers(choosers);
        self
    }

    /// Opens listeners with `transport = "mqtt-sn"` or `"http"`, which a broker without it refuses.
    #[must_use]
    pub fn gateways(self, gateways: impl Gateways) -> Self {
        Self { gateways: Some(Arc::new(gateways)), ..self }
    }

    /// Moves connections between threads all the time, without a reason. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn restless(self) -> Self {
        Self { is_restless: true, ..self }
    }

    /// Takes the tables `[store]` and `[admin]` of a parsed configuration, unless the program has said otherwise.
    fn take_tables(&mut self) -> Result<(), StartError> {
        let Config { source, store, admin, .. } = &self.config;
        if self.store.is_none() && source.has_store() && !store.directory.as_os_str().is_empty() {
            if source.has_store_directory() {
                self.store = Some(store.directory.clone());
            } else {
                tracing::warn!("[store] has no effect without store.directory: the broker stores nothing");
            }
        }
        if source.has_admin() && !admin.address.is_empty() {
            self.operators.configured()?;
        }
        Ok(())
    }

    /// Opens the listeners and serves clients, on the calling tokio runtime or on [`threads`](Self::threads).
    ///
    /// # Errors
    /// The broker cannot listen on an address (then it listens on none), use a password file, start its threads, or
    /// open and read its store.
    pub async fn start(mut self) -> Result<Broker, StartError> {
        self.take_tables()?;
        let is_configured_only = self.authenticator.is_none();
        let given = self.config.clone();
        let settings = Settings::load(&self.config, is_configured_only).map_err(StartError::Access)?;
        let doors = net::Doors::load(&self.config).map_err(StartError::Tls)?;
        let admin_tls = self.operators.tls(&self.config).map_err(StartError::Tls)?;
        let access = move |settings, key| Access::new(settings, key, self.authenticator, self.authorizer);
        let (threads, running) = self.threads.map(Threads::start).transpose().map_err(StartError::Threads)?.unzip();
        let listening = threads.as_ref().map_or_else(runtime::Handle::current, |threads| threads.first().clone());
        if self.store.is_some() {
            self.config.bound_names(durable::NAME_BYTES_MAX);
        }
        // Bind first: a broker that cannot listen creates no data directory, and clients that connect while the state is
        // loaded wait in the listen backlog.
        let listeners = Listeners::new(listening, self.gateways.clone());
        let unopened = listeners.unopened(&given);
        let mut sockets = self.sockets;
        let sockets =
            blocking(move || sockets.look_up(&unopened).map(|()| sockets)).await.map_err(StartError::Listen)?;
        let prepared = listeners.prepare(&given, doors, sockets, &given)?;
        let webhooks = Webhooks::load(&given, &mut self.hooks).map_err(StartError::Webhook)?;
        let hooks = Arc::new(self.hooks);
        let store = self.store.map(|directory| (directory, self.mirror));
        let mut shared = begin(self.config, settings, access, is_configured_only, threads, store, hooks).await?;
        if let Some(log_limiter) = self.log_limiter {
            shared.operations.log_limiter = log_limiter;
        }
        shared.admission.gateways = self.gateways;
        shared.operations.leadership = Leadership::new(self.lease);
        let shared = Arc::new(shared);
        let webhooks = webhooks.start(&shared.operations.metrics);
        let parts = Arc::new(Parts {
            shared: Arc::clone(&shared),
            in_effect: Mutex::new(given.clone()),
            is_reload_failed: AtomicBool::new(false),
            on_reload: self.on_reload,
            configured: given,
            listeners: Mutex::new(listeners),
            admin_tls,
        });
        let operators = self.operators.begin(&parts)?;
        // Last of the fallible steps: it publishes Wills and removes them from the disk.
        load(&shared).await?;
        descriptors::log_lowered(shared.config.connections.maximum, shared.admission.connections_maximum);
        let mut long_ends = JoinSet::new();
        long_ends.spawn(tasks::long_ends::run(Arc::clone(&shared)));
        let mut jobs = JoinSet::new();
        jobs.spawn(tasks::thread_scaler::run(Arc::clone(&shared), self.is_restless));
        jobs.spawn(tasks::expiry::run(Arc::clone(&shared)));
        jobs.spawn(tasks::expiry::sweep_retained(Arc::clone(&shared)));
        jobs.spawn(tasks::slow_consumers::run(Arc::clone(&shared)));
        jobs.spawn(tasks::standing_groups::run(Arc::clone(&shared)));
        jobs.spawn(tasks::drops::run(Arc::clone(&shared)));
        let log_limiter = Arc::clone(&shared.operations.log_limiter);
        jobs.spawn(async move { log_limiter.run().await });
        jobs.spawn(tasks::group_backlogs::run(Arc::clone(&shared)));
        jobs.spawn(tasks::due_groups::run(Arc::clone(&shared)));
        jobs.spawn(tasks::dead_letters::run(Arc::clone(&shared)));
        if shared.storage.durable.is_some() {
            jobs.spawn(tasks::due_groups::find_paused(Arc::clone(&shared)));
            jobs.spawn(tasks::speeds::run(Arc::clone(&shared)));
            jobs.spawn(tasks::store_health::run(Arc::clone(&shared)));
            jobs.spawn(tasks::wills::run(Arc::clone(&shared)));
        }
        if let Some(interval) = shared.config.sys_interval() {
            jobs.spawn(tasks::sys_topics::run(Arc::clone(&shared), interval));
            jobs.spawn(tasks::sys_share::run(Arc::clone(&shared), interval));
        }
        parts.listeners().switch(prepared, &shared);
        parts.listeners().run_bridges(&parts.configured, &shared);
        operators.begin_to_serve();
        let handle = Handle::new(Arc::new(Embedding(Arc::downgrade(&parts))));
        shared.operations.hooks.tell(Events::STARTED, |hooks| hooks.started(&handle));
        Ok(Broker { parts, handle, operators, jobs, webhooks, long_ends, _threads: running })
    }
}

/// Opens the store and builds the shared state; [`load`] restores the sessions later.
async fn begin(
    config: Config,
    mut settings: Settings,
    access: impl FnOnce(Settings, [u8; 32]) -> Access + Send + 'static,
    is_configured_only: bool,
    threads: Option<Threads>,
    store: Option<(PathBuf, Option<Arc<Mirror>>)>,
    hooks: Arc<HookSet>,
) -> Result<BrokerState, StartError> {
    if let Some(key) = config.idle_key() {
        tracing::warn!("{key} has no effect: a client may restore all of its subscriptions in one packet");
    }
    let Some((directory, mirror)) = store else {
        return Ok(BrokerState::new(
            config,
            access(settings, durable::new_secret()),
            is_configured_only,
            threads,
            None,
            hooks,
        ));
    };
    let work = move || {
        let (sync, bytes_maximum) = (config.store.sync(), config.store.bytes_maximum());
        let durable = Durable::open_mirrored(&directory, sync, bytes_maximum, mirror.as_ref())?;
        let durable = Arc::new(durable.publishers_wait(config.store.publishers_wait));
        let (known, key) = (durable.realms(), durable.scram_key());
        settings.recall(&known);
        if settings.realms() != known {
            durable.keep_realms(settings.realms());
        }
        Ok(BrokerState::new(config, access(settings, key), is_configured_only, threads, Some(durable), hooks))
    };
    on_disk(work).await
}

/// Creates the standing share groups, and restores the stored state of the last run, before any client connects.
async fn load(shared: &Arc<BrokerState>) -> Result<(), StartError> {
    let Some(durable) = shared.storage.durable.clone() else {
        shared.routing.router.stand(Vec::new);
        return Ok(());
    };
    let shared = Arc::clone(shared);
    on_disk(move || lifecycle::restore(&shared, &durable)).await
}

/// Runs blocking disk work off the async threads.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StartError> {
    blocking(work).await.map_err(StartError::Store)
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Broker {
    /// Returns a builder with the default configuration.
    pub fn builder() -> BrokerBuilder {
        BrokerBuilder::default()
    }

    /// Addresses of [`Config::listen`] and then [`Config::listeners`], in order, with the actual ports instead of 0.
    ///
    /// A listener with a name that resolves to several addresses has them all; unix sockets are left out.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.parts.listeners().sockets().filter_map(ListeningSocket::ip).collect()
    }

    /// As [`Broker::addresses`], with unix sockets.
    pub fn listening(&self) -> Vec<ListenAddress> {
        self.parts.listeners().sockets().map(|socket| socket.address().clone()).collect()
    }

    /// The broker for other parts of the program, and for hooks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Address of the admin interface, as a URL or `unix:PATH`; `None` = there is none.
    pub fn admin_url(&self) -> Option<String> {
        self.operators.url()
    }

    /// Serves a client over `stream`, which may be in memory (`tokio::io::duplex`), as if it had come from `peer`
    /// through the first listener.
    ///
    /// Returns at once; the connection's task runs on the calling runtime. The broker drops the stream when the
    /// connection ends, or at once if there is no listener or no room for another connection.
    pub fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr) {
        let first_listener = self.parts.listeners().first();
        if let Some(name) = first_listener {
            let stream = Embedded::new(Box::new(stream), TransportProtocol::Embedded);
            net::serve(&self.parts.shared, stream, peer.into(), &name, None);
        }
    }

    /// Configuration in effect.
    pub fn config(&self) -> &Config {
        &self.parts.shared.config
    }

    /// Current values of the counters.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.parts.shared.operations.metrics.snapshot()
    }

    /// Number of open Network Connections.
    pub fn connections(&self) -> usize {
        self.parts.shared.admission.connections.load(Ordering::Relaxed)
    }

    /// Number of sessions, connected or not.
    pub fn sessions(&self) -> usize {
        self.parts.shared.sessions.registry.len()
    }

    /// Applies the listeners, the share-group rules and the access rules of `config`, and reads all files again.
    ///
    /// Opens new listeners and closes those that `config` lacks. Connections stay, with the settings of their listener:
    /// the last ones of a closed listener. Reads files and looks up the names of new addresses, which blocks: an async
    /// program calls it on a thread for blocking work. Further reloads wait for the end of the first.
    ///
    /// Removed rights end at once. Clients with invalid credentials are disconnected, sessions of unknown users get no
    /// new messages, and subscriptions deliver only permitted messages. A share member that regains its right rejoins
    /// the group when its connection notices the change. Share groups keep their members and lose no message. Changed
    /// carriers of load reports and publish rates apply to new connections.
    ///
    /// All other differences in `config` are ignored, with a log line for each such key.
    ///
    /// # Errors
    /// A part of `config` is invalid, or a new listener cannot be opened, or it leaves out what protects the broker, as an
    /// emptied or cut file does: all listeners with settings, the last rule of the ACL, or TLS of a listener. Then nothing
    /// changes.
    pub fn reload(&self, config: &Config) -> Result<(), ReloadError> {
        self.reload_from(|| Ok(config.clone()))
    }

    /// As [`Broker::reload`], with the configuration that `read` returns.
    ///
    /// Calls `read` once earlier reloads have ended, so that an older configuration never replaces a newer one; `read` must
    /// not reload itself. Readiness warns of a failure until the next reload succeeds, also if `read` failed.
    ///
    /// # Errors
    /// As of [`Broker::reload`], or `read` failed.
    pub fn reload_from(&self, read: impl FnOnce() -> Result<Config, ConfigError>) -> Result<(), ReloadError> {
        self.parts.reload(read).map(|_| ())
    }

    /// Applies changed rules of a custom [`Authenticator`] or [`Authorizer`], as [`Broker::reload`] does.
    pub fn reauthorize(&self) {
        enforcement::changed(&self.parts.shared);
    }
}

impl fmt::Debug for BrokerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
