use std::net::{IpAddr, SocketAddr};

/// Way of a datagram to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: SocketAddr,
    pub(crate) via: Via,
}

/// The socket that a client uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Via {
    /// The local address that the client sends to; `None` = the only one.
    pub(crate) local: Option<IpAddr>,
    /// Number of the relay that has the socket; `None` = this gateway.
    pub(crate) relay: Option<u32>,
}
