//! TLS to the broker.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tenbin_kit::pem;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, crypto};

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
        let wrong = |error: &dyn std::fmt::Display| ConfigError::of_key("tls", error);
        let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
        let server_name = ServerName::try_from(name.clone())
            .map_err(|_| ConfigError::of_key("tls.server_name", format!("{name:?} is no name of a server")))?;
        let mut roots = RootCertStore::empty();
        match &settings.ca {
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(path) => {
                for certificate in certificates("tls.ca", path)? {
                    roots.add(certificate).map_err(|_| of_file("tls.ca", path, &pem::DAMAGED_CERTIFICATE))?;
                }
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?
            .with_root_certificates(roots);
        let config = match (&settings.certificate, &settings.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let own = pem::first::<PrivateKeyDer<'_>>(&bytes("tls.key", key)?, "private key (PEM, not encrypted)");
                let own = own.map_err(|error| of_file("tls.key", key, &error))?;
                let chain = certificates("tls.certificate", certificate)?;
                builder.with_client_auth_cert(chain, own).map_err(|error| match error {
                    Error::InvalidCertificate(_) => of_file("tls.certificate", certificate, &pem::DAMAGED_CERTIFICATE),
                    error => of_file("tls.certificate", certificate, &error),
                })?
            }
            (Some(_), None) => return Err(ConfigError::of_key("tls.certificate", "needs `key`")),
            (None, Some(_)) => return Err(ConfigError::of_key("tls.key", "needs `certificate`")),
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), server_name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<Stream> {
        Ok(Box::new(self.connector.connect(self.server_name.clone(), stream).await?))
    }
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    pem::all(&bytes(key, path)?, "certificate (PEM)").map_err(|error| of_file(key, path, &error))
}

fn bytes(key: &str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX).map_err(|error| of_file(key, path, &error))
}

fn of_file(key: &str, path: &Path, error: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::of_key(key, format!("{}: {error}", path.display()))
}
