//! Listeners of `tenbin broker` for HTTP ingest: a server in the same process, with streams in memory.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenbin_broker::Config;
use tenbin_broker::config::{ListenAddress, Listener, Transport};
use tenbin_broker::gateways::{Entrance, GatewayValue, Gateways, OpenGateway};
use tenbin_http_ingest::{Server, Settings, Upstream};

use crate::sn_listeners::SnListeners;

/// Opens servers for a broker.
#[derive(Debug, Clone)]
pub(crate) struct HttpListeners(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: Settings,
    open: Mutex<Vec<Weak<Server>>>,
}

/// An open server.
#[derive(Debug)]
struct Open(Arc<Server>);

/// Opens the listeners of MQTT-SN and HTTP.
#[derive(Debug)]
pub(crate) struct AllListeners {
    pub(crate) sn: SnListeners,
    pub(crate) http: HttpListeners,
}

/// Listener that admits all clients.
pub(crate) fn anonymous(address: SocketAddr) -> Listener {
    Listener { transport: Transport::Http, name: Some(format!("http-{address}")), ..Listener::anonymous(address) }
}

impl HttpListeners {
    /// No server is open yet. Each has at most `threads`, and the bounds of `config`.
    pub(crate) fn new(config: &Config, threads: usize) -> Self {
        let (per_address_maximum, loopback_per_address_maximum) = config.connections_per_address_maximum();
        let settings = Settings {
            threads,
            body_bytes_maximum: config.packet_bytes_maximum() as usize,
            connections_maximum: config.connections.maximum,
            per_address_maximum,
            loopback_per_address_maximum,
            ..Settings::default()
        };
        Self(Arc::new(Shared { settings, open: Mutex::default() }))
    }

    /// Addresses of the open servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.open().iter().map(|server| server.address()).collect()
    }

    /// Stops accepting connections, and waits a moment for the answers to requests in progress.
    pub(crate) async fn finish(&self) {
        for server in self.open() {
            server.finish().await;
        }
    }

    fn open(&self) -> Vec<Arc<Server>> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|server| server.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Gateways for HttpListeners {
    fn check(&self, listener: &Listener) -> Result<(), String> {
        address_of(listener).map(drop)
    }

    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String> {
        let socket = TcpListener::bind(address_of(listener)?).map_err(|error| error.to_string())?;
        let upstream = Upstream::memory(move |stream, client| entrance.serve(stream, client));
        let server = Server::start(socket, self.0.settings.clone(), upstream).map_err(|error| error.to_string())?;
        let server = Arc::new(server);
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&server));
        Ok(Box::new(Open(server)))
    }

    fn values(&self) -> Vec<GatewayValue> {
        Vec::new()
    }
}

impl OpenGateway for Open {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

impl AllListeners {
    fn of(&self, listener: &Listener) -> &dyn Gateways {
        if listener.transport == Transport::Http { &self.http } else { &self.sn }
    }
}

impl Gateways for AllListeners {
    fn check(&self, listener: &Listener) -> Result<(), String> {
        self.of(listener).check(listener)
    }

    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String> {
        self.of(listener).open(listener, entrance)
    }

    fn values(&self) -> Vec<GatewayValue> {
        let mut values = self.sn.values();
        values.extend(self.http.values());
        values
    }
}

fn address_of(listener: &Listener) -> Result<SocketAddr, String> {
    match listener.address {
        ListenAddress::Ip(address) => Ok(address),
        _ => Err("address: HTTP needs an IP address with a port".to_owned()),
    }
}
