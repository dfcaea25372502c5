//! Clients that other nodes of the cluster pass on.

use std::sync::Arc;

use tokio::net::TcpStream;

use super::Broker;
use crate::net;

impl Broker {
    /// Serves a client whose stream a relay at another node passes on, as one of a listener of this broker.
    ///
    /// The stream begins with a header as [`write_relay_header`](crate::write_relay_header) writes it, within the connect
    /// timeout. Everything behind it comes from the client: the listener's own PROXY header, TLS and WebSocket upgrade.
    /// The listener's accounts and bounds hold, for the address in the header.
    ///
    /// Returns at once. The broker closes the stream when the connection ends, when the header is missing or names no
    /// open TCP listener, or if there is no room. The caller checks beforehand that the peer is a relay, since a relay can
    /// tell any address.
    pub fn serve_relayed(&self, stream: TcpStream) {
        let parts = Arc::downgrade(&self.parts);
        let find = move |name: &str| parts.upgrade()?.listeners().behind_relay(name);
        let served = net::serve_relayed(Arc::clone(&self.parts.shared), stream, find);
        self.parts.listeners().plain().spawn(served);
    }
}
