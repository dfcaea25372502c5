//! TLS settings of listeners, from their files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::config::{ClientCertificates, Tls};
use crate::net::tls_error::TlsError;

/// Reads the files of `listener`.
///
/// # Errors
/// A file cannot be read or has the wrong content; the error names it.
pub(super) fn load(listener: &str, tls: &Tls) -> Result<ServerConfig, TlsError> {
    let certificate_error = |reason: String| TlsError::new(listener, "tls.certificate", &tls.certificate, reason);
    let key_error = |reason: String| TlsError::new(listener, "tls.key", &tls.key, reason);
    let certificates = certificates(&tls.certificate).map_err(certificate_error)?;
    let key = private_key(&tls.key).map_err(key_error)?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| certificate_error(error.to_string()))?;
    let with_certificate = format!("does not fit {}", tls.certificate.display());
    let mut config = builder
        .with_client_cert_verifier(client_verifier(listener, tls, provider)?)
        .with_single_cert(certificates, key)
        .map_err(|error| key_error(format!("{with_certificate}: {error}")))?;
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    // Tickets keep the state of a session at its client. The broker stores none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = ring::Ticketer::new().map_err(|error| certificate_error(error.to_string()))?;
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Verifier of client certificates, which come from one of the authorities in `client_ca`.
fn client_verifier(
    listener: &str,
    tls: &Tls,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let path = match (&tls.client_ca, tls.client_certificates) {
        (None, ClientCertificates::None) => return Ok(WebPkiClientVerifier::no_client_auth()),
        (Some(path), ClientCertificates::Optional | ClientCertificates::Required) => path,
        (Some(path), ClientCertificates::None) => {
            let reason = "needs client_certificates = \"optional\" or \"required\"";
            return Err(TlsError::new(listener, "tls.client_ca", path, reason));
        }
        (None, _) => {
            return Err(TlsError::in_key(listener, "tls.client_certificates", "needs client_ca"));
        }
    };
    let error = |reason: String| TlsError::new(listener, "tls.client_ca", path, reason);
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(path).map_err(error)? {
        authorities.add(certificate).map_err(|reason| error(reason.to_string()))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
    if tls.client_certificates == ClientCertificates::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map(|verifier| verifier as Arc<dyn ClientCertVerifier>).map_err(|reason| error(reason.to_string()))
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
