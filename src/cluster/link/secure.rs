//! Mutual TLS between nodes: whoever connects proves which node it is.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenbin_broker::config::{Cluster, ClusterNode};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::super::tls;

/// TLS of this node's connections to other nodes, both ways. Both ends verify against the same authorities.
#[derive(Debug)]
pub(crate) struct NodeTls {
    server: Arc<ServerConfig>,
    nodes: Vec<KnownNode>,
    clients: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    /// File of `chain`.
    file: PathBuf,
}

/// A node of the configuration. A certificate is this node's if it has one of the names.
#[derive(Debug)]
struct KnownNode {
    name: String,
    address: String,
    names: Vec<ServerName<'static>>,
    client: Arc<ClientConfig>,
}

impl NodeTls {
    /// Reads the files of the configuration. `None` = the cluster has no TLS.
    ///
    /// # Errors
    /// A file cannot be used, or the certificate is not this node's. The text names key and file.
    pub(crate) fn load(cluster: &Cluster) -> Result<Option<Arc<Self>>, String> {
        let Some([certificate, key, ca]) = cluster.tls_files() else { return Ok(None) };
        let (certificate, key, ca) = (("certificate", certificate), ("key", key), ("ca", ca));
        let (roots, provider) = (tls::authorities(ca)?, tls::provider());
        let identity = tls::identity(certificate, key)?;
        let of_ca = |error: &dyn std::fmt::Display| tls::in_file(ca, error);
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let clients = clients.build().map_err(|error| of_ca(&error))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| of_ca(&error))?
            .with_client_cert_verifier(Arc::clone(&clients))
            .with_single_cert(identity.0.clone(), identity.1.clone_key())
            .map_err(|error| tls::in_file(key, &error))?;
        // Each relayed client costs a handshake. A resumed one needs no signature.
        server.ticketer = ring::Ticketer::new().map_err(|error| of_ca(&error))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let servers = servers.build().map_err(|error| of_ca(&error))?;
        let known = |node: &ClusterNode| {
            let names = [&node.name[..], node.host()].into_iter();
            let names: Vec<_> = names.filter_map(|name| ServerName::try_from(name.to_owned()).ok()).collect();
            let verifier = NodeVerifier { servers: Arc::clone(&servers), names: names.clone() };
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])
                .map_err(|error| of_ca(&error))?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier));
            let client = tls::with_identity(builder, (identity.0.clone(), identity.1.clone_key()), key)?;
            Ok(KnownNode { name: node.name.clone(), address: node.address.clone(), names, client: Arc::new(client) })
        };
        let nodes = cluster.nodes.iter().map(known).collect::<Result<Vec<_>, String>>()?;
        let file = certificate.1.to_owned();
        let secure = Self { server: Arc::new(server), nodes, clients, chain: identity.0, file };
        let own = cluster.own().ok_or("cluster: node: this node is not in nodes")?;
        if !secure.is_of(secure.chain.first(), &own.name) {
            let reason = format!("it has neither the name {:?} of this node nor its host {:?}", own.name, own.host());
            return Err(tls::in_file(certificate, &format_args!("{reason} as a Subject Alternative Name")));
        }
        Ok(Some(Arc::new(secure)))
    }

    /// Why nodes with the same `ca` refuse this node's certificate after `time`, with key and file. `None` = they accept it.
    pub(crate) fn refusal(&self, time: Duration) -> Option<String> {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs()) + time);
        let verified = match self.chain.split_first() {
            Some((own, others)) => self.clients.verify_client_cert(own, others, at).map(drop),
            None => Err(Error::NoCertificatesPresented),
        };
        let error = verified.err()?;
        Some(tls::in_file(("certificate", &self.file), &format_args!("other nodes refuse it: {error}")))
    }

    /// Performs the handshake with a peer that has connected. Its certificate is one of the authorities.
    ///
    /// # Errors
    /// It fails.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(Arc::clone(&self.server)).accept(stream).await
    }

    /// Whether the certificate of a peer is of any node.
    pub(super) fn knows(&self, stream: &server::TlsStream<TcpStream>) -> bool {
        self.nodes.iter().any(|node| self.is_of(certificate(stream), &node.name))
    }

    /// Performs the handshake with the node at `address`, and verifies that it is this node.
    ///
    /// # Errors
    /// It fails, or no node of the configuration has the address.
    pub(super) async fn connect(&self, address: &str, stream: TcpStream) -> io::Result<client::TlsStream<TcpStream>> {
        let node = self.nodes.iter().find(|node| node.address == address);
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let node = node.ok_or_else(|| invalid(format!("no node in `nodes` has the address {address}")))?;
        let name =
            node.names.first().ok_or_else(|| invalid(format!("no certificate can have the name {:?}", node.name)))?;
        TlsConnector::from(Arc::clone(&node.client)).connect(name.clone(), stream).await
    }

    /// Whether a verified certificate is of the node `name`.
    pub(super) fn is_of(&self, certificate: Option<&CertificateDer<'_>>, name: &str) -> bool {
        let Some(Ok(certificate)) = certificate.map(ParsedCertificate::try_from) else { return false };
        let node = self.nodes.iter().find(|node| node.name == name);
        node.is_some_and(|node| node.names.iter().any(|name| verify_server_name(&certificate, name).is_ok()))
    }
}

/// The certificate of a peer that has connected.
pub(super) fn certificate(stream: &server::TlsStream<TcpStream>) -> Option<&CertificateDer<'static>> {
    stream.get_ref().1.peer_certificates()?.first()
}

/// Verifies that a server is a certain node.
#[derive(Debug)]
struct NodeVerifier {
    servers: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        staple: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut last = Error::InvalidCertificate(CertificateError::NotValidForName);
        for name in &self.names {
            match self.servers.verify_server_cert(own, others, name, staple, now) {
                Ok(verified) => return Ok(verified),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.servers.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.servers.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.servers.supported_verify_schemes()
    }
}
