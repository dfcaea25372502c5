//! Listeners of `tenbin broker` for MQTT-SN: a gateway in the same process, with streams in memory.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenbin_broker::config::{ListenAddress, Listener, Transport};
use tenbin_broker::gateways::{BoxedStream, Entrance, GatewayValue, Gateways, OpenGateway, ProvenIdentity};
use tenbin_sn_gateway::config::Listener as SnListener;
use tenbin_sn_gateway::{Config, Gateway, Identity, StateCopy, Stats, Upstream};

use super::{Opened, address_of, name_of};

/// Opens gateways for a broker.
#[derive(Debug, Clone)]
pub(crate) struct SnListeners(Arc<SharedSn>);

struct SharedSn {
    /// Directory for topic ids and Wills; empty = they end with the broker.
    state: PathBuf,
    /// Learns of each write there.
    copy: Option<Arc<dyn StateCopy>>,
    open: Opened<Gateway>,
}

impl fmt::Debug for SharedSn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnListeners").field("state", &self.state).finish_non_exhaustive()
    }
}

/// An open gateway.
#[derive(Debug)]
struct Open(Arc<Gateway>);

impl SnListeners {
    /// No gateway is open yet. `data` is the broker's data directory; empty = it has none.
    pub(super) fn new(data: &Path, copy: Option<Arc<dyn StateCopy>>) -> Self {
        let state = if data.as_os_str().is_empty() { PathBuf::new() } else { data.join("sn") };
        Self(Arc::new(SharedSn { state, copy, open: Opened::none() }))
    }

    /// UDP addresses of the open gateways.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.open.all().iter().map(|gateway| gateway.address()).collect()
    }

    /// The first overlap among the listeners' sockets: see [`overlap`].
    pub(crate) fn overlap(&self, file: Option<&Path>, listeners: &[Listener]) -> Option<String> {
        let sn = listeners.iter().filter(|listener| listener.transport == Transport::MqttSn);
        let place = |listener: &Listener| format!("listeners: {}: ", name_of(listener));
        overlap(file, sn.filter_map(|listener| Some((place(listener), self.configuration(listener).ok()?.listener))))
    }

    fn configuration(&self, listener: &Listener) -> Result<Config, String> {
        let address = address_of(listener)?;
        let mut config =
            Config::of_listener(address, listener.sn.clone().unwrap_or_default()).map_err(|error| error.to_string())?;
        config.set_state_below(&self.0.state, &name_of(listener));
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
        let gateway = Gateway::start_copied(self.configuration(listener)?, upstream, self.0.copy.clone());
        Ok(Box::new(Open(self.0.open.add(gateway.map_err(|error| error.to_string())?))))
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

/// Two sockets of which the system opens one alone, if there are such among the listeners; each comes with the place of
/// its keys. Sockets of multicast groups may share an address.
pub(crate) fn overlap(file: Option<&Path>, listeners: impl Iterator<Item = (String, SnListener)>) -> Option<String> {
    let mut before = Vec::<(String, bool, ListenAddress)>::new();
    for (place, SnListener { address, multicast, .. }) in listeners {
        let group = multicast.map(|group| (format!("{place}multicast"), true, group));
        for (key, is_group, address) in [(format!("{place}address"), false, address)].into_iter().chain(group) {
            let address = ListenAddress::from(address);
            let is_alone = |(_, is_other_group, other): &&(String, bool, ListenAddress)| {
                !(is_group && *is_other_group) && address.overlaps(other)
            };
            if let Some((other_key, _, other)) = before.iter().find(is_alone) {
                let file = file.map_or_else(String::new, |file| format!(" {}", file.display()));
                return Some(format!("configuration{file}: {key}: {address} overlaps {other} ({other_key})"));
            }
            before.push((key, is_group, address));
        }
    }
    None
}

fn identity(identity: &Identity) -> ProvenIdentity {
    match identity.certificate() {
        Some(certificate) => ProvenIdentity::Certificate(certificate.into()),
        // A pre-shared key has a name.
        None => ProvenIdentity::Name(identity.name().unwrap_or_default()),
    }
}

impl OpenGateway for Open {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn reload(&self) {
        self.0.reload_keys();
    }

    fn serve_relayed(&self, stream: BoxedStream, _: SocketAddr) {
        self.0.serve_relay(stream);
    }
}
