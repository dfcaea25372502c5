//! Sockets of listeners that are open before the broker starts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::{Broker, BrokerBuilder, StartError, blocking};
use crate::Config;
use crate::config::{ListenAddress, Listener};
use crate::net::{Acceptor, ListenError, ListeningSocket, ResolvedNames};

/// Open sockets of a configuration's listeners. A standby node of a cluster accepts clients at them for its relay. The
/// broker that it starts at its promotion takes them over, so that no connection is refused.
#[derive(Debug, Default)]
pub struct OpenSockets {
    listeners: Vec<OpenedListener>,
    names: ResolvedNames,
}

#[derive(Debug)]
struct OpenedListener {
    name: Arc<str>,
    /// Its name in the headers of relayed clients.
    relayed_name: Arc<str>,
    address: ListenAddress,
    sockets: Vec<ListeningSocket>,
}

impl OpenSockets {
    /// Opens the sockets of all listeners, as a broker does. Connections wait in the system's queue until something
    /// accepts them. Listeners of gateways are left to the broker.
    ///
    /// # Errors
    /// Addresses overlap, a name is unknown, or an address is in use. Then no socket is open.
    pub async fn open(config: &Config) -> Result<Self, StartError> {
        let wanted: Vec<_> = config.all_listeners().collect();
        let looked_up = wanted.clone();
        let names = blocking(move || ResolvedNames::look_up(&looked_up)).await.map_err(StartError::Listen)?;
        let overlaps = config.overlaps(&|name| names.addresses(name).unwrap_or_default());
        if let Some(error) = overlaps.into_iter().next() {
            return Err(StartError::Config(error));
        }
        let wanted = wanted.into_iter().enumerate().filter(|(_, listener)| listener.transport.at_gateway().is_none());
        let open = |(at, listener): (usize, Listener)| {
            let sockets = ListeningSocket::open_all(&listener, &names, config)?;
            Ok(OpenedListener::new(at, listener, sockets))
        };
        let listeners = wanted.map(open).collect::<Result<_, _>>().map_err(StartError::Listen)?;
        Ok(Self { listeners, names })
    }

    /// Accepts connections at each TCP socket, with the name of its listener for the headers of relayed clients, on the
    /// calling runtime.
    ///
    /// The broker accepts at the same sockets from its start on. Drop the acceptors then.
    ///
    /// # Errors
    /// The system refuses a further descriptor.
    pub fn acceptors(&self) -> io::Result<Vec<(Arc<str>, TcpListener)>> {
        let mut acceptors = Vec::new();
        for OpenedListener { relayed_name: name, sockets, .. } in &self.listeners {
            for socket in sockets.iter().filter(|socket| socket.ip().is_some()) {
                if let Acceptor::Tcp(acceptor) = socket.acceptor()? {
                    acceptors.push((Arc::clone(name), acceptor));
                }
            }
        }
        Ok(acceptors)
    }

    /// Addresses of the TCP sockets, with the actual ports.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let sockets = self.listeners.iter().flat_map(|listener| &listener.sockets);
        sockets.filter_map(ListeningSocket::ip).collect()
    }

    /// Listeners of gateways in a configuration, each with its name in the headers of relayed clients. Their sockets are not
    /// among the open ones: a relay opens them, and closes them before the broker starts.
    pub fn of_gateways(config: &Config) -> Vec<(Arc<str>, Listener)> {
        let all = config.all_listeners().enumerate();
        let of_gateways = all.filter(|(_, listener)| listener.transport.at_gateway().is_some());
        of_gateways.map(|(at, listener)| (relayed_name(at, &listener), listener)).collect()
    }

    /// Ports of the TCP listeners: name of the listener, its name in the headers of relayed clients, and its first port.
    pub fn ports(&self) -> Vec<(Arc<str>, Arc<str>, u16)> {
        let ports = self.listeners.iter().filter_map(|OpenedListener { name, relayed_name, sockets, .. }| {
            let port = sockets.iter().find_map(ListeningSocket::ip)?.port();
            Some((Arc::clone(name), Arc::clone(relayed_name), port))
        });
        ports.collect()
    }

    /// Looks up the names of further listeners.
    ///
    /// # Errors
    /// A name is unknown.
    pub(super) fn look_up(&mut self, listeners: &[Listener]) -> Result<(), ListenError> {
        self.names.extend(listeners)
    }

    pub(super) fn names(&self) -> &ResolvedNames {
        &self.names
    }

    /// Takes the open sockets of a listener, which is known by its name and its address.
    pub(super) fn take(&mut self, listener: &Listener) -> Option<Vec<ListeningSocket>> {
        let is_wanted = |open: &OpenedListener| open.name == listener.name() && open.address == listener.address;
        let at = self.listeners.iter().position(is_wanted)?;
        Some(self.listeners.swap_remove(at).sockets)
    }
}

/// Begins the name of a listener without a name in headers of relayed clients. Its place in the configuration follows.
pub(super) const BY_PLACE: char = '#';

impl Broker {
    /// The open sockets of this broker's listeners, for a node of a cluster that is about to end it. `None`: some
    /// listeners are not open, or are no TCP listeners, so that [`OpenSockets::open`] has to open them again.
    pub fn open_sockets(&self) -> Option<OpenSockets> {
        let listeners = self.parts.listeners().opened()?;
        let listeners = listeners.into_iter().map(|(at, settings, sockets)| OpenedListener::new(at, settings, sockets));
        Some(OpenSockets { listeners: listeners.collect(), names: ResolvedNames::default() })
    }
}

impl OpenedListener {
    /// A listener at its place in the configuration.
    fn new(at: usize, listener: Listener, sockets: Vec<ListeningSocket>) -> Self {
        let relayed_name = relayed_name(at, &listener);
        Self { name: listener.name(), relayed_name, address: listener.address, sockets }
    }
}

/// Name of a listener in the headers of relayed clients. `at`: its place in the configuration. The name of an unnamed listener
/// is its address, and another node has another one.
fn relayed_name(at: usize, listener: &Listener) -> Arc<str> {
    listener.name.clone().unwrap_or_else(|| format!("{BY_PLACE}{at}")).into()
}

impl BrokerBuilder {
    /// Listens at sockets that are open already. Listeners without one among them are opened as usual; sockets of other
    /// listeners are closed.
    #[must_use]
    pub fn sockets(self, sockets: OpenSockets) -> Self {
        Self { sockets, ..self }
    }
}
