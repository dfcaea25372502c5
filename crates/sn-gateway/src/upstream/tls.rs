//! TLS to the broker.

use std::io;

use tenbin_kit::tls::ClientFiles;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Stream;
use crate::config::{BrokerTls, ConfigError};

/// TLS to the broker.
pub(super) struct Tls {
    connector: TlsConnector,
    server_name: ServerName<'static>,
}

impl Tls {
    /// Reads the files. `host` is the broker's name or IP address.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn new(settings: &BrokerTls, host: &str) -> Result<Self, ConfigError> {
        let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
        let server_name = ServerName::try_from(name.clone())
            .map_err(|_| ConfigError::of_key("tls.server_name", format!("{name:?} is no name of a server")))?;
        let BrokerTls { ca, certificate, key, .. } = settings.clone();
        let config = ClientFiles { ca, certificate, key }.config();
        let config = config.map_err(|error| ConfigError::of_key(&format!("tls.{}", error.key), error.reason))?;
        Ok(Self { connector: TlsConnector::from(config), server_name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<Stream> {
        Ok(Box::new(self.connector.connect(self.server_name.clone(), stream).await?))
    }
}
