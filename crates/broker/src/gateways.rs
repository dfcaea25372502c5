//! Listeners that the embedding program opens, those of MQTT-SN and HTTP, and bridges that it runs.
//!
//! ```text
//!   datagrams ─► OpenGateway ─ stream in memory ─► Entrance ─► a connection of the broker, with its listener's settings
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::{Bridge, Listener};

/// Opens the listeners with `transport = "mqtt-sn"` or `"http"` for a broker: see
/// [`BrokerBuilder::gateways`](crate::BrokerBuilder::gateways).
pub trait Gateways: fmt::Debug + Send + Sync + 'static {
    /// Checks the settings of a listener, without opening it.
    ///
    /// # Errors
    /// A line that names the key and its error.
    fn check(&self, listener: &Listener) -> Result<(), String>;

    /// Opens a listener. It passes its clients' streams to `entrance`, and closes when it is dropped.
    ///
    /// # Errors
    /// A line with the reason, such as a port that is in use.
    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String>;

    /// Counters and gauges of all open listeners together.
    fn values(&self) -> Vec<GatewayValue>;

    /// Checks the settings and files of a bridge, without running it.
    ///
    /// # Errors
    /// A line that names the key and its error; or the program runs no bridges.
    fn check_bridge(&self, bridge: &Bridge) -> Result<(), String> {
        let _ = bridge;
        Err("this program runs no bridges".to_owned())
    }

    /// Runs a bridge, whose local side is a client at `entrance`. It ends when it is dropped.
    ///
    /// # Errors
    /// As of [`Gateways::check_bridge`], or the system refuses what it needs.
    fn open_bridge(&self, bridge: &Bridge, entrance: Entrance) -> Result<Box<dyn OpenBridge>, String> {
        let _ = entrance;
        self.check_bridge(bridge)?;
        Err("this program runs no bridges".to_owned())
    }
}

/// A running bridge of the embedding program.
pub trait OpenBridge: fmt::Debug + Send + Sync {
    /// Its state.
    fn state(&self) -> BridgeState;

    /// Tells it to end, without waiting for that.
    fn stop(&self);

    /// Ends it in order, so that another one may take its place. Blocks for two seconds at most.
    fn finish(&self);
}

/// State of a bridge. Pairs are of the local broker and the remote one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeState {
    /// Whether there are accepted connections.
    pub connected: [bool; 2],
    /// Messages that were passed on, by the side that they come from.
    pub messages: [u64; 2],
    /// QoS 1 and 2 messages under way, by the side that they come from.
    pub in_flight: [u64; 2],
    /// Messages that were not passed on, by reason.
    pub dropped: Vec<(&'static str, u64)>,
    /// Why it is not connected, or which subscriptions a broker has refused.
    pub error: Option<String>,
}

/// A counter or gauge, published at `$SYS/broker/TOPIC`, and in `/metrics` as `tenbin_TOPIC` with `_` for `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayValue {
    /// Topic below `$SYS/broker/`.
    pub topic: String,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Its value.
    pub value: u64,
}

/// An open listener of the embedding program.
pub trait OpenGateway: fmt::Debug + Send + Sync {
    /// Its address, with the actual port.
    fn address(&self) -> SocketAddr;

    /// Reads files of keys and certificates again: the broker was told to, and the listener's settings have not changed.
    fn reload(&self) {}

    /// Serves a stream of a relay at another node, and returns at once: the stream of the client at `peer`, or the datagrams
    /// of all clients at the relay's address `peer`. By default it is closed.
    fn serve_relayed(&self, stream: BoxedStream, peer: SocketAddr) {
        let _ = (stream, peer);
    }
}

/// A byte stream of any kind.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// A byte stream of any kind.
pub type BoxedStream = Box<dyn ByteStream>;

/// Way into the broker for the clients of one listener.
#[derive(Clone, Default)]
pub struct Entrance(Arc<Gate>);

#[derive(Default)]
struct Gate {
    serve: OnceLock<Serve>,
    /// Clients that came while the broker starts.
    waiting: Mutex<Vec<Waiting>>,
}

type Serve = Box<dyn Fn(BoxedStream, SocketAddr, Option<ProvenIdentity>) + Send + Sync>;
type Waiting = (BoxedStream, SocketAddr, Option<ProvenIdentity>);

/// Clients that may wait for the start of the broker: the length of the system's queue of a socket.
const WAITING_MAX: usize = 1024;

/// Identity of a client that the embedding program has verified, such as by DTLS. Sources of the kind `certificate` take
/// it for the client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProvenIdentity {
    /// A name, which counts as the Common Name.
    Name(String),
    /// A certificate in DER.
    Certificate(Box<[u8]>),
}

impl Entrance {
    /// Serves a client over `stream`, as one of the listener, from `peer`, with its identity if it has proven one.
    ///
    /// Returns at once. While the broker starts, the stream waits. The broker drops it when the connection ends; or at once
    /// if there is no room for another connection.
    pub fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        identity: Option<ProvenIdentity>,
    ) {
        if let Some(serve) = self.0.serve.get() {
            return serve(Box::new(stream), peer, identity);
        }
        let mut waiting = self.waiting();
        match self.0.serve.get() {
            Some(serve) => {
                drop(waiting);
                serve(Box::new(stream), peer, identity);
            }
            None if waiting.len() < WAITING_MAX => waiting.push((Box::new(stream), peer, identity)),
            None => {}
        }
    }

    /// Lets clients in from now on.
    pub(crate) fn admit(
        &self,
        serve: impl Fn(BoxedStream, SocketAddr, Option<ProvenIdentity>) + Send + Sync + 'static,
    ) {
        // It is called once for each entrance.
        let serve = self.0.serve.get_or_init(|| Box::new(serve));
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(|(stream, peer, identity)| serve(stream, peer, identity));
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // No panic occurs under this lock.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.serve.get().is_some() { "Entrance(open)" } else { "Entrance(closed)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_wait_while_the_broker_starts() {
        let entrance = Entrance::default();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        entrance.serve(tokio::io::empty(), address(1), None);
        let served = Arc::<Mutex<Vec<u16>>>::default();
        let peers = Arc::clone(&served);
        entrance.admit(move |_, peer, _| peers.lock().unwrap().push(peer.port()));
        entrance.serve(tokio::io::empty(), address(2), None);
        assert_eq!(*served.lock().unwrap(), [1, 2]);
    }
}
