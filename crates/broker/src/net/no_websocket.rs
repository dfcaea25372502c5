//! Stands in for the HTTP upgrade in a build without the feature `websocket`.

use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::Refused;
use super::proxy::Proxy;
use super::tls_error::TlsError;
use super::wire::Wire;
use crate::config::{Listener, Transport};
use crate::values::Origin;

/// HTTP upgrade of a listener, which no listener has.
#[derive(Debug)]
pub(super) enum Upgrade {}

impl Upgrade {
    /// Refuses listeners that speak WebSocket.
    ///
    /// # Errors
    /// `listener` does.
    pub(super) fn of(name: &str, listener: &Listener) -> Result<Option<Self>, TlsError> {
        match listener.transport {
            Transport::Tcp | Transport::MqttSn | Transport::Http => Ok(None),
            Transport::WebSocket => {
                Err(TlsError::in_key(name, "transport", "this build has no WebSocket (feature `websocket`)"))
            }
        }
    }

    pub(super) async fn pass(
        &self,
        _: &mut OpenConnection,
        _: Wire,
        _: &mut Origin,
        _: Option<&Proxy>,
        _: Instant,
    ) -> Result<Wire, Refused> {
        match *self {}
    }
}
