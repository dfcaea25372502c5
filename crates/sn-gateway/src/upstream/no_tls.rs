//! Stands in for TLS in a build without the feature `tls`.

use std::io;

use tokio::net::TcpStream;

use super::Stream;
use crate::config::{BrokerTls, ConfigError};

/// TLS to the broker, which no gateway has.
pub(super) enum Tls {}

impl Tls {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn new(_: &BrokerTls, _: &str) -> Result<Self, ConfigError> {
        Err(ConfigError::of_key("tls", "this build has no TLS (feature `tls`)"))
    }

    pub(super) async fn connect(&self, _: TcpStream) -> io::Result<Stream> {
        match *self {}
    }
}
