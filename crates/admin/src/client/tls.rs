//! TLS of a client.

use std::io;
use std::path::Path;

use tenbin_kit::tls::ClientFiles;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// TLS to a server.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// TLS to the server at `host`. With `known`, a file with its certificate, the client accepts that alone.
    ///
    /// # Errors
    /// A file cannot be used, or no certificate can have the name. The text names it.
    pub(super) fn new(host: &str, files: &ClientFiles, known: Option<&Path>) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no name of a server"))?;
        // An authority that the caller names counts more than the certificate in use.
        let known = known.filter(|_| files.ca.is_none());
        let config = known.map_or_else(|| files.config(), |known| files.config_for(known));
        let config = config.map_err(|error| match error.key {
            "ca" | "certificate" | "key" => format!("--{error}"),
            _ => error.to_string(),
        })?;
        Ok(Self { connector: config.into(), name })
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// It fails.
    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}
