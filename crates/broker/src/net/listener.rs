use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::connection;
use super::tcp_state::Ends;
use crate::shared::Shared;

/// Opens a listening socket.
///
/// # Errors
/// The port is in use, or not ours to open.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections, for ever; each gets a task of its own. The listener's name says which settings hold.
pub(crate) async fn run(shared: Arc<Shared>, listener: TcpListener, name: Arc<str>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let ends = Ends::of(&stream, peer);
                serve(&shared, stream, ends, &name, set_nodelay);
            }
            Err(error) => {
                // Out of file descriptors or the like: it will not get better at once.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves a connection in a task of its own, or closes it at once where there is no room for it. `ends`: of the TCP
/// connection, whatever the stream lays over it. `begin` is done with a stream that is served.
pub(crate) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    shared: &Arc<Shared>,
    stream: S,
    ends: Ends,
    listener: &Arc<str>,
    begin: impl FnOnce(&S, SocketAddr),
) {
    let peer = ends.peer;
    let open = shared.connections.fetch_add(1, Ordering::Relaxed);
    if open >= shared.config.connections.maximum || shared.is_stopping() {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        shared.metrics.connections_refused.add(1);
        tracing::debug!(%peer, "no room for another connection");
        return;
    }
    if !shared.admission.enter(peer.ip(), Instant::now()) {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        shared.metrics.connections_refused.add(1);
        tracing::debug!(%peer, "too many connections of one address");
        return;
    }
    shared.metrics.connections_opened.add(1);
    begin(&stream, peer);
    let (shared, listener) = (Arc::clone(shared), Arc::clone(listener));
    tokio::spawn(async move {
        let _open = OpenConnection(&shared, ends.peer.ip());
        connection::serve(&shared, stream, &ends, listener).await;
    });
}

/// Without it a small packet may wait for an acknowledgement of the one before.
fn set_nodelay(stream: &TcpStream, peer: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY");
    }
}

/// Counts the connection out however its task ends.
struct OpenConnection<'a>(&'a Shared, IpAddr);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.admission.leave(self.1, Instant::now());
        self.0.metrics.connections_closed.add(1);
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
