//! The cluster port: accepts connections, and tells relayed clients from nodes by the first byte.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenbin_broker::RelayedStream;
use tenbin_broker::config::Network;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::lines::{self, LineError};
use super::secure::{self, NodeTls};
use super::stream::NodeStream;
use super::unclassified::{Handshakes, Unclassified};
use super::{HELLO_BYTES_MAX, Hello, HelloAnswer, HelloKind, PROTOCOL};

/// A connection whose kind is known.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A client that a node passes on. Nothing is read: the PROXY header is the first thing in the stream.
    Relayed(RelayedStream),
    /// A node. Its hello is read, and waits for a [`HelloAnswer`].
    Node(Hello, NodeStream),
}

/// Why a connection at the cluster port is refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its address is not in `plain_from`.
    Address,
    /// Its first line is no hello, or does not end.
    Malformed,
    /// No first line in time.
    Silent,
    /// It made room for another one.
    Evicted,
    /// Its protocol or its purpose is unknown.
    Protocol,
    /// It is of another cluster.
    Cluster,
    /// It is of a node that is not in `nodes`.
    Node,
    /// It is for a leader, and this node does not lead.
    NotLeading,
    /// Its certificate is not of the node that it says it is.
    Certificate,
    /// It is for a copy, and the node cannot read this node's formats.
    Formats,
    /// Another process with the name of its node is linked.
    Namesake,
}

/// Counts of refused connections.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusal {
    const ALL: [(Self, &str); 11] = [
        (Self::Address, "address"),
        (Self::Malformed, "malformed"),
        (Self::Silent, "silent"),
        (Self::Evicted, "evicted"),
        (Self::Protocol, "protocol"),
        (Self::Cluster, "cluster"),
        (Self::Node, "node"),
        (Self::NotLeading, "not_leading"),
        (Self::Certificate, "certificate"),
        (Self::Formats, "formats"),
        (Self::Namesake, "namesake"),
    ];
}

impl Refusals {
    pub(crate) fn count(&self, reason: Refusal) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Name and count of each reason.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refusal::ALL.iter().map(|&(reason, name)| (name, self.0[reason as usize].load(Ordering::Relaxed)))
    }
}

/// Rules of the cluster port.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPort {
    /// Name of the cluster. Nodes of other clusters are refused.
    pub(crate) cluster: String,
    /// Networks of peers, if there is no TLS. Others are closed at once.
    pub(crate) plain_from: Vec<Network>,
    pub(crate) refusals: Arc<Refusals>,
    /// TLS, by which nodes prove their names.
    pub(crate) tls: Option<Arc<NodeTls>>,
}

