//! Bridges that the embedding program runs for the broker.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::Listeners;
use crate::Config;
use crate::config::{Bridge, ConfigError};
#[cfg(feature = "admin")]
use crate::gateways::BridgeState;
use crate::gateways::{Entrance, OpenBridge};
use crate::lifecycle::BrokerState;
use crate::net::{self, Embedded};
use crate::values::TransportProtocol;

#[derive(Debug)]
pub(super) struct RunningBridge {
    settings: Bridge,
    open: Box<dyn OpenBridge>,
}

impl Listeners {
    /// Checks the bridges of a new configuration that do not run already.
    ///
    /// # Errors
    /// A file cannot be used, or the program runs no bridges.
    pub(super) fn check_bridges(&self, new: &Config) -> Result<(), ConfigError> {
        for bridge in new.own_bridges().filter(|bridge| !self.runs(bridge)) {
            let none = || Err("this program runs no bridges".to_owned());
            let checked = self.gateways.as_ref().map_or_else(none, |gateways| gateways.check_bridge(bridge));
            checked.map_err(|reason| new.error_in_bridge(bridge, &reason))?;
        }
        Ok(())
    }

    /// Runs the bridges of a configuration, and ends those that it lacks.
    pub(in crate::broker) fn run_bridges(&mut self, config: &Config, shared: &Arc<BrokerState>) {
        let is_left_out = |running: &mut RunningBridge| !config.own_bridges().any(|bridge| *bridge == running.settings);
        let left_out: Vec<_> = self.bridges.extract_if(.., is_left_out).collect();
        for RunningBridge { settings, open } in &left_out {
            tracing::info!(
                bridge = settings.name.as_str(),
                "bridge ends: the configuration has no such table any more"
            );
            open.stop();
        }
        left_out.iter().for_each(|running| running.open.finish());
        for bridge in config.own_bridges() {
            if self.runs(bridge) {
                continue;
            }
            let Some(gateways) = &self.gateways else { return };
            for reason in bridge.overlaps() {
                tracing::warn!(bridge = bridge.name.as_str(), "{reason}");
            }
            let entrance = Entrance::default();
            match gateways.open_bridge(bridge, entrance.clone()) {
                Ok(open) => self.bridges.push(RunningBridge { settings: bridge.clone(), open }),
                Err(error) => tracing::error!(bridge = bridge.name.as_str(), error, "bridge does not run"),
            }
            let (shared, name, main) = (Arc::clone(shared), Arc::from(Bridge::LISTENER), self.plain.clone());
            entrance.admit(move |stream, _, _| {
                let stream = Embedded::new(stream, TransportProtocol::Embedded);
                net::serve_from_gateway(&shared, stream, PEER, None, &name, &main);
            });
        }
    }

    fn runs(&self, bridge: &Bridge) -> bool {
        self.bridges.iter().any(|running| running.settings == *bridge)
    }

    /// Bridges with their states, in the order of their start.
    #[cfg(feature = "admin")]
    pub(in crate::broker) fn bridges(&self) -> impl Iterator<Item = (&Bridge, BridgeState)> {
        self.bridges.iter().map(|running| (&running.settings, running.open.state()))
    }
}

/// Address of a bridge at its broker.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
