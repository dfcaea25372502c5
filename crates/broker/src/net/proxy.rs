//! Stage of a door: the PROXY header.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::{Refused, in_time};
use super::proxy_header::{self, ProxyError, ProxyHeader};
use crate::config::{Listener, ProxyUse};
use crate::values::{Certificate, Network, Origin, Peer};

/// Proxies of a listener, which tell by a header whose connection they pass on.
#[derive(Debug)]
pub(super) struct Proxy {
    from: Vec<Network>,
    header: ProxyUse,
    /// Whether the client certificates that they have verified count.
    trusts_tls: bool,
}

impl Proxy {
    /// Proxies of `listener`; `None` if it has none.
    pub(super) fn of(listener: &Listener) -> Option<Self> {
        let Listener { proxy_from, proxy, proxy_trust_tls, .. } = listener;
        let proxies = Self { from: proxy_from.clone(), header: *proxy, trusts_tls: *proxy_trust_tls };
        (!proxy_from.is_empty()).then_some(proxies)
    }

    /// Whether a peer may send a header.
    pub(super) fn trusts(&self, peer: Peer) -> bool {
        let address = peer.socket_address();
        address.is_some_and(|address| self.from.iter().any(|network| network.contains(address.ip())))
    }

    /// Reads the header, and nothing behind it. The connection counts for the told client from then on.
    pub(super) async fn pass(
        &self,
        open: &mut OpenConnection,
        stream: &mut TcpStream,
        origin: &mut Origin,
        deadline: Instant,
    ) -> Result<(), Refused> {
        let refused = |error| Refused { stage: "PROXY header", error };
        let header = in_time(deadline, self.read(origin.socket_peer, stream)).await.map_err(refused)?;
        let peer = header.as_ref().map_or(Some(origin.peer), |header| header.peer.map(Peer::Ip));
        // The proxy's own connection has no bound.
        if let Some(peer) = peer {
            open.belongs_to(peer).map_err(refused)?;
            origin.peer = peer;
        }
        let Some(ProxyHeader { server_name, common_name, .. }) = header else { return Ok(()) };
        origin.server_name = server_name.map(Into::into);
        let common_name = common_name.filter(|_| self.trusts_tls);
        origin.certificate = common_name.map(|name| Arc::new(Certificate::told(name)));
        Ok(())
    }

    /// Reads the header of a connection from `peer`; `None` if it has none and needs none.
    async fn read(&self, peer: Peer, stream: &mut TcpStream) -> io::Result<Option<ProxyHeader>> {
        let is_proxy = self.trusts(peer);
        if self.header == ProxyUse::Optional {
            let mut first = [0];
            let begins_header = stream.peek(&mut first).await? == 1 && proxy_header::begins_header(first[0]);
            if !begins_header {
                return Ok(None);
            }
        }
        if !is_proxy {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is not in proxy_from"));
        }
        let header = proxy_header::read(stream).await.map_err(|error| match error {
            ProxyError::Connection(error) => error,
            malformed => io::Error::new(io::ErrorKind::InvalidData, malformed),
        });
        header.map(Some)
    }
}
