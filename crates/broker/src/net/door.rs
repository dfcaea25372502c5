//! Doors: what precedes MQTT on connections that are not plain TCP.
//!
//! ```text
//!   accept ─► PROXY header ─► TLS handshake ─► HTTP upgrade ─► the connection's task on its worker thread
//! ```
//!
//! A listener's door has some of these stages. One deadline holds for all of them and CONNECT. A handshake takes the
//! processor time of some hundred messages. So all doors have a separate thread, and other clients do not wait for them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::connection::{self, AcceptedSocket};
use super::core::{MustEnd, OpenConnection};
use super::listener;
use super::proxy::{Preamble, Proxy};
use super::references::References;
use super::stream::Stream;
use super::tls::Tls;
use super::tls_error::TlsError;
use super::upgrade::Upgrade;
use super::wire::Wire;
use crate::Config;
use crate::config::Listener;
use crate::lifecycle::BrokerState;
use crate::metrics::{Counter, Metrics};
use crate::threads::{self, Running, Threads};
use crate::values::{Origin, Peer};

/// New doors of all listeners that have one, by the listener's name.
#[derive(Debug)]
pub(crate) struct Doors(HashMap<Arc<str>, Door>);

/// Door of one listener, with its stages in order.
#[derive(Debug)]
pub(crate) struct Door {
    proxy: Option<Proxy>,
    tls: Option<Tls>,
    upgrade: Option<Upgrade>,
}

/// How a connection came through its door.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) origin: Origin,
    /// Absent if the client came through a gateway, or by a relay.
    door: Option<Arc<Door>>,
    /// That of [`Tls`] when the client's certificate was last verified.
    generation: u64,
    /// Present if the relay takes messages by reference.
    pub(super) references: Option<References>,
}

/// A connection did not pass a stage, which has closed it.
#[derive(Debug)]
pub(super) struct Refused {
    /// Name of the stage.
    pub(super) stage: &'static str,
    pub(super) error: io::Error,
}

impl Doors {
    /// Reads the files of all listeners with TLS.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load(config: &Config) -> Result<Self, TlsError> {
        let doors = config.listeners.iter().filter_map(|listener| {
            let name = listener.name();
            Door::load(&name, listener).transpose().map(|door| Ok((name, door?)))
        });
        doors.collect::<Result<_, _>>().map(Self)
    }

    /// What operators are to be warned of, a line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_door = |(name, door): (&Arc<str>, &Door)| {
            let warnings = door.tls_warnings().into_iter();
            warnings.map(|warning| format!("listener {name}: {warning}")).collect::<Vec<_>>()
        };
        let mut warnings: Vec<_> = self.0.iter().flat_map(of_door).collect();
        warnings.sort();
        warnings
    }

    /// Door of the listener `name`.
    pub(crate) fn take(&mut self, name: &str) -> Option<Door> {
        self.0.remove(name)
    }

    /// Starts the thread of the doors, if there are any.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn start_thread(&self) -> io::Result<Option<(Handle, Running)>> {
        (!self.0.is_empty()).then(threads::start_door).transpose()
    }
}

impl Door {
    /// Door of a listener; `None` if it needs none.
    fn load(name: &Arc<str>, listener: &Listener) -> Result<Option<Self>, TlsError> {
        let tls = listener.tls.as_ref().map(|tls| Tls::load(name, tls, listener.transport)).transpose()?;
        let door = Self { proxy: Proxy::of(listener), tls, upgrade: Upgrade::of(name, listener)? };
        let has_stage = door.proxy.is_some() || door.tls.is_some() || door.upgrade.is_some();
        Ok(has_stage.then_some(door))
    }

    /// Watches the files of the door, if it has some: while it is open, and as long as it has connections.
    pub(crate) fn watch(&self, shared: &Arc<BrokerState>) -> Option<impl Future<Output = ()> + Send + use<>> {
        let metrics = Arc::clone(&shared.operations.metrics);
        let count = move |counter: fn(&Metrics) -> &Counter| counter(&metrics).add(1);
        self.tls.as_ref().map(|tls| tls.watch(Some(Arc::clone(shared)), count))
    }

    /// What operators are to be warned of: newer files that cannot be used, an old revocation list, or a certificate that is
    /// not valid.
    pub(crate) fn tls_warnings(&self) -> Vec<String> {
        self.tls.as_ref().map(Tls::warnings).unwrap_or_default()
    }

    /// Notes that a reload could not use newer certificates.
    pub(crate) fn tls_failed(&self, error: &TlsError) {
        if let Some(tls) = &self.tls {
            tls.failed(error);
        }
    }

    /// Name and end of each certificate of the broker, in seconds since 1970.
    pub(crate) fn certificate_ends(&self) -> Vec<(Box<str>, i64)> {
        self.tls.as_ref().map(Tls::certificate_ends).unwrap_or_default()
    }

    /// Takes over the certificates of `new`.
    pub(crate) fn replace(&self, new: Self) {
        if let (Some(tls), Some(new)) = (&self.tls, new.tls) {
            tls.replace(new);
        }
    }

    /// Takes the place of `old`, of the same listener with other settings: its connections are judged by the new files.
    /// Returns whether the watch over its files goes on with these.
    pub(crate) fn follow(&mut self, old: &Self) -> bool {
        match (&mut self.tls, &old.tls) {
            (Some(new), Some(old)) => {
                new.follow(old);
                true
            }
            _ => false,
        }
    }

