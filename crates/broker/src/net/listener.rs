use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::connection::{self, Newcomer};
use super::stream::Stream;
use crate::shared::Shared;
use crate::threads::{Home, Threads};

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
                let home = shared.threads.as_ref().map(Threads::place);
                serve(&shared, stream, peer, &name, home);
            }
            Err(error) => {
                // Out of file descriptors or the like: it will not get better at once.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves a connection in a task of its own, there or else on this runtime, or closes it at once where there is no room for
/// it.
pub(crate) fn serve<S: Stream>(
    shared: &Arc<Shared>,
    stream: S,
    peer: SocketAddr,
    listener: &Arc<str>,
    home: Option<Home>,
) {
    let open = shared.connections.fetch_add(1, Ordering::Relaxed);
    if open >= shared.connections_maximum || shared.is_stopping() {
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
    stream.begin(peer);
    let open = OpenConnection { shared: Arc::clone(shared), peer };
    let served = connection::serve(Box::new(Newcomer { shared: open, stream, listener: Arc::clone(listener), home }));
    match home.zip(shared.threads.as_ref()) {
        Some((home, threads)) => threads.runtime(home).spawn(served),
        None => tokio::spawn(served),
    };
}

/// A connection of this broker. Counts it out however its task ends.
#[derive(Debug)]
pub(super) struct OpenConnection {
    shared: Arc<Shared>,
    pub(super) peer: SocketAddr,
}

impl Deref for OpenConnection {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.admission.leave(self.peer.ip(), Instant::now());
        self.shared.metrics.connections_closed.add(1);
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
