//! Listeners that the embedding program opens, those of MQTT-SN and HTTP.
//!
//! ```text
//!   datagrams ─► OpenGateway ─ stream in memory ─► Entrance ─► a connection of the broker, with its listener's settings
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Listener;

/// Opens the listeners with `transport = "mqtt-sn"` or `"http"` for a broker: see
/// [`BrokerBuilder::gateways`](crate::BrokerBuilder::gateways).
pub trait Gateways: fmt::Debug + Send + Sync + 'static {
    /// Checks the settings of a listener, without opening it.
    ///
    /// # Errors
    /// A line that names the key and what is wrong with it.
    fn check(&self, listener: &Listener) -> Result<(), String>;

    /// Opens a listener. It passes its clients' streams to `entrance`, and closes when it is dropped.
    ///
    /// # Errors
    /// A line with the reason, such as a port that is in use.
    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String>;

    /// Counters and gauges of all open listeners together.
    fn values(&self) -> Vec<GatewayValue>;
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
}

/// A byte stream of any kind.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

pub(crate) type BoxedStream = Box<dyn ByteStream>;

/// Way into the broker for the clients of one listener.
#[derive(Clone, Default)]
pub struct Entrance(Arc<OnceLock<Serve>>);

type Serve = Box<dyn Fn(BoxedStream, SocketAddr, Option<ProvenIdentity>) + Send + Sync>;

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
    /// Returns at once. The broker drops the stream when the connection ends; or at once while it starts, or if there is
    /// no room for another connection.
    pub fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        identity: Option<ProvenIdentity>,
    ) {
        if let Some(serve) = self.0.get() {
            serve(Box::new(stream), peer, identity);
        }
    }

    /// Lets clients in from now on.
    pub(crate) fn admit(
        &self,
        serve: impl Fn(BoxedStream, SocketAddr, Option<ProvenIdentity>) + Send + Sync + 'static,
    ) {
        // It is called once for each entrance.
        let _ = self.0.set(Box::new(serve));
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Entrance(open)" } else { "Entrance(closed)" })
    }
}
