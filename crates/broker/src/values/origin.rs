use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where a Network Connection comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The client: a proxy in front of the broker may have told its address.
    pub peer: Peer,
    /// The other end of the broker's socket: the client, or the proxy.
    pub socket_peer: Peer,
    /// The broker's end of a TCP connection.
    pub local: Option<SocketAddr>,
    /// Name of the server that the client asked for, from TLS.
    pub server_name: Option<Arc<str>>,
    /// Verified certificate of the client.
    pub certificate: Option<Arc<Certificate>>,
    /// Protocol below MQTT.
    pub transport: TransportProtocol,
}

/// Other end of a Network Connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// Network address.
    Ip(SocketAddr),
    /// Process on this machine.
    Local {
        /// User of the process, by the system.
        uid: u32,
    },
}

/// Protocol below MQTT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// TLS on TCP.
    Tls,
    /// WebSocket on TCP.
    WebSocket,
    /// WebSocket on TLS.
    WebSocketTls,
    /// Unix socket.
    Unix,
    /// MQTT-SN on UDP, through a gateway of the embedding program.
    MqttSn,
    /// HTTP ingest, through a server of the embedding program.
    Http,
    /// Stream of the embedding program.
    Embedded,
}

/// Certificate of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificate {
    /// The certificate in DER, followed by the certificates of intermediate authorities that came with it.
    pub chain: Vec<Box<[u8]>>,
    /// SHA-256 of the certificate in DER.
    pub fingerprint: [u8; 32],
    /// Common Name of the subject, if it has exactly one.
    pub common_name: Option<String>,
    /// Subject Alternative Names: DNS names.
    pub dns_names: Vec<String>,
    /// Subject Alternative Names: URIs.
    pub uris: Vec<String>,
    /// Subject Alternative Names: e-mail addresses.
    pub emails: Vec<String>,
    /// End of the validity, in seconds since 1970.
    pub not_after: i64,
}

impl Origin {
    /// Returns the origin of a connection without proxy and TLS.
    pub fn direct(peer: Peer, local: Option<SocketAddr>, transport: TransportProtocol) -> Self {
        Self { peer, socket_peer: peer, local, server_name: None, certificate: None, transport }
    }
}

impl Certificate {
    /// A certificate of which a proxy has told the Common Name alone. It has no chain and a fingerprint of zeros.
    pub(crate) fn told(common_name: String) -> Self {
        Self {
            chain: Vec::new(),
            fingerprint: [0; 32],
            common_name: Some(common_name),
            dns_names: Vec::new(),
            uris: Vec::new(),
            emails: Vec::new(),
            not_after: i64::MAX,
        }
    }

    /// Whether its validity is over.
    pub fn has_expired(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(self.not_after).map_or(true, |end| end < now.as_secs())
    }
}

impl TransportProtocol {
    /// The protocol in a word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::WebSocket => "websocket",
            Self::WebSocketTls => "websocket_tls",
            Self::Unix => "unix",
            Self::MqttSn => "mqtt_sn",
            Self::Http => "http",
            Self::Embedded => "embedded",
        }
    }
}

impl Peer {
    /// Network address whose bounds apply: the peer's address, or loopback for a process on this machine.
    pub fn address(self) -> IpAddr {
        self.socket_address().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
    }

    /// Network address and port, if the peer has them.
    pub fn socket_address(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Local { .. } => None,
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Local { uid } => write!(f, "uid:{uid}"),
        }
    }
}

impl fmt::Display for TransportProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::WebSocket => "websocket",
            Self::WebSocketTls => "websocket+tls",
            Self::Unix => "unix",
            Self::MqttSn => "mqtt-sn",
            Self::Http => "http",
            Self::Embedded => "embedded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_expires_after_its_last_second() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        for (not_after, has_expired) in [(i64::MIN, true), (-1, true), (now - 1, true), (now + 600, false)] {
            let certificate = Certificate {
                chain: Vec::new(),
                fingerprint: [0; 32],
                common_name: None,
                dns_names: Vec::new(),
                uris: Vec::new(),
                emails: Vec::new(),
                not_after,
            };
            assert_eq!(certificate.has_expired(), has_expired, "{not_after}");
        }
    }
}
