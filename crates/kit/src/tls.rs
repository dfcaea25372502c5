//! TLS of clients, from PEM files.

use std::fmt;
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::{path::Path, sync::Arc};

#[cfg(feature = "tls")]
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, WantsVerifier,
    client::WantsClientCert,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{self, CryptoProvider, ring},
};
#[cfg(feature = "tls")]
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

#[cfg(feature = "tls")]
use crate::{files, pem};

/// PEM files of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientFiles {
    /// Authorities of the server's certificate; `None` = the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate, and behind it those of intermediate authorities.
    pub certificate: Option<PathBuf>,
    /// Private key of the certificate.
    pub key: Option<PathBuf>,
}

/// Error of a file, or of a missing one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFileError {
    /// Name of the file's field in [`ClientFiles`].
    pub key: &'static str,
    /// What is wrong, with the file's path.
    pub reason: String,
}

impl fmt::Display for ClientFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

#[cfg(feature = "tls")]
impl ClientFiles {
    /// Settings of a client that verifies the server's certificate and name.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn config(&self) -> Result<Arc<ClientConfig>, ClientFileError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(path) => {
                for certificate in certificates("ca", path)? {
                    roots.add(certificate).map_err(|_| of_file("ca", path, pem::DAMAGED_CERTIFICATE))?;
                }
            }
        }
        self.complete(builder()?.with_root_certificates(roots))
    }

    /// Settings of a client that accepts the first certificate in `file`, and no other one. The name does not matter.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn config_for(&self, file: &Path) -> Result<Arc<ClientConfig>, ClientFileError> {
        let known = certificates("server's certificate", file)?.swap_remove(0);
        let verifier = Known { certificate: known, provider: Arc::new(ring::default_provider()) };
        self.complete(builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
    }

    /// Adds the client's certificate, if it has one.
    fn complete(
        &self,
        builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<Arc<ClientConfig>, ClientFileError> {
        let missing = |key, reason: &str| ClientFileError { key, reason: reason.to_owned() };
        let config = match (&self.certificate, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(_), None) => return Err(missing("certificate", "needs `key`")),
            (None, Some(_)) => return Err(missing("key", "needs `certificate`")),
            (Some(certificate), Some(key)) => {
                let own = pem::first::<PrivateKeyDer<'_>>(&bytes("key", key)?, "private key (PEM, not encrypted)");
                let own = own.map_err(|error| of_file("key", key, error))?;
                let chain = certificates("certificate", certificate)?;
                builder.with_client_auth_cert(chain, own).map_err(|error| match error {
                    Error::InvalidCertificate(_) => of_file("certificate", certificate, pem::DAMAGED_CERTIFICATE),
                    error => of_file("certificate", certificate, error),
                })?
            }
        };
        Ok(Arc::new(config))
    }
}

/// Accepts one certificate.
#[cfg(feature = "tls")]
#[derive(Debug)]
struct Known {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

#[cfg(feature = "tls")]
impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let differs = || Error::General("the server shows another certificate than its file has".to_owned());
        (*shown == self.certificate).then(ServerCertVerified::assertion).ok_or_else(differs)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(feature = "tls")]
fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, ClientFileError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    builder.map_err(|error| ClientFileError { key: "tls", reason: error.to_string() })
}

#[cfg(feature = "tls")]
fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientFileError> {
    pem::all(&bytes(key, path)?, "certificate (PEM)").map_err(|error| of_file(key, path, error))
}

#[cfg(feature = "tls")]
fn bytes(key: &'static str, path: &Path) -> Result<Vec<u8>, ClientFileError> {
    files::read(path, files::BYTES_MAX).map_err(|error| of_file(key, path, error))
}

#[cfg(feature = "tls")]
fn of_file(key: &'static str, path: &Path, error: impl fmt::Display) -> ClientFileError {
    ClientFileError { key, reason: format!("{}: {error}", path.display()) }
}
