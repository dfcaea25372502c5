//! Source and target addresses of connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use mio::net::TcpStream;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::run::engine::addresses::Addresses;

/// Target of each connection, and its source address where one address would run out of ports.
#[derive(Debug)]
pub(super) struct Targets {
    addresses: Arc<Addresses>,
    brokers: usize,
    /// Whether connections within this machine use several source addresses.
    are_spread: bool,
}

impl Targets {
    /// Targets for `connections` connections to `brokers` brokers.
    pub(super) fn new(addresses: Arc<Addresses>, brokers: usize, connections: u32) -> Self {
        Self { addresses, brokers, are_spread: connections > FROM_EACH }
    }

    /// Begins connection `number`, to brokers in turn and to the addresses of each in turn. It is writable once
    /// connected.
    pub(super) fn connect(&self, number: u32) -> io::Result<TcpStream> {
        let target = self.target(number);
        match (target, self.source(target, number)) {
            (SocketAddr::V4(target), Some(source)) => connect_from(source, target),
            (target, _) => TcpStream::connect(target),
        }
    }

    /// Target address of connection `number`.
    pub(super) fn target(&self, number: u32) -> SocketAddr {
        let turn = number / self.brokers as u32;
        self.addresses.in_turns(self.broker(number), turn).next().expect("a broker has an address")
    }

    /// Broker number of connection `number`.
    pub(super) fn broker(&self, number: u32) -> usize {
        number as usize % self.brokers
    }

    /// Source address for a loopback target: all of 127.0.0.0/8 is this machine.
    fn source(&self, target: SocketAddr, number: u32) -> Option<Ipv4Addr> {
        let is_loopback = matches!(target.ip(), IpAddr::V4(ip) if ip.is_loopback());
        let turn = number / FROM_EACH;
        let source = || Ipv4Addr::new(127, 1, (turn / 250) as u8, (1 + turn % 250) as u8);
        (self.are_spread && is_loopback).then(source)
    }
}

fn connect_from(source: Ipv4Addr, target: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddrV4::new(source, 0).into())?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Connections from one source address to one target.
///
/// By default, Linux has some 28,000 ports for that and tries the even ones first. With more than half of those taken,
/// the search for a free port takes most of the time.
const FROM_EACH: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Broker;

    async fn targets(hosts: &[&str], connections: u32) -> Targets {
        let broker = |host: &&str| Broker::new(*host, *host, 1883);
        let brokers: Vec<_> = hosts.iter().map(broker).collect();
        Targets::new(Arc::new(Addresses::resolve(&brokers).await.unwrap()), brokers.len(), connections)
    }

    #[tokio::test]
    async fn many_loopback_connections_use_several_source_addresses() {
        let few = targets(&["127.0.0.1"], 10_000).await;
        assert_eq!(few.source(few.target(9_999), 9_999), None);

        let spread = targets(&["127.0.0.1", "::1", "192.0.2.1"], 3_000_000).await;
        let source = |number| spread.source(spread.target(number), number).map(|ip| ip.to_string());
        assert_eq!(source(0).as_deref(), Some("127.1.0.1"));
        assert_eq!(source(9_999).as_deref(), Some("127.1.0.1"));
        assert_eq!(source(30_000).as_deref(), Some("127.1.0.4"));
        assert_eq!(source(2_510_001).as_deref(), Some("127.1.1.2"));
        assert_eq!((source(1), source(2)), (None, None), "IPv6 has one; others are no business of ours");
    }

    #[test]
    fn a_connection_can_come_from_another_address_of_this_machine() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(target) = listener.local_addr().unwrap() else { panic!("not IPv4") };
        let source = Ipv4Addr::new(127, 1, 2, 3);
        let _stream = connect_from(source, target).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), source);
    }
}
