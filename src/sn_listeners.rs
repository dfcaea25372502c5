//! Listeners of `tenbin broker` for MQTT-SN: a gateway in the same process, with streams in memory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenbin_broker::config::{ListenAddress, Listener, Transport};
use tenbin_broker::gateways::{Entrance, GatewayValue, Gateways, OpenGateway};
use tenbin_sn_gateway::{Config, Gateway, Stats, Upstream};

/// Opens gateways for a broker.
#[derive(Debug, Clone)]
pub(crate) struct SnListeners(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Directory for topic ids and Wills; empty = they end with the broker.
    state: PathBuf,
    open: Mutex<Vec<Weak<Gateway>>>,
}

/// An open gateway.
#[derive(Debug)]
struct Open(Arc<Gateway>);

/// Listener that admits all clients.
pub(crate) fn anonymous(address: SocketAddr) -> Listener {
    Listener { transport: Transport::MqttSn, name: Some(format!("sn-{address}")), ..Listener::anonymous(address) }
}

impl SnListeners {
    /// No gateway is open yet. `data` is the broker's data directory; empty = it has none.
    pub(crate) fn new(data: &Path) -> Self {
        let state = if data.as_os_str().is_empty() { PathBuf::new() } else { data.join("sn") };
        Self(Arc::new(Shared { state, open: Mutex::default() }))
    }

    /// UDP addresses of the open gateways.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.open().iter().map(|gateway| gateway.address()).collect()
    }

    fn open(&self) -> Vec<Arc<Gateway>> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|gateway| gateway.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }

    fn configuration(&self, listener: &Listener) -> Result<Config, String> {
        let &ListenAddress::Ip(address) = &listener.address else {
            return Err("address: MQTT-SN needs an IP address with a port".to_owned());
        };
        let mut config =
            Config::of_listener(address, listener.sn.clone().unwrap_or_default()).map_err(|error| error.to_string())?;
        if !self.0.state.as_os_str().is_empty() {
            // A name may contain any character.
            let name = listener.name.clone().unwrap_or_else(|| address.to_string()).replace('/', "_");
            config.state = self.0.state.join(name);
        }
        Ok(config)
    }
}

impl Gateways for SnListeners {
    fn check(&self, listener: &Listener) -> Result<(), String> {
        self.configuration(listener).map(drop)
    }

    fn open(&self, listener: &Listener, entrance: Entrance) -> Result<Box<dyn OpenGateway>, String> {
        let upstream = Upstream::memory(move |stream, client| entrance.serve(stream, client));
        let gateway = Gateway::start(self.configuration(listener)?, upstream).map_err(|error| error.to_string())?;
        let gateway = Arc::new(gateway);
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&gateway));
        Ok(Box::new(Open(gateway)))
    }

    fn values(&self) -> Vec<GatewayValue> {
        let open = self.open();
        let sum = Stats::sum(open.iter().map(|gateway| gateway.stats()));
        let value = |(name, value): (&str, u64)| GatewayValue {
            topic: format!("sn/{name}"),
            is_counter: name != "clients",
            value,
        };
        sum.iter().map(value).collect()
    }
}

impl OpenGateway for Open {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
