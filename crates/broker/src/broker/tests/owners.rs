//! Memory limits of clients with different addresses.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    Connect, Decoded, Decoder, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe,
    Subscription, SubscriptionOptions, TopicFilter, TopicName, WriteBuffer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::client::{PATIENCE, connect};
use crate::memory::{Kind, Owner};
use crate::{Broker, Config};

const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Packets so small that they are not charged.
const SMALL_PACKETS: &str = "[connections]\npacket_bytes_maximum = 16384\nconnect_packet_bytes_maximum = 16384";
/// Length of the first part of a packet.
const BEGINNING: usize = 20_000;

async fn start(config: &str, directory: Option<&Path>) -> Broker {
    let config = Config::parse(&format!("listen = [\"127.0.0.1:0\"]\n{config}")).unwrap();
    let mut builder = Broker::builder().config(config);
    if let Some(directory) = directory {
        builder = builder.store(directory);
    }
    builder.start().await.unwrap()
}

fn bytes_of(broker: &Broker, wanted: Kind) -> usize {
    broker.parts.shared.storage.memory.by_kind().find(|(kind, ..)| *kind == wanted).map_or(0, |(_, bytes, _)| bytes)
}

async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}: not in time");
}

/// MQTT 5.0 client over an in-memory stream.
struct Remote {
    stream: DuplexStream,
    decoder: Decoder,
    input: BytesMut,
}

impl Remote {
    fn open(broker: &Broker, address: IpAddr) -> Self {
        let (stream, other_end) = duplex(4096);
        broker.serve(other_end, SocketAddr::new(address, 1));
        Self { stream, decoder: Decoder::client(ProtocolVersion::V5, u32::MAX), input: BytesMut::new() }
    }

    /// Connects with Keep Alive 0.
    async fn connect(broker: &Broker, address: IpAddr, client_id: &str, lasts: bool) -> Result<Self, ReasonCode> {
        let mut client = Self::open(broker, address);
        client.send(Packet::Connect(Box::new(Connect { keep_alive: 0, ..connect(client_id, lasts) }))).await;
        match client.receive().await {
            Packet::ConnAck(connack) if connack.reason == ReasonCode::Success => Ok(client),
            Packet::ConnAck(connack) => Err(connack.reason),
            other => panic!("{other:?} instead of CONNACK"),
        }
    }

    async fn send(&mut self, packet: Packet) {
        let mut out = WriteBuffer::new();
        packet.encode(ProtocolVersion::V5, &mut out);
        self.stream.write_all(&out.to_bytes()).await.unwrap();
    }

    /// Sends the beginning of a packet of this type and length.
    async fn send_beginning(&mut self, packet_type: u8, length: [u8; 3], body: &[u8]) {
        self.stream.write_all(&[packet_type]).await.unwrap();
        self.stream.write_all(&length).await.unwrap();
        self.stream.write_all(body).await.unwrap();
        self.stream.write_all(&vec![0; BEGINNING - body.len()]).await.unwrap();
    }

    async fn receive(&mut self) -> Packet {
        loop {
            if let Decoded::Packet(packet) = self.decoder.decode(&mut self.input).unwrap() {
                return packet;
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.input)).await;
            assert!(read.expect("an answer in time").unwrap() > 0, "closed");
        }
    }

    async fn subscribe(&mut self, filters: &[String]) -> Vec<ReasonCode> {
        let options = SubscriptionOptions::at(QoS::AtLeastOnce);
        let subscription =
            |filter: &String| Subscription { filter: TopicFilter::try_from(&filter[..]).unwrap(), options };
        let subscriptions = filters.iter().map(subscription).collect();
        let packet_id = PacketId::new(1).unwrap();
        let subscribe =
            Subscribe { packet_id, subscription_identifier: None, user_properties: Vec::new(), subscriptions };
        self.send(Packet::Subscribe(subscribe)).await;
        match self.receive().await {
            Packet::SubAck(suback) => suback.reasons,
            other => panic!("{other:?} instead of SUBACK"),
        }
    }

    async fn publish(&mut self, topic: &str, payload: Bytes, qos: QoS) -> ReasonCode {
        let packet_id = PacketId::new(1).filter(|_| qos.is_acknowledged());
        let publish = Publish::new(TopicName::try_from(topic).unwrap(), payload);
        self.send(Packet::Publish(Publish { qos, packet_id, ..publish })).await;
        if !qos.is_acknowledged() {
            return ReasonCode::Success;
        }
        match self.receive().await {
            Packet::PubAck(ack) => ack.reason,
            other => panic!("{other:?} instead of PUBACK"),
        }
    }

    async fn settle(&mut self) {
        self.send(Packet::PingReq(tenbin_codec::PingReq::PLAIN)).await;
        assert_eq!(self.receive().await.packet_type(), PacketType::PingResp);
    }
}

