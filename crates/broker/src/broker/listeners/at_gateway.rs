//! Listeners that the embedding program serves.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use super::{Listeners, OpenListener};
use crate::config::{Listener, Transport};
use crate::gateways::{Entrance, Gateways, OpenGateway};
use crate::lifecycle::BrokerState;
use crate::net::{self, Embedded, ListenError};
use crate::values::TransportProtocol;

/// The gateway of an open listener.
#[derive(Debug)]
pub(super) struct AtGateway {
    open: Arc<dyn OpenGateway>,
    entrance: Entrance,
}

impl AtGateway {
    fn open(gateways: &dyn Gateways, listener: &Listener) -> Result<Self, ListenError> {
        let entrance = Entrance::default();
        let open = gateways.open(listener, entrance.clone()).map_err(|reason| failed(listener, reason))?;
        Ok(Self { open: open.into(), entrance })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.open.address()
    }

    /// The gateway for clients that a relay passes on. It closes whether or not these are still served.
    pub(super) fn behind_relay(&self) -> Weak<dyn OpenGateway> {
        Arc::downgrade(&self.open)
    }
}

impl Listeners {
    /// Opens a listener of the embedding program; if it follows another one, at the switch: `is_taken`.
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
            let is_equal = old.name == listener.name
                && old.settings.sn == listener.settings.sn
                && old.settings.address == listener.settings.address
                && old.settings.transport == listener.settings.transport;
            if let Some(kept) = kept.filter(|_| is_equal) {
                kept.open.reload();
                listener.gateway = Some(kept);
                return;
            }
        }
        if let Err(error) = listener.open_gateway(self, shared) {
            tracing::error!("{error}; it stays closed until the next reload");
        }
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
            addresses: Vec::new(),
        }
    }

    /// Whether clients of a gateway can come, if it has one.
    pub(super) fn is_open(&self) -> bool {
        self.gateway.is_some() || self.settings.transport.at_gateway().is_none()
    }

    /// Opens the gateway, if that is not done yet, and lets its clients in.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn open_gateway(&mut self, listeners: &Listeners, shared: &Arc<BrokerState>) -> Result<(), ListenError> {
        if self.gateway.is_none()
            && let Some(gateways) = &listeners.gateways
        {
            self.gateway = Some(AtGateway::open(&**gateways, &self.settings)?);
        }
        if let Some(gateway) = &self.gateway {
            let protocol = match self.settings.transport {
                Transport::Http => TransportProtocol::Http,
                _ => TransportProtocol::MqttSn,
            };
            let (shared, name, main) = (Arc::clone(shared), Arc::clone(&self.name), listeners.plain.clone());
            gateway.entrance.admit(move |stream, peer, identity| {
                let stream = Embedded::new(stream, protocol);
                net::serve_from_gateway(&shared, stream, peer, identity, &name, &main);
            });
        }
        Ok(())
    }
}

fn failed(listener: &Listener, reason: String) -> ListenError {
    ListenError::new(listener, io::Error::other(reason))
}
