use std::net::SocketAddr;

use tokio::io::DuplexStream;

use super::Stream;

/// The broker's end of a client's stream in memory.
pub type MemoryStream = DuplexStream;

/// Bytes that a stream holds in each direction.
const CAPACITY: usize = 16 * 1024;

pub(super) fn open(accept: &(dyn Fn(MemoryStream, SocketAddr) + Send + Sync), client: SocketAddr) -> Stream {
    let (ours, brokers) = tokio::io::duplex(CAPACITY);
    accept(brokers, client);
    Box::new(ours)
}
