use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::connection::{self, AcceptedSocket};
use super::core::OpenConnection;
use super::stream::Stream;
use crate::Config;
use crate::lifecycle::BrokerState;
use crate::slices::in_turn;
use crate::threads::{Home, Threads};
use crate::values::Peer;

/// Opens a listening socket. Accepted sockets inherit its settings for the detection of dead peers.
///
/// # Errors
/// The port is in use, or needs privileges.
pub(crate) fn bind(address: SocketAddr, config: &Config) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if let Some(keepalive) = config.tcp_keepalive() {
        socket.set_tcp_keepalive(&keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(config.tcp_user_timeout())?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections forever, each into a task of its own. `name` selects the listener's settings.
pub(crate) async fn run(shared: Arc<BrokerState>, listener: TcpListener, name: Arc<str>) {
    loop {
        in_turn(pin!(accept(&shared, &listener, &name))).await;
    }
}

async fn accept(shared: &Arc<BrokerState>, listener: &TcpListener, name: &Arc<str>) {
    match listener.accept().await {
        Ok((stream, peer)) => {
            let home = shared.threads.as_ref().map(Threads::place);
            serve(shared, stream, peer.into(), name, home);
        }
        Err(error) => {
            // Out of file descriptors or the like: retrying at once would not help.
            tracing::warn!(%error, "accept failed");
            tokio::time::sleep(RETRY_ACCEPT).await;
        }
    }
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
    let Some(open) = OpenConnection::admitted(shared, peer) else { return };
    stream.begin(peer);
    let listener = Arc::clone(listener);
    let is_elsewhere = home.is_some_and(|home| !home.is_first());
    let deadline = tokio::time::Instant::now() + shared.config.connect_timeout();
    let served =
        connection::serve(Box::new(AcceptedSocket { shared: open, stream, listener, home, is_elsewhere, deadline }));
    match home.zip(shared.threads.as_ref()) {
        Some((home, threads)) => threads.runtime(home).spawn(served),
        None => tokio::spawn(served),
    };
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Pause after a failed accept.
pub(super) const RETRY_ACCEPT: Duration = Duration::from_millis(50);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn accepted_sockets_inherit_dead_peer_detection() {
        let own = "[connections]\ntcp_keepalive_idle_seconds = 7\ntcp_keepalive_interval_seconds = 5\n\
                   tcp_keepalive_probes = 2\ntcp_user_timeout_seconds = 30";
        let off = "[connections]\ntcp_keepalive_idle_seconds = 0";
        let expected = [("", Some((60, 10, 3)), None), (own, Some((7, 5, 2)), Some(30)), (off, None, None)];
        for (text, keepalive, user_timeout) in expected {
            let config = Config::parse(text).unwrap();
            let listener = bind(([127, 0, 0, 1], 0).into(), &config).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            let socket = SockRef::from(&accepted);
            assert_eq!(socket.keepalive().unwrap(), keepalive.is_some(), "{text}");
            if let Some((idle, interval, probes)) = keepalive {
                assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(idle), "{text}");
                assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(interval), "{text}");
                assert_eq!(socket.tcp_keepalive_retries().unwrap(), probes, "{text}");
            }
            assert_eq!(socket.tcp_user_timeout().unwrap(), user_timeout.map(Duration::from_secs), "{text}");
        }
    }
}
