//! Stage of a door: the PROXY header.

use std::io;
#[cfg(feature = "websocket")]
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[cfg(feature = "websocket")]
use tenbin_websocket::Refusal;
use tokio::time::Instant;

use super::core::OpenConnection;
use super::door::{Refused, in_time};
use super::proxy_header::{self, ProxyHeader};
use super::wire::Wire;
use crate::config::{Listener, ProxyUse};
use crate::values::{Certificate, Network, Origin, Peer};

/// Proxies of a listener, which tell by a header whose connection they pass on.
#[derive(Debug)]
pub(super) struct Proxy {
    from: Vec<Network>,
    header: ProxyUse,
    /// Whether the client certificates that they have verified count.
    trusts_tls: bool,
    /// Whether `X-Forwarded-For` counts.
    #[cfg(feature = "websocket")]
    forwarded_for: bool,
}

/// Information that a connection gave before its first stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preamble {
    /// It has no PROXY header, and needs none.
    None,
    /// A PROXY header says whose connection it is: a client's, or the proxy's.
    Header,
}

impl Proxy {
    /// Proxies of `listener`; `None` if it has none.
    pub(super) fn of(listener: &Listener) -> Option<Self> {
        let proxies = Self {
            from: listener.proxy_from.clone(),
            header: listener.proxy,
            trusts_tls: listener.proxy_trust_tls,
            #[cfg(feature = "websocket")]
            forwarded_for: listener.proxy_forwarded_for,
        };
        (!listener.proxy_from.is_empty()).then_some(proxies)
    }

    /// Whether a peer may send a header.
    pub(super) fn trusts(&self, peer: Peer) -> bool {
        let address = peer.socket_address();
        address.is_some_and(|address| self.from.iter().any(|network| network.contains(address.ip())))
    }

    /// The client by the elements of `X-Forwarded-For` that `peer` has sent; `None` if it tells none, or is no proxy.
    ///
    /// Each proxy appends the address of its peer. So the client is the last element that is no proxy, and the elements
    /// before it are its own: they may say anything. Its port is 0 if it is not told.
    ///
    /// # Errors
    /// A proxy has sent something else than an address.
    #[cfg(feature = "websocket")]
    pub(super) fn forwarded(&self, peer: Peer, elements: &[String]) -> Result<Option<Peer>, Refusal> {
        let mut client = None;
        if !self.forwarded_for || !self.trusts(peer) {
            return Ok(None);
        }
        for element in elements.iter().rev() {
            let address = address(element)
                .ok_or_else(|| Refusal::new(400, format!("X-Forwarded-For has {element:?}, which is no address")))?;
            client = Some(Peer::Ip(address));
            if !self.trusts(Peer::Ip(address)) {
                break;
            }
        }
        Ok(client)
    }

    /// Reads the header, and nothing behind it. The connection counts for the told client from then on.
    pub(super) async fn pass(
        &self,
        open: &mut OpenConnection,
        stream: &mut Wire,
        origin: &mut Origin,
        deadline: Instant,
    ) -> Result<Preamble, Refused> {
        let refused = |error| Refused { stage: "PROXY header", error };
        let header = in_time(deadline, self.read(origin.socket_peer, stream)).await.map_err(refused)?;
        let Some(ProxyHeader { peer, server_name, common_name, .. }) = header else { return Ok(Preamble::None) };
        // The proxy's own connection has no bound.
        if let Some(peer) = peer.map(Peer::Ip) {
            open.belongs_to(peer).map_err(refused)?;
            origin.peer = peer;
        }
        origin.server_name = server_name.map(Into::into);
        let common_name = common_name.filter(|_| self.trusts_tls);
        origin.certificate = common_name.map(|name| Arc::new(Certificate::told(name)));
        Ok(Preamble::Header)
    }

    /// Reads the header of a connection from `peer`; `None` if it has none and needs none.
    async fn read(&self, peer: Peer, stream: &mut Wire) -> io::Result<Option<ProxyHeader>> {
        let is_proxy = self.trusts(peer);
        if self.header == ProxyUse::Optional {
            let first = stream.peek().await?;
            if !first.is_some_and(proxy_header::begins_header) {
                return Ok(None);
            }
        }
        if !is_proxy {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is not in proxy_from"));
        }
        Ok(Some(proxy_header::read(stream).await?))
    }
}

/// An address, perhaps with a port; IPv6 perhaps in brackets.
#[cfg(feature = "websocket")]
fn address(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let in_brackets = bare.and_then(|bare| bare.parse().ok()).map(IpAddr::V6);
    let address = in_brackets.or_else(|| text.parse().ok()).map(|address| SocketAddr::new(address, 0));
    address.or_else(|| text.parse().ok())
}