#[tokio::test]
async fn partial_packet_of_blocked_client_times_out() {
    let broker = start("[connections]\npacket_timeout_ms = 500", None).await;
    let mut stuck = Remote::connect(&broker, FIRST, "stuck", false).await.unwrap();
    assert_eq!(stuck.subscribe(&["t".to_owned()]).await, [ReasonCode::GrantedQoS1]);
    let mut publisher = Remote::connect(&broker, SECOND, "publisher", false).await.unwrap();
    stuck.send_beginning(0x30, [0x80, 0x80, 0x40], b"\0\x01t\0").await;
    for _ in 0..4 {
        publisher.publish("t", vec![0; 512 << 10].into(), QoS::AtMostOnce).await;
    }
    publisher.settle().await;
    wait_until("the end of a client that stands still", || broker.connections() == 1).await;
    wait_until("its memory", || bytes_of(&broker, Kind::Input) == 0).await;
    publisher.settle().await;
}

#[tokio::test]
async fn cached_routes_leave_room_for_subscriptions() {
    let config = format!("[limits]\naddress_bytes_maximum = 262144\n{SMALL_PACKETS}");
    let broker = start(&config, None).await;
    let mut publishers = Vec::new();
    for publisher in 0..60 {
        let mut client = Remote::connect(&broker, FIRST, &format!("publisher-{publisher}"), false).await.unwrap();
        for topic in 0..16 {
            client.publish(&format!("{publisher}/{topic:0>200}"), Bytes::new(), QoS::AtMostOnce).await;
        }
        client.settle().await;
        publishers.push(client);
    }
    assert!(bytes_of(&broker, Kind::Routes) > 0);
    let mut subscriber = Remote::connect(&broker, FIRST, "subscriber", false).await.unwrap();
    let filters = (0..5).map(|number| format!("{number}{}/+", "/a".repeat(100))).collect::<Vec<_>>();
    assert_eq!(subscriber.subscribe(&filters).await, [ReasonCode::GrantedQoS1; 5]);
}

#[tokio::test]
async fn many_sessions_of_one_owner_leave_room_for_others() {
    let config = format!("[limits]\nbytes_maximum = 1048576\naddress_bytes_maximum = 65536\n{SMALL_PACKETS}");
    let broker = start(&config, None).await;
    let mut reasons = HashSet::new();
    for number in 0..1000 {
        reasons.extend(Remote::connect(&broker, FIRST, &format!("{number:0>100}"), true).await.err());
    }
    assert_eq!(reasons, HashSet::from([ReasonCode::QuotaExceeded]), "1,000 sessions do not fit");
    let mut other = Remote::connect(&broker, SECOND, "other", true).await.expect("a place for another address");
    assert_eq!(other.subscribe(&["t".to_owned()]).await, [ReasonCode::GrantedQoS1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn group_backlog_of_one_owner_leaves_room_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!("[limits]\nbytes_maximum = 131072\naddress_bytes_maximum = 32768\n{SMALL_PACKETS}");
    let broker = start(&config, Some(directory.path())).await;
    for (address, name) in [(FIRST, "first"), (SECOND, "second")] {
        let mut member = Remote::connect(&broker, address, name, true).await.unwrap();
        assert_eq!(member.subscribe(&[format!("$share/group/{name}")]).await, [ReasonCode::GrantedQoS1]);
    }
    wait_until("the members' end", || broker.connections() == 0).await;
    let mut publisher = Remote::connect(&broker, IpAddr::from([10, 0, 0, 3]), "publisher", false).await.unwrap();
    let mut waiting = 0;
    while publisher.publish("first", Bytes::new(), QoS::AtLeastOnce).await == ReasonCode::Success {
        waiting += 1;
        assert!(waiting < 20_000, "the group of the first owner has no bound");
    }
    for number in 0..2500 {
        let reason = publisher.publish("second", Bytes::new(), QoS::AtLeastOnce).await;
        assert_eq!(reason, ReasonCode::Success, "message {number} beside {waiting} of the first owner");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn partial_connects_are_charged_to_their_address() {
    let broker = start("[limits]\naddress_bytes_maximum = 16777216", None).await;
    let mut strangers = Vec::new();
    for _ in 0..10 {
        let mut client = Remote::open(&broker, FIRST);
        client.send_beginning(0x10, [0x90, 0xA1, 0x0F], b"\0\x04MQTT\x05\0\0\0").await;
        strangers.push(client);
    }
    wait_until("a charge for each", || bytes_of(&broker, Kind::Input) > 10 * 250_000).await;
    assert_eq!(
        broker.parts.shared.storage.memory.account(Owner::Address(FIRST)).bytes(),
        bytes_of(&broker, Kind::Input)
    );
    drop(strangers);
    wait_until("their end", || bytes_of(&broker, Kind::Input) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_session_is_charged_to_its_address() {
    let directory = tempfile::tempdir().unwrap();
    let broker = start("", Some(directory.path())).await;
    let mut client = Remote::connect(&broker, FIRST, "client", true).await.unwrap();
    assert_eq!(client.subscribe(&["t".to_owned()]).await, [ReasonCode::GrantedQoS1]);
    drop(client);
    wait_until("its end", || broker.connections() == 0).await;
    let before = broker.parts.shared.storage.memory.account(Owner::Address(FIRST)).bytes();
    broker.shutdown().await;
    let broker = start("", Some(directory.path())).await;
    assert_eq!(broker.sessions(), 1);
    let memory = &broker.parts.shared.storage.memory;
    assert_eq!(memory.account(Owner::Address(FIRST)).bytes(), before);
    assert_eq!(memory.account(Owner::Restored).bytes(), 0);
    broker.shutdown().await;
}
