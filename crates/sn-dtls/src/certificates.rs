//! Certificates of both sides.

use std::path::Path;
use std::sync::Arc;

use dimpl::DtlsCertificate;
use tenbin_kit::pem;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::{SessionError, SetupError};

/// Judge of the certificate of the other side. DTLS 1.2 and 1.3 of the engine tell the certificate itself alone, without
/// those of intermediate authorities.
#[derive(Debug, Clone)]
pub(crate) enum Judge {
    /// No certificate is asked for.
    None,
    OfClients(Arc<dyn ClientCertVerifier>),
    OfServer(Arc<WebPkiServerVerifier>, ServerName<'static>),
}

impl Judge {
    pub(crate) fn of_clients(authorities: &Path) -> Result<Self, SetupError> {
        let roots = Arc::new(roots(authorities)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(default_provider())).build();
        verifier.map(Self::OfClients).map_err(|error| SetupError::new(authorities, error))
    }

    /// `server` is the name or the IP address that the server's certificate has to have.
    pub(crate) fn of_server(authorities: &Path, server: &str) -> Result<Self, SetupError> {
        let roots = Arc::new(roots(authorities)?);
        let name = ServerName::try_from(server.to_owned());
        let name = name.map_err(|_| SetupError::new(authorities, format!("{server:?} is no name of a server")))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(default_provider())).build();
        verifier.map(|verifier| Self::OfServer(verifier, name)).map_err(|error| SetupError::new(authorities, error))
    }

    pub(crate) fn judge(&self, certificate: &[u8]) -> Result<(), SessionError> {
        let certificate = CertificateDer::from(certificate);
        let (chain, now) = (&[][..], UnixTime::now());
        let result = match self {
            Self::None => return Ok(()),
            Self::OfClients(verifier) => verifier.verify_client_cert(&certificate, chain, now).map(drop),
            Self::OfServer(verifier, name) => {
                verifier.verify_server_cert(&certificate, chain, name, &[], now).map(drop)
            }
        };
        result.map_err(|error| SessionError::Certificate(error.to_string()))
    }

    pub(crate) fn asks(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// The certificate of this side. The engine signs with ECDSA alone.
pub(crate) fn own(certificate: &Path, key: &Path) -> Result<DtlsCertificate, SetupError> {
    let own = pem::first::<CertificateDer<'_>>(&bytes(certificate)?, "certificate (PEM)");
    let own = own.map_err(|error| SetupError::new(certificate, error))?;
    let private_key = pem::first::<PrivateKeyDer<'_>>(&bytes(key)?, "private key (PEM, not encrypted)");
    let private_key = private_key.map_err(|error| SetupError::new(key, error))?;
    let provider = dimpl::crypto::rust_crypto::default_provider();
    let pair = CertifiedKey::from_der(vec![own.clone()], private_key.clone_key(), &default_provider());
    match pair {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            return Err(SetupError::new(key, "does not belong to the certificate"));
        }
        Err(Error::InvalidCertificate(CertificateError::BadEncoding)) => {
            return Err(SetupError::new(certificate, pem::DAMAGED_CERTIFICATE));
        }
        _ => {}
    }
    let private_key = private_key.secret_der();
    provider
        .key_provider
        .load_private_key(private_key)
        .map_err(|error| SetupError::new(key, format!("DTLS needs a key of ECDSA with P-256 or P-384: {error}")))?;
    Ok(DtlsCertificate { certificate: own.to_vec(), private_key: private_key.to_vec() })
}

/// A placeholder certificate of a client: the engine needs one even if the gateway never asks for it.
pub(crate) fn unused() -> Result<DtlsCertificate, rcgen::Error> {
    let own = rcgen::generate_simple_self_signed(Vec::new())?;
    Ok(DtlsCertificate { certificate: own.cert.der().to_vec(), private_key: own.signing_key.serialize_der() })
}

/// The Common Name of a certificate, if it has exactly one.
pub(crate) fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    names.next().is_none().then(|| name.to_owned())
}

fn bytes(path: &Path) -> Result<Vec<u8>, SetupError> {
    tenbin_kit::files::read(path, tenbin_kit::files::BYTES_MAX).map_err(|error| SetupError::new(path, error))
}

fn roots(path: &Path) -> Result<RootCertStore, SetupError> {
    let mut roots = RootCertStore::empty();
    let all = pem::all::<CertificateDer<'_>>(&bytes(path)?, "certificate (PEM)");
    for certificate in all.map_err(|error| SetupError::new(path, error))? {
        roots.add(certificate).map_err(|_| SetupError::new(path, pem::DAMAGED_CERTIFICATE))?;
    }
    Ok(roots)
}
