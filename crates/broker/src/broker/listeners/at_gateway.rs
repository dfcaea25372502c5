//! Listeners that the embedding program serves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Listeners, OpenListener};
use crate::config::{Listener, Transport};
use crate::gateways::{Entrance, Gateways, OpenGateway};
use crate::lifecycle::BrokerState;
use crate::net::{self, Embedded, ListenError};
use crate::values::TransportProtocol;

/// The gateway of an open listener.
#[derive(Debug)]
pub(super) struct AtGateway {
    open: Box<dyn OpenGateway>,
    entrance: Entrance,
}

impl AtGateway {
    fn open(gateways: &dyn Gateways, listener: &Listener) -> Result<Self, ListenError> {
        let entrance = Entrance::default();
        let open = gateways.open(listener, entrance.clone()).map_err(|reason| failed(listener, reason))?;
        Ok(Self { open, entrance })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.open.address()
    }
}

impl Listeners {
    /// Opens a listener of the embedding program. If its address `is_taken` by the listener that it follows, it opens at
    /// the switch.
    ///
    /// # Errors
    /// The program has no gateway, its settings are illegal, or its address is in use.
    pub(super) fn prepare_at_gateway(&self, settings: Listener, is_taken: bool) -> Result<OpenListener, ListenError> {
        let none = || failed(&settings, "this program does not open listeners of such a transport".to_owned());
        let gateways = self.gateways.as_deref().ok_or_else(none)?;
        gateways.check(&settings).map_err(|reason| failed(&settings, reason))?;
        let gateway = (!is_taken).then(|| AtGateway::open(gateways, &settings)).transpose()?;
        Ok(OpenListener::at_gateway(settings, gateway))
    }

    /// Lets clients in at a listener of the embedding program. It takes the place of `old`, and keeps its clients if
    /// nothing changes for them.
    pub(super) fn admit_at_gateway(
        &self,
        listener: &mut OpenListener,
        old: Option<&mut OpenListener>,
        shared: &Arc<BrokerState>,
    ) {
        if listener.settings.transport.at_gateway().is_none() {
            return;
        }
        if listener.gateway.is_none()
            && let Some(old) = old
        {
            let kept = old.gateway.take();
            // One that could not open has another try.
            if kept.is_some() && old.name == listener.name && old.settings.sn == listener.settings.sn {
                listener.gateway = kept;
                return;
            }
        }
        listener.open_gateway(self, shared);
    }
}

impl OpenListener {
    fn at_gateway(settings: Listener, gateway: Option<AtGateway>) -> Self {
        Self {
            name: settings.name(),
            settings,
            sockets: Vec::new(),
            gateway,
            door: None,
            jobs: Vec::new(),
            #[cfg(feature = "admin")]
            addresses: Vec::new(),
        }
    }

    /// Opens the gateway, if that is not done yet, and lets its clients in.
    pub(super) fn open_gateway(&mut self, listeners: &Listeners, shared: &Arc<BrokerState>) {
        if self.gateway.is_none()
            && let Some(gateways) = &listeners.gateways
        {
            match AtGateway::open(&**gateways, &self.settings) {
                Ok(gateway) => self.gateway = Some(gateway),
                Err(error) => tracing::error!("{error}; it stays closed"),
            }
        }
        if let Some(gateway) = &self.gateway {
            let protocol = match self.settings.transport {
                Transport::Http => TransportProtocol::Http,
                _ => TransportProtocol::MqttSn,
            };
            let (shared, name, main) = (Arc::clone(shared), Arc::clone(&self.name), listeners.plain.clone());
            gateway.entrance.admit(move |stream, peer| {
                let stream = Embedded::new(stream, protocol);
                net::serve_from_gateway(&shared, stream, peer, &name, &main);
            });
        }
    }
}

fn failed(listener: &Listener, reason: String) -> ListenError {
    ListenError::new(listener, io::Error::other(reason))
}
