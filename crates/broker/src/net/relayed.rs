//! Connections that another node of the cluster has accepted and passes on.
//!
//! ```text
//!   client ─► relay at another node ─ PROXY header with the listener's name ─► door of the listener ─► MQTT
//! ```

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::core::{MustEnd, OpenConnection};
use super::door::{self, Door, Refused, in_time};
use super::proxy_header::{self, ProxyHeader};
use super::stream::Stream;
use super::wire::Wire;
use crate::lifecycle::BrokerState;
use crate::values::{Origin, Peer, TransportProtocol};

/// The listener that a relayed client has connected to.
#[derive(Debug)]
pub(crate) struct RelayedListener {
    pub(crate) name: Arc<str>,
    /// Door with its runtime; `None` for plain TCP.
    pub(crate) door: Option<(Arc<Door>, Handle)>,
    /// Runtime of connections, if there are no worker threads.
    pub(crate) plain: Handle,
}

/// Serves a relayed connection as one of the listener that its PROXY header names. `find` looks the listener up.
///
/// The connection counts for the told client from the header on. A listener that expects a PROXY header itself finds the
/// next one in the stream; the told client is the peer whose header it trusts.
pub(crate) async fn serve(
    shared: Arc<BrokerState>,
    mut stream: TcpStream,
    find: impl FnOnce(&str) -> Option<RelayedListener>,
) {
    let Ok(relay) = stream.peer_addr().map(Peer::Ip) else { return };
    if let Err(error) = stream.register_again() {
        tracing::debug!(peer = %relay, %error, "its socket stays with the runtime that accepted it");
    }
    let Some(mut open) = OpenConnection::admitted(&shared, relay, false, true) else { return };
    stream.begin(relay);
    let deadline = Instant::now() + shared.config.connect_timeout();
    let must_end = open.must_end();
    let header = tokio::select! {
        header = read(&mut stream, deadline) => header,
        end = must_end => {
            if end == MustEnd::Evicted {
                open.makes_room();
            }
            return;
        }
    };
    let told = header.and_then(|(client, name)| {
        let listener = find(&name).ok_or_else(|| unknown(&name))?;
        let is_proxy = listener.door.as_ref().is_some_and(|(door, _)| door.trusts(client));
        open.relayed_from(client, !is_proxy)?;
        Ok((client, listener))
    });
    let (client, RelayedListener { name, door, plain }) = match told {
        Ok(told) => told,
        Err(error) => return door::log(&open, "relay", &Refused { stage: "header of a relay", error }),
    };
    let origin = Origin::direct(client, stream.local_address(), TransportProtocol::Tcp);
    open.come_through(door::Passage::without_door(origin));
    match door {
        Some((door, runtime)) => drop(runtime.spawn(door.admit(open, stream, name, plain, deadline))),
        None => door::serve(open, Wire::Tcp(stream), name, deadline, &plain),
    }
}

/// Reads the header: the client, and the name of its listener.
async fn read(stream: &mut TcpStream, deadline: Instant) -> io::Result<(Peer, String)> {
    let header = in_time(deadline, async { Ok(proxy_header::read(stream).await?) }).await?;
    let ProxyHeader { peer, listener, .. } = header;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "it lacks the client's address or the listener's name");
    peer.map(Peer::Ip).zip(listener).ok_or_else(missing)
}

fn unknown(name: &str) -> io::Error {
    let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
    io::Error::new(io::ErrorKind::NotFound, format!("there is no open TCP listener {shown:?}"))
}

/// Characters of an unknown name in the log.
const NAME_SHOWN_MAX: usize = 64;
