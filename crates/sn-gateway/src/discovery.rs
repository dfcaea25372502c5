//! ADVERTISE and SEARCHGW by multicast.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tenbin_sn_codec::v1_2::{Advertise, GwInfo, Message};
use tokio::net::UdpSocket;

use crate::config::Listener;

/// A socket at the multicast address.
pub(crate) struct Discovery {
    group: SocketAddr,
    socket: std::net::UdpSocket,
    advertise: Vec<u8>,
    info: Vec<u8>,
    interval: Duration,
}

impl Discovery {
    /// Joins the multicast group; `None` if none is configured.
    pub(crate) fn open(listener: &Listener) -> io::Result<Option<Self>> {
        let Some(group) = listener.multicast else { return Ok(None) };
        let socket = Socket::new(Domain::for_address(group), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&group.into())?;
        match (group.ip(), listener.address.ip()) {
            // The listener's address says which interface it is.
            (IpAddr::V4(group), IpAddr::V4(interface)) => socket.join_multicast_v4(&group, &interface)?,
            (IpAddr::V4(group), IpAddr::V6(_)) => socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?,
            (IpAddr::V6(group), _) => socket.join_multicast_v6(&group, 0)?,
        }
        let message = |message: Message<'_>| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes
        };
        let (gateway_id, duration) = (listener.gateway_id, listener.advertise_seconds);
        Ok(Some(Self {
            group,
            socket: socket.into(),
            advertise: message(Message::Advertise(Advertise { gateway_id, duration })),
            info: message(Message::GwInfo(GwInfo { gateway_id, address: &[] })),
            interval: Duration::from_secs(duration.into()),
        }))
    }

    /// Advertises the gateway and answers searches, both from the clients' socket: its address is the gateway's.
    pub(crate) async fn run(self, clients: Arc<UdpSocket>) {
        let Ok(socket) = UdpSocket::from_std(self.socket) else { return };
        let mut interval = tokio::time::interval(self.interval);
        let mut buffer = [0; 64];
        loop {
            tokio::select! {
                _ = interval.tick() => {
                    // [SN-DISCOVERY-2]
                    if let Err(error) = clients.send_to(&self.advertise, self.group).await {
                        tracing::warn!(group = %self.group, %error, "cannot send ADVERTISE");
                    }
                }
                received = socket.recv_from(&mut buffer) => {
                    if let Ok((size, from)) = received
                        && let Ok(Message::SearchGw(_)) = Message::decode(&buffer[..size])
                    {
                        let _ = clients.send_to(&self.info, from).await; // [SN-DISCOVERY-1]
                    }
                }
            }
        }
    }
}

/// Sets interface and hops of multicast datagrams from the clients' socket.
pub(crate) fn prepare(socket: &std::net::UdpSocket, listener: &Listener) -> io::Result<()> {
    let Some(group) = listener.multicast else { return Ok(()) };
    let socket = SockRef::from(socket);
    match listener.address.ip() {
        IpAddr::V4(interface) => {
            if !interface.is_unspecified() {
                socket.set_multicast_if_v4(&interface)?;
            }
            socket.set_multicast_ttl_v4(listener.radius.into())
        }
        IpAddr::V6(_) if group.is_ipv6() => socket.set_multicast_hops_v6(listener.radius.into()),
        IpAddr::V6(_) => Ok(()),
    }
}
