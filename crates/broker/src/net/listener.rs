use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use super::connection;
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

/// Accepts connections, for ever; each gets a task of its own.
pub(crate) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => accept(&shared, stream, peer),
            Err(error) => {
                // Out of file descriptors or the like: it will not get better at once.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
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
    // Without it a small packet may wait for an acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY");
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let _open = OpenConnection(&shared, peer.ip());
        connection::serve(&shared, stream, peer).await;
    });
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
