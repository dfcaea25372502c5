//! SEARCHGW, GWINFO and ADVERTISE.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Socket, Type};
use tenbin_sn_codec::v1_2::{Advertise, GwInfo, Message, SearchGw};

use crate::client::{Client, PATIENCE, gateway, wait_for};
use crate::fake_broker::FakeBroker;

const INFO: Message<'static> = Message::GwInfo(GwInfo { gateway_id: 9, address: &[] });

/// A socket in the multicast group, on the loopback interface.
fn member(group: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&SocketAddr::from((group, port)).into()).expect("the group's address");
    socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).expect("the group");
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    socket
}

#[test]
fn gateway_advertises_itself_and_answers_searches() {
    let broker = FakeBroker::start();
    let group = Ipv4Addr::new(239, 255, 77, 9);
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let member = member(group, port);
    let listener = format!("multicast = \"{group}:{port}\"\nadvertise_seconds = 1\ngateway_id = 9");
    let gateway = gateway(broker.address, "", &listener);
    let mut buffer = [0; 64];
    let mut search = Vec::new();
    Message::SearchGw(SearchGw { radius: 1 }).encode(&mut search);
    for _ in 0..2 {
        let (size, from) = member.recv_from(&mut buffer).expect("ADVERTISE");
        let advertise = Message::Advertise(Advertise { gateway_id: 9, duration: 1 });
        assert_eq!((Message::decode(&buffer[..size]), from), (Ok(advertise), gateway.address()));
    }
    let searcher = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    searcher.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    searcher.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("the interface");
    let searcher = UdpSocket::from(searcher);
    searcher.set_read_timeout(Some(PATIENCE)).expect("a time");
    for to in [SocketAddr::from((group, port)), gateway.address()] {
        searcher.send_to(&search, to).expect("sent");
        let (size, from) = searcher.recv_from(&mut buffer).expect("GWINFO");
        assert_eq!((Message::decode(&buffer[..size]), from), (Ok(INFO), gateway.address()), "search at {to}");
    }
}

#[test]
fn searches_are_not_answered_without_a_multicast_address() {
    let broker = FakeBroker::start();
    let gateway = gateway(broker.address, "", "");
    let mut client = Client::new(gateway.address());
    client.send(&Message::SearchGw(SearchGw { radius: 0 }));
    client.send_bytes(b"");
    // The next datagram was seen: so was the search.
    wait_for(&gateway, "malformed_empty", 1);
    assert!(client.is_silent());
}
