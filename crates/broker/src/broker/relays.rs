//! Clients that other nodes of the cluster pass on.

use std::sync::{Arc, Weak};

use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::{Broker, Parts};
use crate::net;

/// Serves clients that other nodes of the cluster have accepted. Clones serve clients of the same broker; they do not
/// keep it running.
#[derive(Debug, Clone)]
pub struct Relays {
    parts: Weak<Parts>,
    runtime: Handle,
}

impl Broker {
    /// Serves clients that other nodes of the cluster have accepted.
    pub fn relays(&self) -> Relays {
        Relays { parts: Arc::downgrade(&self.parts), runtime: self.parts.listeners().plain().clone() }
    }

    /// As [`Relays::serve`].
    pub fn serve_relayed(&self, stream: TcpStream) {
        self.relays().serve(stream);
    }
}

impl Relays {
    /// Serves a client whose stream a relay passes on, as one of a listener of this broker.
    ///
    /// The stream begins with a header as [`write_relay_header`](crate::write_relay_header) writes it, within the connect
    /// timeout. Everything behind it comes from the client: the listener's own PROXY header, TLS and WebSocket upgrade.
    /// The listener's accounts and bounds hold, for the address in the header.
    ///
    /// Returns at once. The broker closes the stream when the connection ends, when the header is missing or names no
    /// open TCP listener, or if there is no room. The caller checks beforehand that the peer is a relay, since a relay can tell any address.
    pub fn serve(&self, stream: TcpStream) {
        let Some(shared) = self.parts.upgrade().map(|parts| Arc::clone(&parts.shared)) else { return };
        let parts = Weak::clone(&self.parts);
        let find = move |name: &str| parts.upgrade()?.listeners().behind_relay(name);
        self.runtime.spawn(net::serve_relayed(shared, stream, find));
    }
}
