//! TLS from PEM files: between nodes, and to the engine.

use std::path::Path;
use std::sync::Arc;

use tenbin_kit::{files, pem};
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// Key of `[cluster]`, and the file that it names.
pub(crate) type KeyedFile<'f> = (&'static str, &'f Path);

/// Certificates with their private key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads authorities.
///
/// # Errors
/// The file cannot be used. The text names key and file.
pub(crate) fn authorities(file: KeyedFile<'_>) -> Result<Arc<RootCertStore>, String> {
    authorities_in(file, &bytes(file)?)
}

/// As [`authorities`], with the file's content.
///
/// # Errors
/// As of [`authorities`].
pub(crate) fn authorities_in(file: KeyedFile<'_>, bytes: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::all(bytes, CERTIFICATE).map_err(|error| in_file(file, &error))? {
        roots.add(certificate).map_err(|_| in_file(file, &pem::DAMAGED_CERTIFICATE))?;
    }
    Ok(Arc::new(roots))
}

/// Reads certificates and their private key.
///
/// # Errors
/// As of [`authorities`].
pub(crate) fn identity(certificate: KeyedFile<'_>, key: KeyedFile<'_>) -> Result<Identity, String> {
    let chain = certificates(certificate)?;
    let own = pem::first(&bytes(key)?, "private key (PEM, not encrypted)").map_err(|error| in_file(key, &error))?;
    Ok((chain, own))
}

/// Reads certificates.
///
/// # Errors
/// As of [`authorities`].
pub(crate) fn certificates(file: KeyedFile<'_>) -> Result<Vec<CertificateDer<'static>>, String> {
    pem::all(&bytes(file)?, CERTIFICATE).map_err(|error| in_file(file, &error))
}

/// Completes the configuration of a client.
///
/// # Errors
/// The key does not fit the certificate. The text names the key's file.
pub(crate) fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    (chain, own): Identity,
    key: KeyedFile<'_>,
) -> Result<ClientConfig, String> {
    builder.with_client_auth_cert(chain, own).map_err(|error| in_file(key, &error))
}

/// An error of a file, with its key.
pub(crate) fn in_file((key, path): KeyedFile<'_>, error: &dyn std::fmt::Display) -> String {
    format!("cluster: {key}: {}: {error}", path.display())
}

/// Content of a file.
///
/// # Errors
/// It cannot be read. The text names key and file.
pub(crate) fn bytes(file: KeyedFile<'_>) -> Result<Vec<u8>, String> {
    files::read(file.1, files::BYTES_MAX).map_err(|error| in_file(file, &error))
}

const CERTIFICATE: &str = "certificate (PEM)";
