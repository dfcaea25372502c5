//! Stands in for the doors in a build without the feature `tls`.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;

use super::tls_error::TlsError;
use crate::Config;
use crate::config::Listener;
use crate::lifecycle::BrokerState;
use crate::threads::Running;

/// No doors.
#[derive(Debug)]
pub(crate) struct Doors;

/// Door of a listener, of which there is none.
#[derive(Debug)]
pub(crate) struct Door(Infallible);

impl Doors {
    /// Checks that no listener has TLS.
    ///
    /// # Errors
    /// One has.
    pub(crate) fn load(config: &Config) -> Result<Self, TlsError> {
        let guarded = config.listeners.iter().find(|listener| listener.tls.is_some()).map(Listener::name);
        let error = |name: Arc<str>| Err(TlsError::in_key(&name, "tls", "this build has no TLS (feature `tls`)"));
        guarded.map_or(Ok(Self), error)
    }

    pub(crate) fn replace(&self, _: &Self) {}

    pub(crate) fn of(&self, _: &str) -> Option<Arc<Door>> {
        None
    }

    pub(crate) fn start_thread(&self) -> io::Result<Option<(Handle, Running)>> {
        Ok(None)
    }
}

impl Door {
    pub(crate) async fn run(self: Arc<Self>, _: Arc<BrokerState>, _: TcpListener, _: Arc<str>, _: Handle) {
        match self.0 {}
    }
}