    /// Accepts connections forever. Those that pass the door are served on their worker thread, or on `runtime` if there
    /// are none.
    ///
    /// A connection counts from here on. So the bounds of all connections and of those of one address bound the
    /// connections in the door.
    pub(crate) async fn run(
        self: Arc<Self>,
        shared: Arc<BrokerState>,
        acceptor: TcpListener,
        name: Arc<str>,
        runtime: Handle,
    ) {
        loop {
            match acceptor.accept().await {
                Ok((stream, peer)) => {
                    let is_proxy = self.trusts(peer.into());
                    let Some(open) = OpenConnection::admitted(&shared, peer.into(), !is_proxy, true) else { continue };
                    stream.begin(open.peer);
                    let deadline = Instant::now() + shared.config.connect_timeout();
                    let door = Arc::clone(&self);
                    tokio::spawn(door.admit(open, Wire::Tcp(stream), Arc::clone(&name), runtime.clone(), deadline));
                }
                Err(error) => listener::failed(&error).await,
            }
        }
    }

    /// Whether a peer may tell by a PROXY header whose connection it passes on.
    pub(super) fn trusts(&self, peer: Peer) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.trusts(peer))
    }

    /// Serves the connection if it passes all stages before `deadline`.
    pub(super) async fn admit(
        self: Arc<Self>,
        mut open: OpenConnection,
        stream: Wire,
        listener: Arc<str>,
        runtime: Handle,
        deadline: Instant,
    ) {
        // Before the handshake: a change in between only costs another look at the certificate.
        let generation = self.tls.as_ref().map_or(0, Tls::generation);
        let must_end = open.must_end();
        let passed = tokio::select! {
            passed = self.pass(&mut open, stream, deadline) => passed,
            end = must_end => {
                if end == MustEnd::Evicted {
                    open.makes_room();
                }
                return;
            }
        };
        match passed {
            Ok((stream, origin)) => {
                open.come_through(Passage { origin, door: Some(self), generation, references: None });
                serve(open, stream, listener, deadline, &runtime);
            }
            Err(refused) => log(&open, &listener, &refused),
        }
    }

    /// Passes the stages in order, before `deadline`.
    async fn pass(
        &self,
        open: &mut OpenConnection,
        mut stream: Wire,
        deadline: Instant,
    ) -> Result<(Wire, Origin), Refused> {
        let mut origin = open.origin(&stream);
        let proxies = self.proxy.as_ref();
        let preamble = match proxies {
            Some(proxies) => proxies.pass(open, &mut stream, &mut origin, deadline).await?,
            None => Preamble::None,
        };
        let wire = match (&self.tls, &self.upgrade) {
            (None, None) => stream,
            (None, Some(upgrade)) => upgrade.pass(open, stream, &mut origin, proxies, deadline).await?,
            #[cfg(feature = "tls")]
            (Some(tls), None) => Wire::Tls(tls.pass(open, stream, &mut origin, deadline).await?),
            #[cfg(feature = "tls")]
            (Some(tls), Some(upgrade)) => {
                let stream = Wire::Tls(tls.pass(open, stream, &mut origin, deadline).await?);
                upgrade.pass(open, stream, &mut origin, proxies, deadline).await?
            }
            #[cfg(not(feature = "tls"))]
            (Some(tls), _) => match *tls {},
        };
        // Not before: the upgrade of a proxy may tell a client.
        if preamble == Preamble::None {
            open.belongs_to(origin.peer).map_err(|error| Refused { stage: "connection", error })?;
        }
        origin.transport = wire.protocol();
        Ok((wire, origin))
    }
}

impl Passage {
    /// Passage of a client that a gateway or a relay has let in.
    pub(super) fn without_door(origin: Origin) -> Self {
        Self { origin, door: None, generation: 0, references: None }
    }

    /// Whether the client came through a door of this node.
    pub(super) fn has_door(&self) -> bool {
        self.door.is_some()
    }

    /// Whether the client's certificate still counts, if it has one.
    pub(super) fn is_trusted(&mut self) -> bool {
        // A certificate without a chain was told by a proxy or a gateway, which has verified it.
        let certificate = self.origin.certificate.as_ref().filter(|certificate| !certificate.chain.is_empty());
        let Some(door) = &self.door else { return certificate.is_none_or(|certificate| !certificate.has_expired()) };
        let Some((tls, certificate)) = door.tls.as_ref().zip(certificate) else { return true };
        let generation = tls.generation();
        let is_trusted = tls.trusts(certificate, self.generation);
        self.generation = generation;
        is_trusted
    }
}

/// Waits for `work`, until `deadline` at most.
pub(super) async fn in_time<T>(deadline: Instant, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

pub(super) fn serve(open: OpenConnection, stream: Wire, listener: Arc<str>, deadline: Instant, runtime: &Handle) {
    let threads = open.shared.operations.threads.as_ref();
    let home = threads.map(Threads::place);
    let runtime = home.zip(threads).map_or(runtime, |(home, threads)| threads.runtime(home)).clone();
    let socket = AcceptedSocket { open, stream, listener, home, is_elsewhere: true, deadline };
    runtime.spawn(connection::serve(Box::new(socket)));
}

/// Logs why a connection did not pass. A peer that only looks whether the port is open is nothing to report.
pub(super) fn log(open: &OpenConnection, listener: &str, refused: &Refused) {
    let (peer, Refused { stage, error }) = (open.peer, refused);
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            tracing::debug!(%peer, listener, %error, "closed before the end of the {stage}");
        }
        io::ErrorKind::TimedOut => {
            let timeout = open.shared.config.connect_timeout();
            tracing::info!(%peer, listener, ?timeout, "no {stage} in time");
        }
        _ => tracing::info!(%peer, listener, %error, "{stage} failed"),
    }
}
