use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::Stream;
use super::tls::Tls;
use crate::config::{Config, ConfigError};

/// Address of the broker.
pub(super) struct Address {
    host: Host,
    tls: Option<Tls>,
}

enum Host {
    Ip(SocketAddr),
    /// Looked up for each connection.
    Name(String),
}

impl Address {
    /// An address without TLS.
    pub(super) fn new(text: &str) -> Self {
        let host = text.parse().map_or_else(|_| Host::Name(text.to_owned()), Host::Ip);
        Self { host, tls: None }
    }

    /// The broker of a configuration.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn of(config: &Config) -> Result<Self, ConfigError> {
        let host = config.broker.rsplit_once(':').map_or(&config.broker[..], |(host, _)| host);
        let tls = config.tls.as_ref().map(|tls| Tls::new(tls, host.trim_matches(['[', ']']))).transpose()?;
        Ok(Self { tls, ..Self::new(&config.broker) })
    }

    pub(super) async fn connect(&self) -> io::Result<Stream> {
        let stream = match &self.host {
            Host::Ip(address) => TcpStream::connect(address).await?,
            Host::Name(name) => TcpStream::connect(name.as_str()).await?,
        };
        stream.set_nodelay(true)?;
        match &self.tls {
            Some(tls) => tls.connect(stream).await,
            None => Ok(Box::new(stream)),
        }
    }
}
