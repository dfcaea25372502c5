use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;

use super::connection::{self, AcceptedSocket};
use super::core::OpenConnection;
use super::door::Passage;
use super::listening::Acceptor;
use super::stream::{Embedded, Stream};
use super::tls;
use super::wire::Wire;
use crate::gateways::{BoxedStream, ProvenIdentity};
use crate::lifecycle::BrokerState;
use crate::slices::in_turn;
use crate::threads::{Home, Threads};
use crate::values::{Certificate, Origin, Peer, TransportProtocol};

/// Accepts connections forever, each into a separate task. `name` selects the listener's settings.
pub(crate) async fn run(shared: Arc<BrokerState>, acceptor: Acceptor, name: Arc<str>) {
    match acceptor {
        Acceptor::Tcp(listener) => loop {
            in_turn(pin!(accept(&shared, &listener, &name))).await;
        },
        Acceptor::Unix(listener) => loop {
            in_turn(pin!(accept_local(&shared, &listener, &name))).await;
        },
    }
}

async fn accept(shared: &Arc<BrokerState>, listener: &TcpListener, name: &Arc<str>) {
    match listener.accept().await {
        Ok((stream, peer)) => {
            let home = shared.operations.threads.as_ref().map(Threads::place);
            serve(shared, stream, peer.into(), name, home);
        }
        Err(error) => failed(&error).await,
    }
}

async fn accept_local(shared: &Arc<BrokerState>, listener: &UnixListener, name: &Arc<str>) {
    let accepted = listener.accept().await;
    match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
        Ok((uid, stream)) => {
            let home = shared.operations.threads.as_ref().map(Threads::place);
            serve(shared, Wire::Unix(stream), Peer::Local { uid }, name, home);
        }
        Err(error) => failed(&error).await,
    }
}

/// Waits after a failed accept. Out of file descriptors or the like: retrying at once would not help.
pub(super) async fn failed(error: &io::Error) {
    tracing::warn!(%error, "accept failed");
    tokio::time::sleep(RETRY_ACCEPT).await;
}

/// Serves a client of a gateway: on this runtime, or on a worker thread of a broker that runs on `main`.
pub(crate) fn serve_from_gateway(
    shared: &Arc<BrokerState>,
    stream: Embedded<BoxedStream>,
    peer: SocketAddr,
    identity: Option<ProvenIdentity>,
    listener: &Arc<str>,
    main: &Handle,
) {
    let certificate = match identity {
        None => None,
        Some(ProvenIdentity::Name(name)) => Some(Certificate::told(name)),
        Some(ProvenIdentity::Certificate(der)) => match tls::read_certificate(&der) {
            Some(certificate) => Some(certificate),
            None => return tracing::warn!(%peer, %listener, "certificate of a client cannot be read"),
        },
    };
    let home = shared.operations.threads.as_ref().map(Threads::place);
    let _there = main.enter();
    // The address of a datagram may be forged: it must not use up the room of TCP clients.
    let has_socket = stream.protocol() != TransportProtocol::MqttSn;
    let Some(mut open) = OpenConnection::admitted(shared, peer.into(), has_socket, has_socket) else { return };
    if let Some(certificate) = certificate {
        let direct = Origin::direct(peer.into(), None, stream.protocol());
        open.come_through(Passage::without_door(Origin { certificate: Some(Arc::new(certificate)), ..direct }));
    }
    serve_admitted(open, Wire::Embedded(stream), peer.into(), listener, home);
}

/// Serves a connection in a new task on worker thread `home`, or on this runtime.
///
/// Closes the connection at once if there is no room for it.
pub(crate) fn serve<S: Stream>(
    shared: &Arc<BrokerState>,
    stream: S,
    peer: Peer,
    listener: &Arc<str>,
    home: Option<Home>,
) {
    if let Some(open) = OpenConnection::admitted(shared, peer, true, true) {
        serve_admitted(open, stream, peer, listener, home);
    }
}

fn serve_admitted<S: Stream>(open: OpenConnection, stream: S, peer: Peer, listener: &Arc<str>, home: Option<Home>) {
    stream.begin(peer);
    let listener = Arc::clone(listener);
    let is_elsewhere = home.is_some_and(|home| !home.is_first());
    let deadline = tokio::time::Instant::now() + open.shared.config.connect_timeout();
    let threads = open.shared.operations.threads.as_ref();
    let runtime = home.zip(threads).map(|(home, threads)| threads.runtime(home).clone());
    let served = connection::serve(Box::new(AcceptedSocket { open, stream, listener, home, is_elsewhere, deadline }));
    match runtime {
        Some(runtime) => runtime.spawn(served),
        None => tokio::spawn(served),
    };
}

/// Pause after a failed accept.
const RETRY_ACCEPT: Duration = Duration::from_millis(50);
