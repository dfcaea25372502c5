use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::DuplexStream;

/// The broker's end of a client's stream in memory.
pub type MemoryStream = DuplexStream;

/// Bytes that a stream holds in each direction. Its buffers grow as they are needed, and end with the HTTP connection.
const CAPACITY: usize = 16 * 1024;

/// Way to the broker: accepts a stream for each client.
#[derive(Clone)]
pub struct Upstream(Arc<dyn Fn(MemoryStream, SocketAddr) + Send + Sync>);

impl Upstream {
    /// Memory: `accept` gets the broker's end of each stream, and the address of the HTTP client. It is called on a
    /// thread of the server, within a tokio runtime.
    pub fn memory(accept: impl Fn(MemoryStream, SocketAddr) + Send + Sync + 'static) -> Self {
        Self(Arc::new(accept))
    }

    /// Opens a stream for the client at `peer`.
    pub(crate) fn open(&self, peer: SocketAddr) -> MemoryStream {
        let (ours, brokers) = tokio::io::duplex(CAPACITY);
        (self.0)(brokers, peer);
        ours
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upstream")
    }
}
