//! Gateways that answer SEARCHGW or advertise themselves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tenbin_sn_codec::v1_2::{Message, SearchGw};
use tokio::net::UdpSocket;
use tokio::time::{Instant, interval, timeout_at};

/// A search for gateways.
#[derive(Debug, Clone)]
pub struct Search {
    /// A multicast group with its port, or the address of one gateway.
    pub target: SocketAddr,
    /// Local IPv4 address of the interface for multicast. `None`: the system chooses.
    pub interface: Option<Ipv4Addr>,
    /// Hops that a multicast search may travel; 0 = no limit.
    pub radius: u8,
    /// Time to wait for answers. The search is sent three times within it.
    pub wait: Duration,
    /// Number of gateways after which the search ends early.
    pub enough: usize,
}

/// A gateway that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundGateway {
    /// Its id.
    pub id: u8,
    /// Its address for clients.
    pub address: SocketAddr,
    /// Time until its next ADVERTISE; `None` if it answered the search.
    pub advertised: Option<Duration>,
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot search at {target}: {error}")]
pub struct SearchError {
    target: SocketAddr,
    error: io::Error,
}

const SENDINGS: u32 = 3;
/// Larger than each message about gateways.
const BUFFER_SIZE: usize = 512;

/// Asks for gateways by SEARCHGW, and listens for ADVERTISE in a multicast group. Returns them in the order of answers.
///
/// # Errors
/// The sockets cannot be used.
pub async fn search(search: &Search) -> Result<Vec<FoundGateway>, SearchError> {
    run(search).await.map_err(|error| SearchError { target: search.target, error })
}

async fn run(search: &Search) -> io::Result<Vec<FoundGateway>> {
    let is_multicast = search.target.ip().is_multicast();
    let asking = UdpSocket::bind(SocketAddr::new(unspecified(search.target), 0)).await?;
    if is_multicast {
        prepare(&asking, search)?;
    }
    let group = if is_multicast { Some(join(search)?) } else { None };
    let mut request = Vec::new();
    Message::SearchGw(SearchGw { radius: search.radius }).encode(&mut request);
    let end = Instant::now() + search.wait;
    let mut sendings = interval((search.wait / SENDINGS).max(Duration::from_millis(1)));
    let (mut asked, mut heard) = ([0; BUFFER_SIZE], [0; BUFFER_SIZE]);
    let mut found: Vec<FoundGateway> = Vec::new();
    let collect = async {
        while found.len() < search.enough {
            let gateway = tokio::select! {
                _ = sendings.tick() => {
                    asking.send_to(&request, search.target).await?;
                    continue;
                }
                // An error tells that no process listens at an address: others may answer.
                received = asking.recv_from(&mut asked) => received.ok().and_then(|(size, from)| read(&asked[..size], from)),
                received = receive(group.as_ref(), &mut heard) => {
                    received.ok().and_then(|(size, from)| read(&heard[..size], from))
                }
            };
            if let Some(gateway) = gateway
                && !found.iter().any(|known| known.address == gateway.address)
            {
                found.push(gateway);
            }
        }
        Ok::<_, io::Error>(())
    };
    if let Ok(result) = timeout_at(end, collect).await {
        result?;
    }
    Ok(found)
}

/// Receives in the multicast group, if there is one.
async fn receive(group: Option<&UdpSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match group {
        Some(group) => group.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

/// The gateway that a message tells of.
fn read(datagram: &[u8], from: SocketAddr) -> Option<FoundGateway> {
    match Message::decode(datagram).ok()? {
        Message::GwInfo(info) => {
            let address = told_address(info.address).unwrap_or(from);
            Some(FoundGateway { id: info.gateway_id, address, advertised: None })
        }
        Message::Advertise(advertise) => {
            let advertised = Some(Duration::from_secs(advertise.duration.into()));
            Some(FoundGateway { id: advertise.gateway_id, address: from, advertised })
        }
        _ => None,
    }
}

/// Address in a GWINFO of another client: 4 or 16 bytes, and the port.
fn told_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (address, port) = bytes.split_last_chunk::<2>()?;
    let address = match *address {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?)),
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}

/// Sets interface and hops of multicast datagrams.
fn prepare(socket: &UdpSocket, search: &Search) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let hops = if search.radius == 0 { u32::from(u8::MAX) } else { search.radius.into() };
    if search.target.is_ipv6() {
        return socket.set_multicast_hops_v6(hops);
    }
    if let Some(interface) = search.interface {
        socket.set_multicast_if_v4(&interface)?;
    }
    socket.set_multicast_ttl_v4(hops)
}

/// A socket in the multicast group, which others may share.
fn join(search: &Search) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(search.target), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&search.target.into())?;
    match search.target.ip() {
        IpAddr::V4(group) => {
            socket.join_multicast_v4(&group, &search.interface.unwrap_or(Ipv4Addr::UNSPECIFIED))?;
        }
        IpAddr::V6(group) => socket.join_multicast_v6(&group, 0)?,
    }
    UdpSocket::from_std(socket.into())
}

fn unspecified(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gwinfo_of_a_client_names_the_gateways_address() {
        let from: SocketAddr = "127.0.0.1:9".parse().expect("an address");
        let read = |datagram: &[u8]| read(datagram, from).map(|gateway| (gateway.id, gateway.address.to_string()));
        assert_eq!(read(b"\x03\x02\x07"), Some((7, "127.0.0.1:9".to_owned())));
        assert_eq!(read(b"\x09\x02\x07\x0A\x00\x00\x01\x27\x10"), Some((7, "10.0.0.1:10000".to_owned())));
        assert_eq!(read(b"\x05\x02\x07??"), Some((7, "127.0.0.1:9".to_owned())));
        assert_eq!(read(b"\x02\x17"), None);
    }
}
