//! Clients whose connection is in memory instead of a socket.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use crate::{Broker, Config};

pub(super) const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

pub(super) async fn exchange(stream: &mut DuplexStream, packet: &[u8], answer: &[u8]) {
    stream.write_all(packet).await.unwrap();
    let mut came = vec![0; answer.len()];
    stream.read_exact(&mut came).await.unwrap();
    assert_eq!(came, answer);
}

#[tokio::test]
async fn in_memory_client_is_served_like_tcp_client() {
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config).start().await.unwrap();
    let (mut stream, other_end) = duplex(1024);
    broker.serve(other_end, PEER);
    let connect = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c";
    exchange(&mut stream, connect, &[0x20, 2, 0, 0]).await;
    assert_eq!((broker.connections(), broker.sessions()), (1, 1));
    exchange(&mut stream, b"\x82\x06\0\x01\0\x01t\0", &[0x90, 3, 0, 1, 0]).await;
    exchange(&mut stream, b"\x30\x04\0\x01tx", b"\x30\x04\0\x01tx").await;
    broker.shutdown().await;
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn in_memory_client_is_closed_without_listener() {
    let config = Config { listen: Vec::new(), ..Config::default() };
    let broker = Broker::builder().config(config).start().await.unwrap();
    let (mut stream, other_end) = duplex(1024);
    broker.serve(other_end, PEER);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

/// A single read may bring thousands of small packets.
#[tokio::test]
async fn others_are_served_between_small_packets() {
    const PACKETS: usize = 20_000;
    const PINGREQ: &[u8] = &[0xC0, 0];
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config).start().await.unwrap();
    let mut clients = Vec::new();
    for client_id in [b'a', b'b'] {
        let (mut stream, other_end) = duplex(1 << 20);
        broker.serve(other_end, PEER);
        let connect = [b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01", &[client_id][..]].concat();
        exchange(&mut stream, &connect, &[0x20, 2, 0, 0]).await;
        clients.push(stream);
    }
    let [busy, other] = &mut clients[..] else { unreachable!() };
    busy.write_all(&PINGREQ.repeat(PACKETS)).await.unwrap();
    exchange(other, PINGREQ, &[0xD0, 0]).await;
    let mut came = vec![0; 2 * PACKETS];
    let before = busy.read(&mut came).await.unwrap();
    assert!(before <= came.len() / 4, "{} answers before that of the other client", before / 2);
    busy.read_exact(&mut came[before..]).await.unwrap();
    assert_eq!(came, [0xD0, 0].repeat(PACKETS));
    broker.shutdown().await;
}

/// The client does not wait for its acknowledgements, so that writing fails while its packets wait for their turn.
#[tokio::test]
async fn packets_before_the_end_are_applied_although_writing_fails() {
    // More than one turn, and less than one read.
    const MESSAGES: u16 = 560;
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let broker = Broker::builder().config(config).start().await.unwrap();
    let (mut receiver, other_end) = duplex(1 << 20);
    broker.serve(other_end, PEER);
    exchange(&mut receiver, b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01r", &[0x20, 2, 0, 0]).await;
    exchange(&mut receiver, b"\x82\x06\0\x01\0\x01#\0", &[0x90, 3, 0, 1, 0]).await;
    let (mut sender, other_end) = duplex(1 << 20);
    broker.serve(other_end, PEER);
    let with_will = b"\x10\x13\0\x04MQTT\x04\x06\0\0\0\x01s\0\x01w\0\x01x";
    exchange(&mut sender, with_will, &[0x20, 2, 0, 0]).await;
    let messages = (1..=MESSAGES).flat_map(|id| [b"\x32\x05\0\x01t", &id.to_be_bytes()[..]].concat());
    let packets: Vec<u8> = messages.chain([0xE0, 0]).collect();
    sender.write_all(&packets).await.unwrap();
    drop(sender);
    let mut came = vec![0; usize::from(MESSAGES) * 5];
    receiver.read_exact(&mut came).await.unwrap();
    assert_eq!(came, b"\x30\x03\0\x01t".repeat(MESSAGES.into()));
    while broker.connections() > 1 {
        tokio::task::yield_now().await;
    }
    exchange(&mut receiver, b"\x30\x04\0\x01lx", b"\x30\x04\0\x01lx").await; // and no Will before it
    broker.shutdown().await;
}
