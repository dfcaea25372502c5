use std::net::{IpAddr, SocketAddr};

/// Way of a datagram to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: SocketAddr,
    /// The local address that the client sends to; `None` = the only one.
    pub(crate) from: Option<IpAddr>,
}
