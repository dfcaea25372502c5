//! Open listeners. A reload opens and closes some.
//!
//! ```text
//!   prepare: open all new sockets, or fail ─► (the new settings take effect) ─► switch: accept at these, close the rest
//! ```

mod at_gateway;
mod bridges;
mod draining;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

use at_gateway::AtGateway;
use bridges::RunningBridge;

use super::OpenSockets;
use super::drain::Drain;
use super::sockets::BY_PLACE;

use crate::Config;
use crate::config::{ConfigError, ListenAddress, Listener, Transport};
use crate::gateways::Gateways;
use crate::lifecycle::BrokerState;
use crate::net::{self, Acceptor, Door, Doors, ListenError, ListeningSocket, NewRights, RelayedListener, TlsError};
use crate::threads::Running;

/// Open listeners, the tasks that accept their connections, and those that watch their files.
#[derive(Debug)]
pub(super) struct Listeners {
    open: Vec<OpenListener>,
    jobs: JoinSet<()>,
    /// Runtime of listeners without a door.
    plain: Handle,
    /// Opens the listeners that the embedding program serves.
    gateways: Option<Arc<dyn Gateways>>,
    /// Runtime of the doors with its thread, from the first listener with one.
    at_doors: Option<(Handle, Running)>,
    /// Running bridges.
    bridges: Vec<RunningBridge>,
    drain: Drain,
    /// Listeners that drains have closed.
    drained: Vec<OpenListener>,
}

#[derive(Debug)]
struct OpenListener {
    settings: Listener,
    name: Arc<str>,
    sockets: Vec<ListeningSocket>,
    /// Instead of sockets, if the embedding program serves the listener.
    gateway: Option<AtGateway>,
    door: Option<Arc<Door>>,
    /// Tasks that accept connections.
    jobs: Vec<AbortHandle>,
    /// Addresses of the sockets, while a drain has closed these.
    addresses: Vec<ListenAddress>,
}

/// Listeners of a new configuration, whose sockets are open.
#[derive(Debug)]
pub(super) struct Prepared {
    listeners: Vec<PreparedListener>,
    /// Of open unix sockets.
    rights: Vec<NewRights>,
    at_doors: Option<(Handle, Running)>,
}

#[derive(Debug)]
enum PreparedListener {
    /// An open listener stays as it is, but for the files that its settings name.
    Same { at: usize, door: Option<Door> },
    New {
        listener: Box<OpenListener>,
        /// The open listener whose place it takes: one with its address or its name.
        follows: Option<usize>,
        acceptors: Vec<Acceptor>,
    },
}

/// Why listeners cannot be opened.
#[derive(Debug)]
pub(super) enum PrepareError {
    Config(ConfigError),
    Listen(ListenError),
    Threads(io::Error),
}

impl OpenListener {
    /// Name of the transport, for operators.
    fn transport_name(&self) -> &'static str {
        match (&self.settings.transport, self.settings.tls.is_some()) {
            (Transport::MqttSn, _) => "mqtt_sn",
            (Transport::Http, _) => "http",
            (Transport::WebSocket, false) => "websocket",
            (Transport::WebSocket, true) => "websocket_tls",
            (Transport::Tcp, _) if matches!(self.settings.address, ListenAddress::Unix(_)) => "unix",
            (Transport::Tcp, true) => "tls",
            (Transport::Tcp, false) => "tcp",
        }
    }

    /// Warns of a listener that admits every client that reaches this machine.
    fn warn_if_open(&self) {
        let beyond = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
        let addresses = self.sockets.iter().filter_map(ListeningSocket::ip);
        let address = addresses.chain(self.gateway.iter().map(AtGateway::address)).find(beyond);
        if let Some(address) = address.filter(|_| self.settings.anonymous) {
            tracing::warn!(
                listener = %self.name,
                %address,
                "other machines may connect without authentication: see `auth` and `password_file`"
            );
        }
    }
}

impl Listeners {
    /// No listeners yet; `plain` is the runtime of those without a door.
    pub(super) fn new(plain: Handle, gateways: Option<Arc<dyn Gateways>>) -> Self {
        Self {
            gateways,
            open: Vec::new(),
            bridges: Vec::new(),
            jobs: JoinSet::new(),
            plain,
            at_doors: None,
            drain: Drain::None,
            drained: Vec::new(),
        }
    }