impl ClusterPort {
    /// Accepts connections until it is cancelled, and passes each one to `handle`, which must not block.
    pub(crate) async fn serve(self, listener: TcpListener, handle: impl Fn(Accepted) + Send + Sync + 'static) {
        let (port, handle) = (Arc::new(self), Arc::new(handle));
        let handshakes = Handshakes::start(port.tls.is_some());
        let mut unclassified = Unclassified::default();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection at the cluster port");
                    // Descriptors may be short: other connections have to end first.
                    sleep(ACCEPT_AGAIN_AFTER).await;
                    continue;
                }
            };
            if port.tls.is_none() && !port.plain_from.iter().any(|network| network.contains(peer.ip())) {
                port.refusals.count(Refusal::Address);
                tracing::warn!(%peer, "refusing a connection at the cluster port: its address is not in `plain_from`");
                continue;
            }
            if unclassified.make_room() {
                port.refusals.count(Refusal::Evicted);
            }
            let (port, handle) = (Arc::clone(&port), Arc::clone(&handle));
            unclassified.add(peer.ip(), &handshakes.runtime(), async move {
                match timeout(FIRST_LINE_TIMEOUT, port.classify(stream)).await {
                    Ok(Ok(Some(accepted))) => handle(accepted),
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => {
                        port.refusals.count(Refusal::Malformed);
                        tracing::warn!(%peer, %error, "closing a connection at the cluster port");
                    }
                    Err(_) => {
                        port.refusals.count(Refusal::Silent);
                        tracing::warn!(%peer, "closing a connection at the cluster port: no first line in time");
                    }
                }
            });
        }
    }

    /// Tells the kind of a connection. `None` = refused, with an answer.
    async fn classify(&self, stream: TcpStream) -> Result<Option<Accepted>, LineError> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None); // a check of the port
        }
        let invalid = |reason| LineError::from(io::Error::new(io::ErrorKind::InvalidData, reason));
        // A stranger gets the reason if it says hello, so that its own log has it.
        let (mut stream, stranger) = match (&self.tls, first[0] == TLS_BEGIN) {
            (None, false) => (NodeStream::Plain(stream), None),
            (None, true) => return Err(invalid("it speaks TLS, and this node has no `certificate` in [cluster]")),
            (Some(tls), true) => {
                let stream = tls.accept(stream).await?;
                let stranger = (!tls.knows(&stream)).then_some((Refusal::Certificate, OTHER_CERTIFICATE));
                (NodeStream::Server(Box::new(stream)), stranger)
            }
            (Some(_), false) => (NodeStream::Plain(stream), Some((Refusal::Malformed, NO_TLS))),
        };
        match (stream.peek().await?, stranger) {
            (None, _) => return Ok(None),
            (Some(b'{'), _) => {}
            (_, Some((_, reason))) => return Err(invalid(reason)),
            (Some(PROXY_V2_BEGIN), _) => return Ok(stream.relayed().map(Accepted::Relayed)),
            _ => return Err(invalid("it begins with neither a PROXY header of version 2 nor a hello")),
        }
        let hello: Hello = lines::read_exact_line(&mut stream, HELLO_BYTES_MAX).await?;
        let stranger = stranger.map(|(kind, reason)| (kind, reason.to_owned()));
        let refused = stranger.or_else(|| self.refusal(&hello));
        let refused = refused.or_else(|| Some((Refusal::Certificate, self.is_other(&hello, &stream)?)));
        let Some((kind, reason)) = refused else { return Ok(Some(Accepted::Node(hello, stream))) };
        self.refusals.count(kind);
        tracing::warn!(%peer, node = hello.node, reason, "refusing a node");
        lines::write(&mut stream, &HelloAnswer::refused(reason)).await?;
        Ok(None)
    }

    /// Why the certificate of a node does not fit its hello.
    fn is_other(&self, hello: &Hello, stream: &NodeStream) -> Option<String> {
        let (Some(tls), NodeStream::Server(stream)) = (&self.tls, stream) else { return None };
        // Commands have any node's certificate, and no name.
        let is_command = match hello.kind {
            HelloKind::Status => true,
            HelloKind::Switch => hello.node.is_empty(),
            _ => false,
        };
        let is_own = is_command || tls.is_of(secure::certificate(stream), &hello.node);
        (!is_own).then(|| format!("its certificate is not of the node {:?}", hello.node))
    }

    fn refusal(&self, hello: &Hello) -> Option<(Refusal, String)> {
        let is_any = hello.cluster.is_empty() && hello.kind == HelloKind::Status;
        if hello.protocol != PROTOCOL {
            let reason = format!("protocol {} is unknown: this node has protocol {PROTOCOL}", hello.protocol);
            Some((Refusal::Protocol, reason))
        } else if hello.kind == HelloKind::Unknown {
            Some((Refusal::Protocol, "the kind of the connection is unknown".to_owned()))
        } else if hello.cluster != self.cluster && !is_any {
            let reason = format!("this node belongs to the cluster {:?}, not to {:?}", self.cluster, hello.cluster);
            Some((Refusal::Cluster, reason))
        } else {
            None
        }
    }
}

const OTHER_CERTIFICATE: &str =
    "its certificate has no name or host of a node in `nodes` as a Subject Alternative Name";
const NO_TLS: &str = "it does not speak TLS, and this node has `certificate` in [cluster]";
/// First byte of a PROXY header of version 2.
const PROXY_V2_BEGIN: u8 = b'\r';
/// First byte of a handshake of TLS.
const TLS_BEGIN: u8 = 0x16;
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(5);
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
