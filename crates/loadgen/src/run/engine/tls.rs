use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use tenbin_kit::pem;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};
use tokio_rustls::{Connect, TlsConnector};

use super::any_certificate::AnyCertificate;
use crate::LoadgenError;
use crate::run::TlsOptions;

/// TLS settings of all connections of a run: version 1.2 or 1.3, as the broker prefers.
///
/// Every connection does a full handshake, as separate client programs would; none resumes another's session.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
}

impl Tls {
    /// Reads all files of the options.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content; the error names it. A key without certificates, or certificates
    /// without a key.
    pub(crate) fn new(options: &TlsOptions) -> Result<Self, LoadgenError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has all that TLS 1.2 and 1.3 need");
        let builder = if options.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate::new(&provider)))
        } else {
            builder.with_root_certificates(authorities(options.ca.as_deref())?)
        };
        let mut config = match (options.client_key.as_deref(), options.client_chain.as_slice()) {
            (None, []) => builder.with_no_client_auth(),
            (Some(key), chain @ [first, ..]) => {
                let certificates = chain.iter().map(|path| certificates(path)).collect::<Result<Vec<_>, _>>()?.concat();
                let own = builder.with_client_auth_cert(certificates, private_key(key)?);
                own.map_err(|error| unusable(key, format!("with {}: {error}", first.display())))?
            }
            (Some(key), []) => return Err(unusable(key, "a client's key needs its certificates")),
            (None, [first, ..]) => return Err(unusable(first, "a client's certificate needs its key")),
        };
        config.resumption = Resumption::disabled();
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Does the handshake with `host` on a new connection.
    ///
    /// # Errors
    /// One side rejects the other; see [`explained`].
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let handshake: Connect<TcpStream> = self.connector.connect(server_name(host)?, stream);
        handshake.await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::other("TLS: closed by the broker in the middle of the handshake")
            }
            _ => explained(error),
        })
    }

    /// A non-blocking connection to `host`: reads and writes advance the handshake as far as `stream` allows.
    ///
    /// # Errors
    /// `host` cannot be the name in a certificate.
    pub(super) fn begin<S: Read + Write>(&self, host: &str, stream: S) -> io::Result<StreamOwned<ClientConnection, S>> {
        let connection = ClientConnection::new(Arc::clone(self.connector.config()), server_name(host)?);
        connection.map(|connection| StreamOwned::new(connection, stream)).map_err(io::Error::other)
    }
}

impl fmt::Debug for Tls {
    /// Omits keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    // A DNS name may end with a dot; a name in a certificate never does.
    let name = ServerName::try_from(host.trim_end_matches('.').to_owned());
    name.map_err(|_| io::Error::other(format!("TLS: {host:?} is no name that a certificate can have")))
}

/// Whether one side rejected the other in TLS. Network errors and a close by the broker are no rejections.
pub(super) fn is_rejection(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Describes a TLS error of a connection, with a hint where the cause is clear; other errors stay unchanged.
pub(super) fn explained(error: io::Error) -> io::Error {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else { return error };
    let hint = match tls {
        InvalidCertificate(CertificateError::UnknownIssuer) => " (no known authority vouches for the broker: --ca)",
        InvalidMessage(_) => " (is this a port for TLS?)",
        AlertReceived(AlertDescription::CertificateRequired) => " (--client-key, --client-cert)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("TLS: {tls}{hint}"))
}

/// Trusted authorities: those in `ca`, or else the system's.
fn authorities(ca: Option<&Path>) -> Result<RootCertStore, LoadgenError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|_| unusable(path, pem::DAMAGED_CERTIFICATE))?;
            }
        }
        // The system may have certificates of an obsolete kind: skip them.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() {
        let what = "this system has no certificates of authorities: name a file with those that count (--ca)";
        return Err(LoadgenError::Arguments(what.to_owned()));
    }
    Ok(roots)
}

/// All certificates in a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadgenError> {
    pem::all(&bytes(path)?, "certificate (PEM)").map_err(|error| unusable(path, error))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, LoadgenError> {
    pem::first(&bytes(path)?, "private key (PEM, not encrypted)").map_err(|error| unusable(path, error))
}