    /// Listeners in `new` at whose address none is open.
    pub(super) fn unopened(&self, new: &Config) -> Vec<Listener> {
        let is_open = |listener: &Listener| self.open.iter().any(|open| open.settings.address == listener.address);
        new.all_listeners().filter(|listener| !is_open(listener)).collect()
    }

    /// Opens the sockets of all listeners in `new` that are not open yet. `given` has their addresses, and perhaps sockets
    /// that are open already. Nothing is accepted there before [`Listeners::switch`].
    ///
    /// A changed listener, or a renamed one, keeps its socket if it keeps its address: no connection is lost.
    ///
    /// # Errors
    /// A listener cannot be opened. Then none is.
    pub(super) fn prepare(
        &self,
        new: &Config,
        mut doors: Doors,
        mut given: OpenSockets,
        config: &Config,
    ) -> Result<Prepared, PrepareError> {
        let overlaps = new.overlaps(&|name| given.names().addresses(name).unwrap_or_default());
        if let Some(error) = overlaps.into_iter().next() {
            return Err(PrepareError::Config(error));
        }
        self.check_bridges(new).map_err(PrepareError::Config)?;
        let at_doors = match self.at_doors {
            Some(_) => None,
            None => doors.start_thread().map_err(PrepareError::Threads)?,
        };
        let door_runtime = self.at_doors.as_ref().or(at_doors.as_ref()).map(|(runtime, _)| runtime);
        let mut is_taken = vec![false; self.open.len()];
        let mut take = |is_wanted: &dyn Fn(&OpenListener) -> bool| {
            let at = (0..is_taken.len()).find(|&at| !is_taken[at] && is_wanted(&self.open[at]))?;
            is_taken[at] = true;
            Some(at)
        };
        // One that could not open has another try.
        let is_same = |open: &OpenListener, listener: &Listener| open.settings == *listener && open.is_open();
        let wanted = new.all_listeners().map(|listener| (take(&|open| is_same(open, &listener)), listener));
        let wanted: Vec<_> = wanted.collect();
        let (mut listeners, mut rights) = (Vec::new(), Vec::new());
        for (same, settings) in wanted {
            let door = doors.take(&settings.name());
            if let Some(at) = same {
                listeners.push(PreparedListener::Same { at, door });
                continue;
            }
            // UDP has separate ports, and sockets of the embedding program cannot be taken over.
            let gateway = settings.transport.at_gateway();
            let has_address = |open: &OpenListener| {
                open.settings.address == settings.address && open.settings.transport.at_gateway() == gateway
            };
            let same_address = take(&has_address);
            let follows = same_address.or_else(|| take(&|open| open.settings.name() == settings.name()));
            let before = same_address.map(|at| &self.open[at].sockets);
            let failed = |error| PrepareError::Listen(ListenError::new(&settings, error));
            if gateway.is_some() {
                // The listener before it may hold its address, or the directory of its name.
                let listener = self.prepare_at_gateway(settings, follows.is_some());
                let listener = Box::new(listener.map_err(PrepareError::Listen)?);
                listeners.push(PreparedListener::New { listener, follows, acceptors: Vec::new() });
                continue;
            }
            let kept = match before {
                Some(sockets) => {
                    Some(sockets.iter().map(ListeningSocket::duplicate).collect::<Result<_, _>>().map_err(failed)?)
                }
                None => given.take(&settings),
            };
            for socket in kept.iter().flatten() {
                rights.extend(socket.permit(&settings).map_err(PrepareError::Listen)?);
            }
            let open = || ListeningSocket::open_all(&settings, given.names(), config).map_err(PrepareError::Listen);
            let sockets: Vec<_> = kept.map_or_else(open, Ok)?;
            let runtime = door.as_ref().and(door_runtime).unwrap_or(&self.plain);
            let _there = runtime.enter();
            let acceptors = sockets.iter().map(ListeningSocket::acceptor).collect::<Result<_, _>>().map_err(failed)?;
            let listener = OpenListener {
                name: settings.name(),
                settings,
                sockets,
                gateway: None,
                door: door.map(Arc::new),
                jobs: Vec::new(),
                addresses: Vec::new(),
            };
            listeners.push(PreparedListener::New { listener: Box::new(listener), follows, acceptors });
        }
        Ok(Prepared { listeners, rights, at_doors })
    }

