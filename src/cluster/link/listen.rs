//! The cluster port: accepts connections, and tells relayed clients from nodes by the first byte.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenbin_broker::config::Network;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::lines::{self, LineError};
use super::{HELLO_BYTES_MAX, Hello, HelloAnswer, HelloKind, PROTOCOL};

/// A connection whose kind is known.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A client that a node passes on. Nothing is read: the PROXY header is the first thing in the stream.
    Relayed(TcpStream),
    /// A node. Its hello is read, and waits for a [`HelloAnswer`].
    Node(Hello, TcpStream),
}

/// Rules of the cluster port.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPort {
    /// Name of the cluster. Nodes of other clusters are refused.
    pub(crate) cluster: String,
    /// Networks of peers. Others are closed at once, since the connection has no TLS.
    pub(crate) plain_from: Vec<Network>,
}

impl ClusterPort {
    /// Accepts connections until it is cancelled, and passes each one to `handle`, which must not block.
    pub(crate) async fn serve(self, listener: TcpListener, handle: impl Fn(Accepted) + Send + Sync + 'static) {
        let (port, handle) = (Arc::new(self), Arc::new(handle));
        let (mut unclassified, mut oldest) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
        loop {
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection at the cluster port");
                        // Descriptors may be short: other connections have to end first.
                        sleep(ACCEPT_AGAIN_AFTER).await;
                        continue;
                    }
                },
                Some(_) = unclassified.join_next() => continue,
            };
            if !port.plain_from.iter().any(|network| network.contains(peer.ip())) {
                tracing::warn!(%peer, "refusing a connection at the cluster port: its address is not in `plain_from`");
                continue;
            }
            make_room(&mut unclassified, &mut oldest).await;
            let (port, handle) = (Arc::clone(&port), Arc::clone(&handle));
            oldest.push_back(unclassified.spawn(async move {
                match timeout(FIRST_LINE_TIMEOUT, port.classify(stream)).await {
                    Ok(Ok(Some(accepted))) => handle(accepted),
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => tracing::warn!(%peer, %error, "closing a connection at the cluster port"),
                    Err(_) => tracing::warn!(%peer, "closing a connection at the cluster port: no first line in time"),
                }
            }));
        }
    }

    /// Tells the kind of a connection. `None` = refused, with an answer.
    async fn classify(&self, mut stream: TcpStream) -> Result<Option<Accepted>, LineError> {
        stream.set_nodelay(true)?;
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None); // a check of the port
        }
        match first[0] {
            PROXY_V2_BEGIN => return Ok(Some(Accepted::Relayed(stream))),
            b'{' => {}
            _ => {
                let reason = "it begins with neither a PROXY header of version 2 nor a hello";
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason).into());
            }
        }
        let hello: Hello = lines::read_exact_line(&mut stream, HELLO_BYTES_MAX).await?;
        let Some(reason) = self.refusal(&hello) else { return Ok(Some(Accepted::Node(hello, stream))) };
        let peer = stream.peer_addr()?;
        tracing::warn!(%peer, node = hello.node, reason, "refusing a node");
        lines::write(&mut stream, &HelloAnswer::Refused { reason, record: None }).await?;
        Ok(None)
    }

    fn refusal(&self, hello: &Hello) -> Option<String> {
        let is_any = hello.cluster.is_empty() && hello.kind == HelloKind::Status;
        if hello.protocol != PROTOCOL {
            Some(format!("protocol {} is unknown: this node has protocol {PROTOCOL}", hello.protocol))
        } else if hello.kind == HelloKind::Unknown {
            Some("the kind of the connection is unknown".to_owned())
        } else if hello.cluster != self.cluster && !is_any {
            Some(format!("this node belongs to the cluster {:?}, not to {:?}", self.cluster, hello.cluster))
        } else {
            None
        }
    }
}

/// Waits while there are [`UNCLASSIFIED_MAX`] connections of unknown kind, then ends the oldest one.
///
/// Nodes and relays send their first line at once, so that the oldest connection is a silent one.
async fn make_room(unclassified: &mut JoinSet<()>, oldest: &mut VecDeque<AbortHandle>) {
    while unclassified.try_join_next().is_some() {}
    while unclassified.len() >= UNCLASSIFIED_MAX {
        if timeout(ROOM_WITHIN, unclassified.join_next()).await.is_err() {
            oldest.retain(|task| !task.is_finished());
            if let Some(task) = oldest.pop_front() {
                task.abort();
                tracing::warn!("closing a silent connection at the cluster port: too many of them");
            }
        }
    }
    if oldest.len() >= 2 * UNCLASSIFIED_MAX {
        oldest.retain(|task| !task.is_finished());
    }
}

/// First byte of a PROXY header of version 2.
const PROXY_V2_BEGIN: u8 = b'\r';
const UNCLASSIFIED_MAX: usize = 64;
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait for room before the oldest connection of unknown kind ends.
const ROOM_WITHIN: Duration = Duration::from_millis(50);
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
