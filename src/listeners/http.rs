//! Listeners of `tenbin broker` for HTTP ingest: a server in the same process, with streams in memory.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tenbin_broker::Config;
use tenbin_broker::config::Listener;
use tenbin_broker::gateways::{BoxedStream, Entrance, GatewayValue, Gateways, OpenGateway};
use tenbin_http_ingest::{Server, Settings, Upstream};

use super::{Opened, address_of};

/// Opens servers for a broker.
#[derive(Debug, Clone)]
pub(crate) struct HttpListeners(Arc<SharedHttp>);

#[derive(Debug)]
struct SharedHttp {
    settings: Settings,
    open: Opened<Server>,
}

/// An open server.
#[derive(Debug)]
struct Open(Arc<Server>);

impl HttpListeners {
    /// No server is open yet. Each has at most `threads`, and the bounds of `config`.
    pub(super) fn new(config: &Config, threads: usize) -> Self {
        let (per_address_maximum, loopback_per_address_maximum) = config.connections_per_address_maximum();
        let settings = Settings {
            threads,
            body_bytes_maximum: config.packet_bytes_maximum() as usize,
            connections_maximum: config.connections.maximum,
            per_address_maximum,
            loopback_per_address_maximum,
            ..Settings::default()
        };
        Self(Arc::new(SharedHttp { settings, open: Opened::none() }))
    }

    /// Addresses of the open servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.open.all().iter().map(|server| server.address()).collect()
    }

    /// Stops accepting connections, and waits a moment for the answers to requests in progress.
    pub(crate) async fn finish(&self) {
        for server in self.0.open.all() {
            server.finish().await;
        }
    }
}

impl Gateways for HttpListeners {
    fn check(&self, listener: &Listener) -> Result<(), String> {
        address_of(listener).map(drop)
    }

    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String> {
        let socket = TcpListener::bind(address_of(listener)?).map_err(|error| error.to_string())?;
        let upstream = Upstream::memory(move |stream, client| entrance.serve(stream, client, None));
        let server = Server::start(socket, self.0.settings.clone(), upstream).map_err(|error| error.to_string())?;
        Ok(Box::new(Open(self.0.open.add(server))))
    }

    fn values(&self) -> Vec<GatewayValue> {
        Vec::new()
    }
}

impl OpenGateway for Open {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn serve_relayed(&self, stream: BoxedStream, peer: SocketAddr) {
        self.0.serve(stream, peer);
    }
}
