//! Requests of a cluster's node to its broker: to serve clients that other nodes pass on, and to tell of changes.

use std::sync::Arc;

use super::Broker;
use crate::hooks::{CopiesChange, Events, LeaderChange};
use crate::net::{self, RelayedStream};
use crate::registry::ClientAddresses;

impl Broker {
    /// Serves a client whose stream a relay at another node passes on, as one of a listener of this broker.
    ///
    /// The stream begins with a header as [`write_relay_header`](crate::write_relay_header) writes it, within the connect
    /// timeout. Everything behind it comes from the client: the listener's own PROXY header, TLS and WebSocket upgrade.
    /// The listener's accounts and bounds hold, for the address in the header. A listener of a gateway gets the stream behind
    /// the header, see [`OpenGateway::serve_relayed`](crate::gateways::OpenGateway::serve_relayed).
    ///
    /// Returns at once. The broker closes the stream when the connection ends, when the header is missing or names no
    /// open listener, or if there is no room. The caller checks beforehand that the peer is a relay, since a relay can
    /// tell any address.
    pub fn serve_relayed(&self, stream: RelayedStream) {
        let parts = Arc::downgrade(&self.parts);
        let find = move |name: &str| parts.upgrade()?.listeners().behind_relay(name);
        let served = net::serve_relayed(Arc::clone(&self.parts.shared), stream, find);
        self.parts.listeners().plain().spawn(served);
    }

    /// Tells hooks and webhooks that this node leads the cluster now.
    pub fn leader_changed(&self, change: &LeaderChange<'_>) {
        self.parts.shared.operations.hooks.tell(Events::LEADER_CHANGED, |hooks| hooks.leader_changed(change));
    }

    /// Tells hooks and webhooks that another number of nodes has all acknowledged messages.
    pub fn copies_changed(&self, change: &CopiesChange<'_>) {
        self.parts.shared.operations.hooks.tell(Events::COPIES_CHANGED, |hooks| hooks.copies_changed(change));
    }

    /// Whether drains have closed all listeners. `None`: the listeners are just being changed.
    pub fn is_drained(&self) -> Option<bool> {
        self.parts.listeners.try_lock().ok().map(|listeners| listeners.is_drained())
    }

    /// Asks slow receivers of MQTT 5.0 to the follower of this node, and back, by DISCONNECT 0x9C with a Server Reference.
    /// `None`: they stay.
    pub fn move_slow_receivers(&self, nodes: Option<ClientAddresses>) {
        self.parts.shared.routing.slow_receivers.move_between(nodes);
    }
}
