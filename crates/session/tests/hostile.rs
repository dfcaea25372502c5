//! Tests of a server's connection with a hostile peer: valid packets in any order, and any bytes through the decoder.
//!
//! Each input must yield an event or a violation, each written packet must be valid, and the session must stay bounded.
//! Runs 1,500 cases of up to 150 packets and 1,500 of damaged bytes.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tenbin_codec::{
    Ack, Auth, Connect, Decoded, Decoder, Disconnect, Packet, PacketId, PacketType, PingReq, ProtocolVersion, Publish,
    PublishTemplate, QoS, ReasonCode, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, TopicName,
    Unsubscribe, WriteBuffer,
};
use tenbin_session::{Connection, Delivery, Event, Limits, PendingAck, Role, Session};

const VERSION: ProtocolVersion = ProtocolVersion::V5;

#[derive(Debug, Clone)]
enum Operation {
    Take(Packet),
    /// The server publishes to the peer.
    Send(QoS),
    /// The server acknowledges the oldest message.
    Acknowledge(ReasonCode),
    Wait(u16),
    /// The connection is cut. The next one has these Receive Maximums: the server's, the peer's.
    Reconnect(u16, u16),
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

/// Few identifiers, so that they collide; sometimes any.
fn packet_id() -> impl Strategy<Value = PacketId> {
    prop_oneof![9 => 1u16..8, 1 => 1u16..].prop_map(|id| PacketId::new(id).unwrap())
}

fn reason(packet: PacketType) -> impl Strategy<Value = ReasonCode> {
    let others = ReasonCode::ALL.into_iter().filter(|reason| reason.is_valid_in(packet)).collect::<Vec<_>>();
    prop_oneof![3 => Just(ReasonCode::Success), 1 => prop::sample::select(others)]
}

fn ack(packet: PacketType) -> impl Strategy<Value = Ack> {
    (packet_id(), reason(packet)).prop_map(|(id, reason)| Ack::new(id, reason))
}

fn publish() -> impl Strategy<Value = Publish> {
    let alias = prop_oneof![4 => Just(0u16), 3 => 1u16..4, 1 => any::<u16>()];
    (qos(), packet_id(), any::<[bool; 2]>(), "[abc]{0,1}", alias, prop::bool::weighted(0.02)).prop_map(
        |(qos, id, [dup, retain], topic, alias, is_identified)| {
            let alias = NonZeroU16::new(alias);
            let topic = match TopicName::try_from(&topic[..]) {
                Err(_) if alias.is_some() => TopicName::ALIASED,
                topic => topic.unwrap_or_else(|_| TopicName::try_from("d").unwrap()),
            };
            Publish {
                dup: dup && qos.is_acknowledged(),
                qos,
                retain,
                packet_id: qos.is_acknowledged().then_some(id),
                topic_alias: alias,
                subscription_identifiers: if is_identified { vec![1] } else { Vec::new() },
                ..Publish::new(topic, Bytes::from_static(b"payload"))
            }
        },
    )
}

/// Packets that a client may send after CONNECT, and a second CONNECT.
fn packet() -> impl Strategy<Value = Packet> {
    let filter = || TopicFilter::try_from("a/#").unwrap();
    let subscription = move || Subscription { filter: filter(), options: SubscriptionOptions::at(QoS::ExactlyOnce) };
    prop_oneof![
        40 => publish().prop_map(Packet::Publish),
        10 => ack(PacketType::PubAck).prop_map(Packet::PubAck),
        10 => ack(PacketType::PubRec).prop_map(Packet::PubRec),
        20 => ack(PacketType::PubRel).prop_map(Packet::PubRel),
        10 => ack(PacketType::PubComp).prop_map(Packet::PubComp),
        2 => packet_id().prop_map(move |packet_id| Packet::Subscribe(Subscribe {
            packet_id,
            subscription_identifier: None,
            user_properties: Vec::new(),
            subscriptions: vec![subscription()],
        })),
        2 => packet_id().prop_map(move |packet_id| {
            Packet::Unsubscribe(Unsubscribe { packet_id, user_properties: Vec::new(), filters: vec![filter()] })
        }),
        2 => Just(Packet::PingReq(PingReq::PLAIN)),
        1 => reason(PacketType::Disconnect).prop_map(|reason| Packet::Disconnect(Disconnect::new(reason))),
        1 => reason(PacketType::Auth)
            .prop_map(|reason| Packet::Auth(Box::new(Auth { reason, properties: Default::default() }))),
        1 => Just(Packet::Connect(Box::new(Connect::new(VERSION, Text::EMPTY)))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        20 => packet().prop_map(Operation::Take),
        6 => qos().prop_map(Operation::Send),
        6 => reason(PacketType::PubRec).prop_map(Operation::Acknowledge),
        1 => (0u16..2000).prop_map(Operation::Wait),
        1 => (1u16..6, 1u16..6).prop_map(|(ours, theirs)| Operation::Reconnect(ours, theirs)),
    ]
}

/// The server's side, and the bounds of its session.
struct Server {
    connection: Connection,
    now: Instant,
    out: WriteBuffer,
    pending: Vec<PendingAck>,
    /// Highest Receive Maximums so far: the server's, the peer's.
    highest: [u16; 2],
    connections: usize,
}

impl Server {
    fn new(ours: u16, theirs: u16) -> Self {
        let (now, highest) = (epoch(), [ours, theirs]);
        let connection = Connection::new(Role::Server, VERSION, limits(ours, theirs), Session::new(), now);
        Self { connection, now, out: WriteBuffer::new(), pending: Vec::new(), highest, connections: 1 }
    }

    fn reconnect(self, ours: u16, theirs: u16) -> Self {
        let session = self.connection.into_session();
        let mut connection = Connection::new(Role::Server, VERSION, limits(ours, theirs), session, self.now);
        let mut out = WriteBuffer::new();
        connection.resume(self.now, &mut out);
        let highest = [self.highest[0].max(ours), self.highest[1].max(theirs)];
        Self { connection, now: self.now, out, pending: Vec::new(), highest, connections: self.connections + 1 }
    }

    /// Handles a packet; `false` if the connection is over.
    fn take(&mut self, packet: Packet) -> bool {
        match self.connection.handle_packet(packet, self.now, &mut self.out) {
            Ok(Event::Publish(publication)) => self.pending.extend(publication.ack),
            Ok(Event::Duplicate(ack)) => self.pending.push(ack),
            Ok(Event::Disconnect(_)) => return false,
            Ok(_) => {}
            Err(violation) => {
                self.connection.disconnect(violation.reason(), &mut self.out);
                return false;
            }
        }
        true
    }

    fn check(&mut self) {
        let mut decoder = Decoder::client(VERSION, u32::MAX);
        let mut input = BytesMut::from(&self.out.to_bytes()[..]);
        self.out.clear();
        while let Decoded::Packet(_) = decoder.decode(&mut input).expect("legal packets are written") {}
        assert!(input.is_empty(), "half a packet was written");

        let session = self.connection.session();
        let [ours, theirs] = self.highest.map(usize::from);
        // Resumption may leave more messages than one connection allows; see `Connection`.
        let allowed = if self.connections == 1 { ours } else { 2 * ours };
        assert!(session.awaiting_release() <= allowed, "{} of {allowed}", session.awaiting_release());
        assert!(session.in_flight() <= theirs, "{} of {theirs}", session.in_flight());
        assert!(self.connection.send_quota() <= self.connection.limits().peer_receive_maximum);
    }
}

fn limits(receive_maximum: u16, peer_receive_maximum: u16) -> Limits {
    Limits {
        receive_maximum,
        peer_receive_maximum,
        topic_alias_maximum: 3,
        peer_topic_alias_maximum: 1,
        keep_alive: Duration::from_secs(10),
        ..Limits::default()
    }
}

fn delivery(qos: QoS) -> Delivery {
    let topic = TopicName::try_from("topic").unwrap();
    let template = PublishTemplate::new(&topic, None, &Bytes::from_static(b"payload"), &mut BytesMut::new());
    Delivery::new(template, qos, false)
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let mut out = WriteBuffer::new();
    packets.iter().for_each(|packet| packet.encode(VERSION, &mut out));
    out.to_bytes().to_vec()
}

#[allow(clippy::disallowed_methods, reason = "there is no other way to an Instant; nothing waits for it")]
fn epoch() -> Instant {
    Instant::now()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn legal_packets_in_any_order_end_in_events_or_a_violation(
        first in (1u16..6, 1u16..6),
        operations in prop::collection::vec(operation(), 1..150),
    ) {
        let mut server = Server::new(first.0, first.1);
        for operation in operations {
            let goes_on = match operation {
                Operation::Take(packet) => server.take(packet),
                Operation::Send(qos) => {
                    server.connection.send(delivery(qos), server.now, &mut server.out);
                    true
                }
                Operation::Acknowledge(reason) => {
                    if !server.pending.is_empty() {
                        let ack = server.pending.remove(0);
                        server.connection.acknowledge(ack, reason, server.now, &mut server.out);
                    }
                    true
                }
                Operation::Wait(milliseconds) => {
                    server.now += Duration::from_millis(u64::from(milliseconds));
                    server.connection.handle_timeout(server.now, &mut server.out).is_ok()
                }
                Operation::Reconnect(ours, theirs) => {
                    server = server.reconnect(ours, theirs);
                    true
                }
            };
            server.check();
            if !goes_on {
                let Limits { receive_maximum, peer_receive_maximum, .. } = *server.connection.limits();
                server = server.reconnect(receive_maximum, peer_receive_maximum);
                server.check();
            }
        }
    }

    #[test]
    fn damaged_bytes_end_in_events_or_a_violation(
        packets in prop::collection::vec(packet(), 1..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        surplus in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = encode(&packets);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.extend(surplus);
        let mut decoder = Decoder::server(100_000);
        let mut input = BytesMut::from(&encode(&[Packet::Connect(Box::new(Connect::new(VERSION, Text::EMPTY)))])[..]);
        prop_assert!(matches!(decoder.decode(&mut input), Ok(Decoded::Packet(Packet::Connect(_)))));
        input.extend_from_slice(&bytes);

        let mut server = Server::new(3, 3);
        (0..3).for_each(|n| {
            let qos = if n == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            server.connection.send(delivery(qos), server.now, &mut server.out);
        });
        loop {
            match decoder.decode(&mut input) {
                Ok(Decoded::Packet(packet)) => {
                    if !server.take(packet) {
                        break;
                    }
                    server.check();
                }
                Ok(Decoded::NeedMore(_)) => break,
                Err(error) => {
                    let violation = tenbin_session::Violation::from(error);
                    server.connection.disconnect(violation.reason(), &mut server.out);
                    break;
                }
            }
        }
        server.check();
    }
}
