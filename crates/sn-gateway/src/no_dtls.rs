//! Stands in for DTLS in a build without the feature `dtls`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tenbin_sn::NO_DTLS;

use crate::config::{ConfigError, Listener};
use crate::counters::Counters;
use crate::limits::Limits;
use crate::route::Route;

/// DTLS, which no gateway has.
pub(crate) enum Dtls {}

/// Proven identity of a client, which no client has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {}

impl Identity {
    /// Text that differs for different identities.
    pub fn key(&self) -> String {
        match *self {}
    }

    /// Certificate in DER, if it proves the identity.
    pub fn certificate(&self) -> Option<&[u8]> {
        match *self {}
    }

    /// Name of the client.
    pub fn name(&self) -> Option<String> {
        match *self {}
    }
}

impl Dtls {
    /// Refuses listeners with DTLS.
    ///
    /// # Errors
    /// `listener` has it.
    pub(crate) fn of(listener: &Listener, _: &Arc<Counters>) -> Result<Option<Box<Self>>, ConfigError> {
        match listener.dtls {
            None => Ok(None),
            Some(_) => Err(ConfigError::of_key("dtls", NO_DTLS)),
        }
    }

    pub(crate) fn reload(&mut self, _: &Listener) {
        match *self {}
    }

    pub(crate) fn receive(
        &mut self,
        _: &[u8],
        _: Route,
        _: Instant,
        _: &Limits,
        _: &mut Vec<Box<[u8]>>,
        _: &mut dyn FnMut(&[u8], Route),
    ) -> bool {
        match *self {}
    }

    pub(crate) fn seal(&mut self, _: &[u8], _: Route, _: &mut dyn FnMut(&[u8], Route)) {
        match *self {}
    }

    pub(crate) fn identity(&self, _: SocketAddr) -> Option<&Identity> {
        match *self {}
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn handle_timeouts(
        &mut self,
        _: Instant,
        _: impl Fn(SocketAddr) -> bool,
        _: &mut dyn FnMut(&[u8], Route),
    ) {
        match *self {}
    }

    pub(crate) fn close(&mut self, _: &mut dyn FnMut(&[u8], Route)) {
        match *self {}
    }
}

/// Refuses listeners with DTLS.
///
/// # Errors
/// `listener` has it.
pub(crate) fn server_of(listener: &Listener) -> Result<Option<Dtls>, ConfigError> {
    Dtls::of(listener, &Arc::default()).map(|_| None)
}
