//! Stands in for TLS in a build without the feature `tls`.

use super::tls_error::TlsError;
use crate::config;

/// TLS of a listener, which no listener has.
#[derive(Debug)]
pub(super) enum Tls {}

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn load(listener: &str, _: &config::Tls) -> Result<Self, TlsError> {
        Err(TlsError::in_key(listener, "tls", "this build has no TLS (feature `tls`)"))
    }

    pub(super) fn replace(&self, _: Self) {
        match *self {}
    }
}
