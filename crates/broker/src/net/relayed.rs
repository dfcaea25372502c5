//! Connections that another node of the cluster has accepted and passes on.
//!
//! ```text
//!   client ─► relay at another node ─ PROXY header with the listener's name ─► door of the listener ─► MQTT
//!                                                                           └► gateway of the listener
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use tenbin_codec::EXTERNAL_GREETING;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use super::core::{MustEnd, OpenConnection};
use super::door::{self, Door, Refused, in_time};
use super::proxy_header::{self, ProxyHeader};
use super::stream::Stream;
use super::wire::Wire;
use crate::gateways::OpenGateway;
use crate::lifecycle::BrokerState;
use crate::values::{Origin, Peer, TransportProtocol};

/// Stream from a relay at another node.
#[derive(Debug)]
pub enum RelayedStream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS between the nodes. Its handshake is done.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl RelayedStream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl From<RelayedStream> for Wire {
    fn from(stream: RelayedStream) -> Self {
        match stream {
            RelayedStream::Plain(stream) => Self::Tcp(stream),
            #[cfg(feature = "tls")]
            RelayedStream::Tls(stream) => Self::Relay(stream),
        }
    }
}

/// The listener that a relayed client has connected to.
#[derive(Debug)]
pub(crate) enum RelayedListener {
    Broker {
        name: Arc<str>,
        /// Door with its runtime; `None` for plain TCP.
        door: Option<(Arc<Door>, Handle)>,
        /// Runtime of connections, if there are no worker threads.
        plain: Handle,
    },
    /// The embedding program serves it.
    Gateway(Weak<dyn OpenGateway>),
}

/// Serves a relayed connection as one of the listener that its PROXY header names. `find` looks the listener up.
///
/// The connection counts for the told client from the header on. A listener that expects a PROXY header itself finds the
/// next one in the stream; the told client is the peer whose header it trusts.
pub(crate) async fn serve(
    shared: Arc<BrokerState>,
    stream: RelayedStream,
    find: impl FnOnce(&str) -> Option<RelayedListener>,
) {
    let Ok(relay) = stream.socket().peer_addr().map(Peer::Ip) else { return };
    let mut stream = Wire::from(stream);
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
    let told = header.and_then(|(client, name, takes_references)| {
        let listener = find(&name).ok_or_else(|| unknown(&name))?;
        if let RelayedListener::Broker { door, .. } = &listener {
            let is_proxy = door.as_ref().is_some_and(|(door, _)| door.trusts(Peer::Ip(client)));
            open.relayed_from(Peer::Ip(client), !is_proxy)?;
        }
        Ok((client, listener, takes_references))
    });
    let (client, listener, takes_references) = match told {
        Ok(told) => told,
        Err(error) => return door::log(&open, "relay", &Refused { stage: "header of a relay", error }),
    };
    let (name, door, plain) = match listener {
        RelayedListener::Broker { name, door, plain } => (name, door, plain),
        RelayedListener::Gateway(gateway) => {
            drop(open); // the gateway bounds its clients itself
            if let Some(gateway) = gateway.upgrade() {
                gateway.serve_relayed(Box::new(stream), client);
            }
            return;
        }
    };
    let client = Peer::Ip(client);
    // Behind a door, the relay cannot see packets.
    if takes_references && door.is_none() {
        // The buffer of a new socket takes it at once.
        if stream.write_all(&EXTERNAL_GREETING).await.is_err() {
            return; // the relay has gone
        }
    }
    let origin = Origin::direct(client, stream.local_address(), TransportProtocol::Tcp);
    open.come_through(door::Passage::without_door(origin));
    if takes_references && door.is_none() {
        open.take_references();
    }
    match door {
        Some((door, runtime)) => drop(runtime.spawn(door.admit(open, stream, name, plain, deadline))),
        None => door::serve(open, stream, name, deadline, &plain),
    }
}

/// Reads the header: the client, the name of its listener, and whether the relay takes messages by reference.
async fn read(stream: &mut Wire, deadline: Instant) -> io::Result<(SocketAddr, String, bool)> {
    let header = in_time(deadline, async { Ok(proxy_header::read(stream).await?) }).await?;
    let ProxyHeader { peer, listener, takes_references, .. } = header;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "it lacks the client's address or the listener's name");
    let (peer, listener) = peer.zip(listener).ok_or_else(missing)?;
    Ok((peer, listener, takes_references))
}

fn unknown(name: &str) -> io::Error {
    let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
    io::Error::new(io::ErrorKind::NotFound, format!("there is no open listener {shown:?} for relayed clients"))
}

/// Characters of an unknown name in the log.
const NAME_SHOWN_MAX: usize = 64;
