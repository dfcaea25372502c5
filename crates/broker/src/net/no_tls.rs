//! Stands in for TLS in a build without the feature `tls`.

use std::sync::Arc;

use super::tls_error::TlsError;
use crate::config;
use crate::lifecycle::BrokerState;
use crate::metrics::{Counter, Metrics};
use crate::values::Certificate;

/// TLS of a listener, which no listener has.
#[derive(Debug)]
pub(super) enum Tls {}

/// Reads a certificate in DER: no gateway has one either.
pub(super) fn read_certificate(_: &[u8]) -> Option<Certificate> {
    None
}

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn load(listener: &Arc<str>, _: &config::Tls, _: config::Transport) -> Result<Self, TlsError> {
        Err(TlsError::in_key(listener, "tls", "this build has no TLS (feature `tls`)"))
    }

    #[cfg(feature = "admin")]
    pub(super) async fn accept(
        &self,
        _: tokio::net::TcpStream,
        _: std::net::IpAddr,
    ) -> std::io::Result<tokio::net::TcpStream> {
        match *self {}
    }

    pub(super) fn replace(&self, _: Self) {
        match *self {}
    }

    pub(super) fn follow(&mut self, _: &Self) {
        match *self {}
    }

    pub(super) fn watch(
        &self,
        _: Option<Arc<BrokerState>>,
        _: impl Fn(fn(&Metrics) -> &Counter),
    ) -> std::future::Ready<()> {
        match *self {}
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        match *self {}
    }

    pub(super) fn failed(&self, _: &TlsError) {
        match *self {}
    }

    pub(super) fn certificate_ends(&self) -> Vec<(Box<str>, i64)> {
        match *self {}
    }

    pub(super) fn generation(&self) -> u64 {
        match *self {}
    }

    pub(super) fn trusts(&self, _: &Certificate, _: u64) -> bool {
        match *self {}
    }
}
