//! Listeners that `tenbin broker` opens for its broker, those of MQTT-SN and HTTP, and its bridges.

#[cfg(feature = "bridge")]
mod bridges;
mod http;
mod sn;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenbin_broker::Config;
use tenbin_broker::config::{ListenAddress, Listener, Transport};
use tenbin_broker::gateways::{Entrance, GatewayValue, Gateways, OpenGateway};
#[cfg(feature = "bridge")]
use tenbin_broker::{config::Bridge, gateways::OpenBridge};
use tenbin_sn_gateway::StateCopy;

pub(crate) use http::HttpListeners;
pub(crate) use sn::{SnListeners, overlap};

/// Opens the listeners of MQTT-SN and HTTP.
#[derive(Debug, Clone)]
pub(crate) struct AllListeners {
    pub(crate) sn: SnListeners,
    pub(crate) http: HttpListeners,
    #[cfg(feature = "bridge")]
    pub(crate) bridges: bridges::Bridges,
}

impl AllListeners {
    /// No listener is open yet. HTTP has at most `threads`, and the bounds of `config`. `copy` learns what gateways of
    /// MQTT-SN write to the data directory.
    pub(crate) fn new(config: &Config, threads: usize, copy: Option<Arc<dyn StateCopy>>) -> Self {
        Self {
            sn: SnListeners::new(&config.store.directory, copy),
            http: HttpListeners::new(config, threads),
            #[cfg(feature = "bridge")]
            bridges: bridges::Bridges::none(),
        }
    }

    /// Errors in the settings of such listeners, and of bridges.
    pub(crate) fn errors(&self, config: &Config) -> Vec<String> {
        let ours = config
            .listeners
            .iter()
            .filter(|listener| matches!(listener.transport, Transport::MqttSn | Transport::Http));
        let error = |listener: &Listener| {
            self.check(listener).err().map(|reason| format!("listener {}: {reason}", name_of(listener)))
        };
        let mut errors: Vec<_> = ours.filter_map(error).collect();
        for bridge in config.bridge.iter().filter(|bridge| bridge.local.is_none()) {
            let reason = self.check_bridge(bridge).err();
            errors.extend(reason.map(|reason| config.error_in_bridge(bridge, &reason).to_string()));
        }
        errors
    }

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

    #[cfg(feature = "bridge")]
    fn check_bridge(&self, bridge: &Bridge) -> Result<(), String> {
        crate::bridge::check(bridge)
    }

    #[cfg(feature = "bridge")]
    fn open_bridge(&self, bridge: &Bridge, entrance: Entrance) -> Result<Box<dyn OpenBridge>, String> {
        self.bridges.open(bridge, entrance)
    }
}

/// Open servers of one kind. The broker owns them, and closes them by dropping.
#[derive(Debug)]
struct Opened<S>(Mutex<Vec<Weak<S>>>);

impl<S> Opened<S> {
    fn none() -> Self {
        Self(Mutex::default())
    }

    fn add(&self, server: S) -> Arc<S> {
        let server = Arc::new(server);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&server));
        server
    }

    fn all(&self) -> Vec<Arc<S>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|server| server.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Listener of `--sn` and `--http`, which admits all clients.
pub(crate) fn anonymous(transport: Transport, address: SocketAddr) -> Listener {
    let kind = if transport == Transport::Http { "http" } else { "sn" };
    Listener { transport, name: Some(format!("{kind}-{address}")), ..Listener::anonymous(address) }
}

fn name_of(listener: &Listener) -> String {
    listener.name.clone().unwrap_or_else(|| listener.address.to_string())
}

fn address_of(listener: &Listener) -> Result<SocketAddr, String> {
    match listener.address {
        ListenAddress::Ip(address) => Ok(address),
        _ => Err("address: needs an IP address with a port".to_owned()),
    }
}
