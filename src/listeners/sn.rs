//! Listeners of `tenbin broker` for MQTT-SN: a gateway in the same process, with streams in memory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenbin_broker::config::Listener;
use tenbin_broker::gateways::{Entrance, GatewayValue, Gateways, OpenGateway, ProvenIdentity};
use tenbin_sn_gateway::{Config, Gateway, Identity, Stats, Upstream};

use super::{Opened, address_of};

/// Opens gateways for a broker.
#[derive(Debug, Clone)]
pub(crate) struct SnListeners(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Directory for topic ids and Wills; empty = they end with the broker.
    state: PathBuf,
    open: Opened<Gateway>,
}

/// An open gateway.
#[derive(Debug)]
struct Open(Arc<Gateway>);

impl SnListeners {
    /// No gateway is open yet. `data` is the broker's data directory; empty = it has none.
    pub(super) fn new(data: &Path) -> Self {
        let state = if data.as_os_str().is_empty() { PathBuf::new() } else { data.join("sn") };
        Self(Arc::new(Shared { state, open: Opened::none() }))
    }

    /// UDP addresses of the open gateways.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.open.all().iter().map(|gateway| gateway.address()).collect()
    }

    fn configuration(&self, listener: &Listener) -> Result<Config, String> {
        let address = address_of(listener)?;
        let mut config =
            Config::of_listener(address, listener.sn.clone().unwrap_or_default()).map_err(|error| error.to_string())?;
        let name = listener.name.clone().unwrap_or_else(|| address.to_string());
        config.set_state_below(&self.0.state, &name);
        Ok(config)
    }
}

impl Gateways for SnListeners {
    fn check(&self, listener: &Listener) -> Result<(), String> {
        self.configuration(listener)?.check_files().map_err(|error| error.to_string())
    }

    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String> {
        let upstream = Upstream::memory(move |stream, client| {
            entrance.serve(stream, client.address, client.identity.as_deref().map(identity));
        });
        let gateway = Gateway::start(self.configuration(listener)?, upstream).map_err(|error| error.to_string())?;
        Ok(Box::new(Open(self.0.open.add(gateway))))
    }

    fn values(&self) -> Vec<GatewayValue> {
        let open = self.0.open.all();
        let sum = Stats::sum(open.iter().map(|gateway| gateway.stats()));
        let value = |(name, value): (&str, u64)| GatewayValue {
            topic: format!("sn/{name}"),
            is_counter: !["clients", "timers", "dtls_sessions"].contains(&name),
            value,
        };
        sum.iter().map(value).collect()
    }
}

#[cfg(feature = "dtls")]
fn identity(identity: &Identity) -> ProvenIdentity {
    match identity {
        Identity::PreSharedKey(name) => ProvenIdentity::Name(name.clone()),
        Identity::Certificate(der) => ProvenIdentity::Certificate(der.clone()),
    }
}

#[cfg(not(feature = "dtls"))]
fn identity(identity: &Identity) -> ProvenIdentity {
    match *identity {}
}

impl OpenGateway for Open {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn reload(&self) {
        self.0.reload_keys();
    }
}
