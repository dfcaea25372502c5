use tokio::io::DuplexStream;

use super::{Accept, ClientOrigin, Stream};

/// The broker's end of a client's stream in memory.
pub type MemoryStream = DuplexStream;

/// Bytes that a stream holds in each direction.
const CAPACITY: usize = 16 * 1024;

pub(super) fn open(accept: &Accept, client: &ClientOrigin) -> Stream {
    let (ours, brokers) = tokio::io::duplex(CAPACITY);
    accept(brokers, client);
    Box::new(ours)
}
