//! TLS settings of listeners, from their files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;

use super::tls_error::TlsError;
use crate::config::Tls;

/// Reads the files of `listener`.
///
/// # Errors
/// A file cannot be read or has the wrong content; the error names it.
pub(super) fn load(listener: &str, tls: &Tls) -> Result<ServerConfig, TlsError> {
    let certificate_error = |reason: String| TlsError::new(listener, "tls.certificate", &tls.certificate, reason);
    let key_error = |reason: String| TlsError::new(listener, "tls.key", &tls.key, reason);
    let certificates = certificates(&tls.certificate).map_err(certificate_error)?;
    let key = private_key(&tls.key).map_err(key_error)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| certificate_error(error.to_string()))?;
    let with_certificate = format!("does not fit {}", tls.certificate.display());
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| key_error(format!("{with_certificate}: {error}")))?;
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    // Tickets keep the state of a session at its client. The broker stores none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = ring::Ticketer::new().map_err(|error| certificate_error(error.to_string()))?;
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// All certificates in a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err("no certificate (PEM) is in it".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(words(error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => "no private key (PEM, not encrypted) is in it".to_owned(),
        error => words(error),
    })
}

/// The error's text; for an I/O error, the system's text alone.
fn words(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}