    /// Accepts connections at the prepared listeners, and closes those that are not among them. Ends a drain.
    pub(super) fn switch(&mut self, prepared: Prepared, shared: &Arc<BrokerState>) {
        self.at_doors = self.at_doors.take().or(prepared.at_doors);
        prepared.rights.into_iter().for_each(NewRights::keep);
        self.forget_drain(&shared.operations);
        let mut before: Vec<_> = std::mem::take(&mut self.open).into_iter().map(Some).collect();
        let is_reload = !before.is_empty();
        for listener in prepared.listeners {
            let open = match listener {
                PreparedListener::Same { at, door } => {
                    let Some(open) = before[at].take() else { continue };
                    if let Some((old, new)) = open.door.as_ref().zip(door) {
                        old.replace(new);
                    }
                    open
                }
                PreparedListener::New { mut listener, follows, acceptors } => {
                    let old = follows.and_then(|at| before[at].as_ref()).and_then(|old| old.door.as_deref());
                    let both = listener.door.as_mut().and_then(Arc::get_mut).zip(old);
                    if !both.is_some_and(|(new, old)| new.follow(old)) {
                        self.watch(shared, &listener);
                    }
                    for socket in listener.sockets.iter().filter(|_| is_reload) {
                        tracing::info!(listener = %listener.name, address = %socket.address(), "listening");
                    }
                    let old = follows.and_then(|at| before[at].as_mut());
                    self.admit_at_gateway(&mut listener, old, shared);
                    for gateway in listener.gateway.iter().filter(|_| is_reload) {
                        tracing::info!(listener = %listener.name, address = %gateway.address(), "listening");
                    }
                    if shared.admission.is_configured_only {
                        listener.warn_if_open();
                    }
                    listener.jobs =
                        acceptors.into_iter().map(|acceptor| self.accept(shared, &listener, acceptor)).collect();
                    *listener
                }
            };
            self.open.push(open);
        }
        for closed in before.into_iter().flatten() {
            closed.jobs.iter().for_each(AbortHandle::abort);
            if !self.open.iter().any(|open| open.name == closed.name) {
                let fate = if closed.settings.transport.at_gateway().is_some() { "are ended" } else { "stay" };
                tracing::info!(listener = %closed.name, "listener closed; its connections {fate}");
            }
        }
        // Tasks of listeners that an earlier reload has closed.
        while self.jobs.try_join_next().is_some() {}
    }

    fn accept(&mut self, shared: &Arc<BrokerState>, listener: &OpenListener, acceptor: Acceptor) -> AbortHandle {
        let (shared, name) = (Arc::clone(shared), Arc::clone(&listener.name));
        match (listener.door.clone().zip(self.at_doors.as_ref()), acceptor) {
            (Some((door, (runtime, _))), Acceptor::Tcp(acceptor)) => {
                self.jobs.spawn_on(door.run(shared, acceptor, name, self.plain.clone()), runtime)
            }
            // The configuration permits no door for a unix socket.
            (_, acceptor) => self.jobs.spawn_on(net::run(shared, acceptor, name), &self.plain),
        }
    }

    /// Watches the files of the listener's door, if it has some, until its last connection ends.
    fn watch(&mut self, shared: &Arc<BrokerState>, listener: &OpenListener) {
        let watch = listener.door.as_ref().and_then(|door| door.watch(shared));
        if let Some((watch, (runtime, _))) = watch.zip(self.at_doors.as_ref()) {
            self.jobs.spawn_on(watch, runtime);
        }
    }

