use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tenbin_sn::Datagrams;
use tokio::net::{UdpSocket, lookup_host};

use crate::secured::{DtlsKeys, Secured};

/// A socket for one gateway.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    socket: UdpSocket,
    /// DTLS, if the client has keys for it.
    secured: Option<Secured>,
}

impl Link {
    /// Opens a socket that sends to, and receives from, this address alone.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.connect(address).await?;
        Ok(Self { address, socket, secured: None })
    }

    /// Opens a DTLS session with the gateway `host` on the socket.
    pub(crate) async fn secure(mut self, keys: &DtlsKeys, host: &str) -> io::Result<Self> {
        self.secured = Some(Secured::open(&self.socket, keys, host).await?);
        Ok(self)
    }

    /// Whether another connection may use the socket again. A gateway that was lost may have lost the DTLS session.
    pub(crate) fn is_reusable(&self) -> bool {
        self.secured.is_none()
    }

    /// Forgets an error of earlier datagrams, and answers to them.
    pub(crate) fn clear(&self, buffer: &mut [u8]) {
        let _ = self.socket.take_error();
        while self.socket.try_recv(buffer).is_ok() {}
    }

    /// Sends all datagrams and clears them.
    ///
    /// # Errors
    /// A gateway that is not there may be noticed here, or when receiving.
    pub(crate) async fn send(&self, datagrams: &mut Datagrams) -> io::Result<()> {
        let mut result = Ok(());
        if let Some(secured) = &self.secured {
            for message in datagrams.iter() {
                result = result.and(secured.send(&self.socket, message).await);
            }
            datagrams.clear();
            return result;
        }
        for datagram in datagrams.iter() {
            // An error of an earlier datagram is reported instead of sending this one.
            let sent = match self.socket.send(datagram).await {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    self.socket.send(datagram).await.and(Err(error))
                }
                sent => sent,
            };
            result = result.and(sent.map(drop));
        }
        datagrams.clear();
        result
    }

    /// Receives one datagram. Cancel safe.
    pub(crate) async fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        if let Some(secured) = &self.secured {
            let size = secured.receive(&self.socket, buffer).await?;
            return Ok(&buffer[..size]);
        }
        let size = self.socket.recv(buffer).await?;
        Ok(&buffer[..size])
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(secured) = self.secured.take() {
            secured.close(&self.socket);
        }
    }
}

/// Addresses of a "host:port", at least one. Those of IPv4 come first: `localhost` is both, and few gateways listen at `::1`.
pub(crate) async fn resolve(gateway: &str) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = lookup_host(gateway).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if addresses.is_empty() {
        Err(io::Error::new(ErrorKind::NotFound, "the name has no address"))
    } else {
        Ok(addresses)
    }
}