/// Reads a file, which may be a pipe.
fn bytes(path: &Path) -> Result<Vec<u8>, LoadgenError> {
    std::fs::read(path).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, reason: impl fmt::Display) -> LoadgenError {
    LoadgenError::Unusable { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::PathBuf;

    use rcgen::{BasicConstraints, CertificateParams, Issuer, KeyPair};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;

    use super::*;

    /// A directory with files of a root authority, an intermediate authority, and a client certified by the latter.
    struct Files {
        directory: TempDir,
        broker_key: KeyPair,
    }

    impl Files {
        fn new(name: &str) -> Self {
            let directory = TempDir::new().unwrap();
            let mut params = CertificateParams::new([]).unwrap();
            params.is_ca = rcgen::IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let root_key = KeyPair::generate().unwrap();
            let root = params.self_signed(&root_key).unwrap();
            let root_issuer = Issuer::new(params.clone(), root_key);

            let middle_key = KeyPair::generate().unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, "department");
            let middle = params.signed_by(&middle_key, &root_issuer).unwrap();
            let middle_issuer = Issuer::new(params, middle_key);

            let client_key = KeyPair::generate().unwrap();
            let client = CertificateParams::new([]).unwrap().signed_by(&client_key, &middle_issuer).unwrap();
            let broker_key = KeyPair::generate().unwrap();
            let broker = CertificateParams::new(["localhost".to_owned()]).unwrap();
            let broker = broker.signed_by(&broker_key, &root_issuer).unwrap();
            let files = Self { directory, broker_key };
            for (name, text) in [
                ("root.pem", root.pem()),
                ("middle.pem", middle.pem()),
                ("client.pem", client.pem()),
                ("client.key", client_key.serialize_pem()),
                ("broker.pem", broker.pem()),
                ("empty.pem", String::new()),
            ] {
                std::fs::write(files.path(name), text).unwrap();
            }
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        /// An echo server with TLS that may require client certificates.
        async fn server(&self, asks_clients: bool) -> SocketAddr {
            let provider = Arc::new(ring::default_provider());
            let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            let builder = if asks_clients {
                let roots = Arc::new(authorities(Some(&self.path("root.pem"))).unwrap());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            } else {
                builder.with_no_client_auth()
            };
            let key = PrivateKeyDer::try_from(self.broker_key.serialize_der()).unwrap();
            let config = builder.with_single_cert(certificates(&self.path("broker.pem")).unwrap(), key).unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let mut buffer = [0; 5];
                    let mut stream = match acceptor.accept(stream).into_fallible().await {
                        Ok(stream) => stream,
                        // Closing a socket with unread bytes would discard the alert that was sent.
                        Err((_, mut stream)) => {
                            while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
                            continue;
                        }
                    };
                    while stream.read_exact(&mut buffer).await.is_ok() {
                        stream.write_all(&buffer).await.unwrap();
                    }
                }
            });
            address
        }

        fn options(&self) -> TlsOptions {
            TlsOptions { ca: Some(self.path("root.pem")), ..TlsOptions::default() }
        }

        fn with_client(&self) -> TlsOptions {
            let client_chain = vec![self.path("client.pem"), self.path("middle.pem")];
            TlsOptions { client_key: Some(self.path("client.key")), client_chain, ..self.options() }
        }
    }

    /// Sends a text and expects it back.
    async fn talk(options: &TlsOptions, host: &str, server: SocketAddr) -> Result<(), String> {
        let tls = Tls::new(options).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(server).await.unwrap();
        let words = |error: io::Error| explained(error).to_string();
        let mut stream = tls.connect(host, stream).await.map_err(words)?;
        stream.write_all(b"hello").await.map_err(words)?;
        stream.flush().await.map_err(words)?;
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.map_err(words)?;
        assert_eq!(&heard, b"hello");
        Ok(())
    }

    #[tokio::test]
    async fn broker_is_trusted_by_known_authority_or_insecure() {
        let files = Files::new("trust");
        let server = files.server(false).await;
        assert_eq!(talk(&files.options(), "localhost", server).await, Ok(()));
        assert_eq!(talk(&files.options(), "localhost.", server).await, Ok(()));

        let insecure = TlsOptions { insecure: true, ..TlsOptions::default() };
        assert_eq!(talk(&insecure, "somewhere.else", server).await, Ok(()));

        let wrong = talk(&files.options(), "somewhere.else", server).await.unwrap_err();
        assert!(wrong.starts_with("TLS: ") && wrong.contains("somewhere.else"), "{wrong}");
        let other = Files::new("others");
        let stranger = talk(&other.options(), "localhost", server).await.unwrap_err();
        assert!(stranger.ends_with("(no known authority vouches for the broker: --ca)"), "{stranger}");
    }

    #[tokio::test]
    async fn a_client_shows_its_chain_from_two_files() {
        let files = Files::new("client");
        let server = files.server(true).await;
        assert_eq!(talk(&files.with_client(), "localhost", server).await, Ok(()));
        let nobody = talk(&files.options(), "localhost", server).await.unwrap_err();
        assert_eq!(nobody, "TLS: received fatal alert: CertificateRequired (--client-key, --client-cert)");
        // Without the intermediate certificate the client is not trusted.
        let short = TlsOptions { client_chain: vec![files.path("client.pem")], ..files.with_client() };
        let refused = talk(&short, "localhost", server).await.unwrap_err();
        assert!(refused.starts_with("TLS: received fatal alert: "), "{refused}");
    }

    #[tokio::test]
    async fn server_without_tls_gives_a_clear_error() {
        let files = Files::new("plain");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for answer in [&b"\x20\x02\0\0"[..], b""] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 2000]).await.unwrap();
                stream.write_all(answer).await.unwrap();
            }
        });
        let plain = talk(&files.options(), "localhost", server).await.unwrap_err();
        assert!(plain.ends_with("(is this a port for TLS?)"), "{plain}");
        let closed = talk(&files.options(), "localhost", server).await.unwrap_err();
        assert_eq!(closed, "TLS: closed by the broker in the middle of the handshake");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let files = Files::new("files");
        let error = |options: TlsOptions| Tls::new(&options).map(drop).unwrap_err().to_string();
        let named = |name: &str| format!("cannot use {}: ", files.path(name).display());
        for (name, expected) in [("absent.pem", "No such file"), ("empty.pem", "no certificate (PEM) is in it")] {
            let text = error(TlsOptions { ca: Some(files.path(name)), ..TlsOptions::default() });
            assert!(text.starts_with(&format!("{}{expected}", named(name))), "{text}");
        }
        let text = error(TlsOptions { client_key: Some(files.path("empty.pem")), ..files.with_client() });
        assert_eq!(text, format!("{}no private key (PEM, not encrypted) is in it", named("empty.pem")));
        let text = error(TlsOptions { client_chain: vec![], ..files.with_client() });
        assert_eq!(text, format!("{}a client's key needs its certificates", named("client.key")));
        let text = error(TlsOptions { client_key: None, ..files.with_client() });
        assert_eq!(text, format!("{}a client's certificate needs its key", named("client.pem")));
        let text = error(TlsOptions { client_chain: vec![files.path("broker.pem")], ..files.with_client() });
        assert!(text.starts_with(&named("client.key")) && text.contains("broker.pem"), "{text}");
    }
}