    /// Open sockets, in the order of the configuration.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &ListeningSocket> {
        self.open.iter().flat_map(|listener| &listener.sockets)
    }

    /// Name, address and transport of each open socket, for operators.
    pub(super) fn shown(&self) -> Vec<(Arc<str>, String, &'static str)> {
        let addresses = |open: &OpenListener| {
            let sockets = open.sockets.iter().map(|socket| socket.address().to_string());
            sockets.chain(open.gateway.iter().map(|gateway| gateway.address().to_string())).collect::<Vec<_>>()
        };
        let shown = |open: &OpenListener, address| (Arc::clone(&open.name), address, open.transport_name());
        self.open.iter().flat_map(|open| addresses(open).into_iter().map(move |address| shown(open, address))).collect()
    }

    /// Listener, name and end of each certificate, in seconds since 1970.
    pub(super) fn certificate_ends(&self) -> Vec<(Arc<str>, Box<str>, i64)> {
        let of_door = |open: &OpenListener| open.door.as_ref().map(|door| door.certificate_ends()).unwrap_or_default();
        let named = |open: &OpenListener| {
            let listener = Arc::clone(&open.name);
            of_door(open).into_iter().map(move |(name, end)| (Arc::clone(&listener), name, end))
        };
        self.open.iter().flat_map(named).collect()
    }

    /// Listeners, with a warning about their TLS files.
    pub(super) fn tls_warnings(&self) -> Vec<(Arc<str>, String)> {
        let doors = self.open.iter().filter_map(|open| Some((&open.name, open.door.as_ref()?)));
        let named = |(name, door): (&Arc<str>, &Arc<Door>)| {
            let name = Arc::clone(name);
            door.tls_warnings().into_iter().map(move |warning| (Arc::clone(&name), warning))
        };
        doors.flat_map(named).collect()
    }

    /// Notes that a reload could not use newer TLS files.
    pub(super) fn tls_failed(&self, error: &TlsError) {
        let doors = self.open.iter().filter(|listener| *listener.name == *error.listener());
        doors.filter_map(|listener| listener.door.as_ref()).for_each(|door| door.tls_failed(error));
    }

    /// The open listener of this name, or at this place, for clients that a relay passes on. Unix sockets are not relayed.
    pub(super) fn behind_relay(&self, name: &str) -> Option<RelayedListener> {
        let named = self.open.iter().find(|open| *open.name == *name);
        let place = || self.open.get(name.strip_prefix(BY_PLACE)?.parse::<usize>().ok()?);
        let open = named.or_else(place)?;
        if let Some(gateway) = &open.gateway {
            return Some(RelayedListener::Gateway(gateway.behind_relay()));
        }
        open.sockets.iter().find_map(ListeningSocket::ip)?;
        let door = open.door.clone().zip(self.at_doors.as_ref().map(|(runtime, _)| runtime.clone()));
        Some(RelayedListener::Broker { name: Arc::clone(&open.name), door, plain: self.plain.clone() })
    }

    /// The listeners that are not at gateways, each with its place and its sockets. `None` if one is closed, or no TCP
    /// listener.
    pub(super) fn opened(&self) -> Option<Vec<(usize, Listener, Vec<ListeningSocket>)>> {
        if !self.drained.is_empty() {
            return None;
        }
        let opened = |(at, open): (usize, &OpenListener)| {
            let is_tcp = open.sockets.iter().all(|socket| socket.ip().is_some());
            let sockets =
                is_tcp.then(|| open.sockets.iter().map(ListeningSocket::duplicate).collect::<io::Result<_>>());
            Some((at, open.settings.clone(), sockets?.ok()?))
        };
        let listeners = self.open.iter().enumerate().filter(|(_, open)| open.gateway.is_none());
        listeners.map(opened).collect()
    }

    /// Runtime of connections, if there are no worker threads.
    pub(super) fn plain(&self) -> &Handle {
        &self.plain
    }

    /// Name of the first listener.
    pub(super) fn first(&self) -> Option<Arc<str>> {
        self.open.first().map(|listener| Arc::clone(&listener.name))
    }

    /// Stops accepting, and closes the sockets, so that clients go elsewhere at once. The future ends when no task
    /// accepts any more.
    pub(super) fn close(&mut self) -> impl Future<Output = ()> + use<> {
        let (mut jobs, open) = (std::mem::take(&mut self.jobs), std::mem::take(&mut self.open));
        self.bridges.clear();
        (self.drain, self.drained) = (Drain::None, Vec::new());
        async move {
            jobs.shutdown().await;
            drop(open);
        }
    }
}
