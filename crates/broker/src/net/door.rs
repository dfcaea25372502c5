//! Doors: what precedes MQTT on connections that are not plain TCP.
//!
//! ```text
//!   accept ─► TLS handshake ─► the connection's task on its worker thread
//! ```
//!
//! A handshake takes as much processor time as some hundred messages. So all doors have a thread of their own, and other
//! clients do not wait for them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::connection::{self, AcceptedSocket};
use super::core::OpenConnection;
use super::listener::RETRY_ACCEPT;
use super::stream::Stream;
use super::tls::{self, certificate};
use super::tls_error::TlsError;
use super::transport::Transport;
use super::wire::{CountedTcp, Wire};
use crate::Config;
use crate::lifecycle::BrokerState;
use crate::threads::{self, Running, Threads};
use crate::values::{Origin, Peer, TransportProtocol};

/// Doors of all listeners that have one, by the listener's name.
#[derive(Debug)]
pub(crate) struct Doors(HashMap<Arc<str>, Arc<Door>>);

/// Door of one listener.
#[derive(Debug)]
pub(crate) struct Door {
    /// Replaced by a reload; handshakes under way keep theirs.
    tls: ArcSwap<ServerConfig>,
    /// Room for handshakes.
    handshakes: Arc<Semaphore>,
}

impl Doors {
    /// Reads the files of all listeners with TLS.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load(config: &Config) -> Result<Self, TlsError> {
        let doors = config.listeners.iter().filter_map(|listener| {
            let (name, tls) = (listener.name(), listener.tls.as_ref()?);
            let handshakes = Arc::new(Semaphore::new(tls.handshakes_maximum() as usize));
            let door = |tls| Arc::new(Door { tls: ArcSwap::from_pointee(tls), handshakes });
            Some(tls::load(&name, tls).map(|tls| (name, door(tls))))
        });
        doors.collect::<Result<_, _>>().map(Self)
    }

    /// Takes over the certificates of `new`.
    pub(crate) fn replace(&self, new: &Self) {
        for (name, door) in &self.0 {
            if let Some(new) = new.0.get(name) {
                door.tls.store(new.tls.load_full());
            }
        }
    }

    /// Door of the listener `name`.
    pub(crate) fn of(&self, name: &str) -> Option<Arc<Door>> {
        self.0.get(name).cloned()
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
    /// Accepts connections forever. Those that pass the door are served on their worker thread, or on `runtime` if there
    /// are none.
    pub(crate) async fn run(
        self: Arc<Self>,
        shared: Arc<BrokerState>,
        listener: TcpListener,
        name: Arc<str>,
        runtime: Handle,
    ) {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&self.handshakes).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let Some(open) = OpenConnection::admitted(&shared, peer.into()) else { continue };
                    stream.begin(peer.into());
                    let tls = TlsAcceptor::from(self.tls.load_full());
                    tokio::spawn(pass(open, tls, stream, Arc::clone(&name), runtime.clone(), place));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(RETRY_ACCEPT).await;
                }
            }
        }
    }
}

/// Performs the handshake, and serves the connection if it succeeds. Holds `place` until then.
async fn pass(
    mut open: OpenConnection,
    tls: TlsAcceptor,
    stream: TcpStream,
    listener: Arc<str>,
    runtime: Handle,
    place: OwnedSemaphorePermit,
) {
    let peer = open.peer;
    let deadline = Instant::now() + open.config.connect_timeout();
    let handshake = tls.accept(CountedTcp::new(stream)).into_fallible();
    let handshake = tokio::select! {
        handshake = tokio::time::timeout_at(deadline, handshake) => handshake,
        () = open.stopped() => return,
    };
    drop(place);
    match handshake {
        Ok(Ok(stream)) => {
            let Some(origin) = origin(&open, &stream) else {
                open.metrics.tls_handshakes_failed.add(1);
                tracing::info!(%peer, listener = &*listener, "client certificate cannot be read");
                return;
            };
            open.metrics.tls_handshakes.add(1);
            open.come_from(origin);
            serve(open, Wire::tls(stream), listener, deadline, &runtime);
        }
        Ok(Err((error, stream))) => {
            open.metrics.tls_handshakes_failed.add(1);
            log_failure(peer, &listener, &error);
            // So that the peer can read the alert.
            Transport::new(stream.into_inner()).close().await;
        }
        Err(_) => {
            open.metrics.tls_handshakes_failed.add(1);
            let timeout = open.config.connect_timeout();
            tracing::info!(%peer, listener = &*listener, ?timeout, "no TLS handshake in time");
        }
    }
}

/// Where a TLS connection comes from; `None` if the client's certificate cannot be read.
fn origin(open: &OpenConnection, stream: &TlsStream<CountedTcp>) -> Option<Origin> {
    let (tcp, session) = stream.get_ref();
    let certificate = match session.peer_certificates() {
        Some(chain) => Some(Arc::new(certificate::read(chain)?)),
        None => None,
    };
    let server_name = session.server_name().map(Into::into);
    let direct = Origin::direct(open.peer, tcp.local_address(), TransportProtocol::Tls);
    Some(Origin { server_name, certificate, ..direct })
}

fn serve(open: OpenConnection, stream: Wire, listener: Arc<str>, deadline: Instant, runtime: &Handle) {
    let home = open.threads.as_ref().map(Threads::place);
    let runtime = home.zip(open.threads.as_ref()).map_or(runtime, |(home, threads)| threads.runtime(home)).clone();
    let socket = AcceptedSocket { shared: open, stream, listener, home, is_elsewhere: true, deadline };
    runtime.spawn(connection::serve(Box::new(socket)));
}

/// Logs why a handshake failed. A peer that only looks whether the port is open is nothing to report.
fn log_failure(peer: Peer, listener: &str, error: &io::Error) {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            tracing::debug!(%peer, listener, %error, "closed before the end of the TLS handshake");
        }
        _ => tracing::info!(%peer, listener, %error, "TLS handshake failed"),
    }
}
