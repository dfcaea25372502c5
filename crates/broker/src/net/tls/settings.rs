//! TLS settings of listeners, from their files.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tenbin_kit::pem::DAMAGED_CERTIFICATE;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::CertificateRevocationListDer;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, RootCertStore, ServerConfig, SupportedProtocolVersion};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::certificate::Validity;
use super::files;
use super::names::Names;
use crate::config::{ClientCertificates, Tls, TlsVersion, Transport};
use crate::net::tls_error::TlsError;

/// Settings from the files of a listener.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) servers: Servers,
    pub(super) clients: Clients,
    /// Name and validity of each certificate of the broker.
    pub(super) validities: Vec<(Box<str>, Validity)>,
}

/// Configurations of a listener: for clients that offer its protocol by ALPN, and for those that offer other ones alone.
#[derive(Debug)]
pub(super) struct Servers {
    with_alpn: Choices,
    /// A client that is refused for its ALPN would be served by other brokers, which ignore it.
    without_alpn: Choices,
}

/// Configurations that differ in the choice of the cipher suite.
#[derive(Debug)]
struct Choices {
    /// AES-128 first, against the client's preference.
    aes_128: Arc<ServerConfig>,
    /// As the client prefers.
    as_offered: Arc<ServerConfig>,
}

/// Which client certificates count.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// When the first revocation list ends.
    pub(super) lists_end: Option<ListEnd>,
    /// SHA-256 of all that decides it.
    pub(super) digest: [u8; 32],
}

/// When a revocation list ends: it should have been replaced by then. It counts all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListEnd {
    /// In seconds since 1970.
    pub(super) at: i64,
    /// As text: 2025-02-01.
    pub(super) date: String,
}

/// Reads the files of `listener`.
///
/// # Errors
/// A file cannot be read or has the wrong content; the error names it.
pub(super) fn load(listener: &str, tls: &Tls, transport: Transport) -> Result<Settings, TlsError> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
    let provider = Arc::new(provider);
    let certificate_error = |reason: String| TlsError::new(listener, "tls.certificate", &tls.certificate, reason);
    let mut names = Names::load(listener, tls, &provider)?;
    let validities = std::mem::take(&mut names.validities);
    let clients = Clients::load(listener, tls, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(listener, tls)?)
        .map_err(|error| certificate_error(error.to_string()))?
        .with_client_cert_verifier(Arc::clone(&clients.verifier))
        .with_cert_resolver(Arc::new(names));
    // A client may offer none, or others. Browsers offer HTTP alone.
    config.alpn_protocols = match transport {
        Transport::Tcp | Transport::MqttSn | Transport::Http => vec![b"mqtt".to_vec()],
        Transport::WebSocket => vec![b"http/1.1".to_vec()],
    };
    // Tickets keep the state of a session at its client. The broker stores none. Each load makes a new key, so that no
    // client goes on with a session that was verified by older files.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = ring::Ticketer::new().map_err(|error| certificate_error(error.to_string()))?;
    config.send_tls13_tickets = 1;
    Ok(Settings { servers: Servers::new(config), clients, validities })
}

impl Servers {
    fn new(with_alpn: ServerConfig) -> Self {
        let mut without_alpn = with_alpn.clone();
        without_alpn.alpn_protocols = Vec::new();
        Self { with_alpn: Choices::new(with_alpn), without_alpn: Choices::new(without_alpn) }
    }

    /// The configuration for a client, by the cipher suites and protocols that it offers.
    ///
    /// The hash of AES-256 is SHA-384, whose key schedule takes a tenth of a handshake's time. A device without
    /// instructions for AES prefers ChaCha20, and gets it.
    pub(super) fn for_client(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let ours = &self.with_alpn.as_offered.alpn_protocols;
        let is_ours = |offered: &[u8]| ours.iter().any(|ours| ours == offered);
        let is_foreign = hello.alpn().is_some_and(|mut offered| !offered.any(is_ours));
        let choices = if is_foreign { &self.without_alpn } else { &self.with_alpn };
        let known = &choices.as_offered.crypto_provider().cipher_suites;
        let preferred = hello.cipher_suites().iter().find(|suite| known.iter().any(|known| known.suite() == **suite));
        let prefers_chacha20 = preferred.is_some_and(|suite| is_chacha20(*suite));
        Arc::clone(if prefers_chacha20 { &choices.as_offered } else { &choices.aes_128 })
    }
}

impl Choices {
    fn new(as_offered: ServerConfig) -> Self {
        let mut aes_128 = as_offered.clone();
        aes_128.ignore_client_order = true;
        Self { aes_128: Arc::new(aes_128), as_offered: Arc::new(as_offered) }
    }
}

fn is_aes_128(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

fn is_chacha20(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

fn versions(listener: &str, tls: &Tls) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let version = |version: &TlsVersion| match version {
        TlsVersion::V1_2 => &TLS12,
        TlsVersion::V1_3 => &TLS13,
    };
    let versions = tls.versions.iter().map(version).collect::<Vec<_>>();
    match versions.is_empty() {
        true => Err(TlsError::in_key(listener, "tls.versions", "needs \"1.2\" or \"1.3\"")),
        false => Ok(versions),
    }
}

impl Clients {
    /// Certificates count that come from one of the authorities in `client_ca`, and are on no list in `crl`.
    fn load(listener: &str, tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let path = match (&tls.client_ca, tls.client_certificates) {
            (None, ClientCertificates::None) => return Self::none(listener, tls),
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
        let mut digest = Sha256::new();
        let mut authorities = RootCertStore::empty();
        for certificate in files::certificates(path).map_err(error)? {
            digest.update(&certificate);
            authorities.add(certificate).map_err(|_| error(DAMAGED_CERTIFICATE.to_owned()))?;
        }
        let lists = revocation_lists(listener, tls)?;
        digest.update(b"CRL");
        lists.iter().for_each(|list| digest.update(list));
        let lists_end = lists.iter().filter_map(end_of).min_by_key(|end| end.at);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(provider));
        if !lists.is_empty() {
            verifier = verifier.with_crls(lists).only_check_end_entity_revocation();
        }
        if tls.client_certificates == ClientCertificates::Optional {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|reason| match tls.crl.as_deref() {
            Some(crl) => TlsError::new(listener, "tls.crl", crl, reason),
            None => error(reason.to_string()),
        })?;
        Ok(Self { verifier, lists_end, digest: digest.finalize().into() })
    }

    /// No certificate counts.
    fn none(listener: &str, tls: &Tls) -> Result<Self, TlsError> {
        match tls.crl.as_deref() {
            Some(crl) => Err(TlsError::new(listener, "tls.crl", crl, "needs client_ca and client_certificates")),
            None => Ok(Self { verifier: WebPkiClientVerifier::no_client_auth(), lists_end: None, digest: [0; 32] }),
        }
    }
}

fn end_of(list: &CertificateRevocationListDer<'_>) -> Option<ListEnd> {
    let (_, list) = CertificateRevocationList::from_der(list).ok()?;
    let end = list.next_update()?;
    Some(ListEnd { at: end.timestamp(), date: end.to_datetime().date().to_string() })
}

fn revocation_lists(listener: &str, tls: &Tls) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let Some(path) = tls.crl.as_deref() else { return Ok(Vec::new()) };
    files::revocation_lists(path).map_err(|reason| TlsError::new(listener, "tls.crl", path, reason))
}
