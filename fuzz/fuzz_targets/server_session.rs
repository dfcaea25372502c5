//! Runs a client that breaks every rule against a server's connection: packets in any order and any bytes through the
//! decoder, with the server's own messages in between, connection after connection in one session.
//!
//! Every input gives an event or a violation, the output is legal, and the session stays within the
//! Receive Maximums. The same checks as `tests/hostile.rs` of the session crate.
#![no_main]

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tenbin_codec::{
    Ack, Auth, Connect, Decoded, Decoder, Disconnect, Packet, PacketId, PacketType, PingReq, ProtocolVersion, Publish,
    PublishTemplate, QoS, ReasonCode, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, TopicName,
    Unsubscribe, WriteBuffer,
};
use tenbin_session::{Connection, Delivery, Event, Limits, PendingAck, Role, Session, Violation};

fuzz_target!(|input: Input| {
    let version = if input.is_v5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
    let mut server = Server::new(version, input.terms, Session::new(), epoch(), Bounds::default());
    for operation in input.operations.into_iter().take(OPERATIONS_MAX) {
        let goes_on = match operation {
            Operation::Bytes(bytes) => server.receive(bytes),
            Operation::Packet(said) => server.receive(&said.encode(version)),
            Operation::Damaged { packet, place, byte } => {
                let mut bytes = packet.encode(version);
                let place = usize::from(place) % bytes.len();
                bytes[place] = byte;
                server.receive(&bytes)
            }
            Operation::Send { qos, bytes, expiry } => {
                server.send(qos.into(), usize::from(bytes), expiry);
                true
            }
            Operation::Acknowledge(reason) => {
                server.acknowledge(reason);
                true
            }
            Operation::Wait(milliseconds) => {
                server.now += Duration::from_millis(u64::from(milliseconds));
                server.connection.handle_timeout(server.now, &mut server.out).is_ok()
            }
            Operation::Reconnect { terms, withdraw } => {
                server = server.reconnect(terms, withdraw);
                true
            }
        };
        server.check();
        if !goes_on {
            let terms = server.terms;
            server = server.reconnect(terms, false);
            server.check();
        }
    }
});

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    is_v5: bool,
    terms: Terms,
    operations: Vec<Operation<'a>>,
}

/// Negotiated limits of a connection; small numbers, so that runs reach the bounds.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Terms {
    receive_maximum: u8,
    peer_receive_maximum: u8,
    peer_maximum_packet_size: Option<u8>,
    topic_aliases: u8,
    peer_topic_aliases: u8,
}

#[derive(Debug, Arbitrary)]
enum Operation<'a> {
    Bytes(&'a [u8]),
    Packet(Said),
    Damaged {
        packet: Said,
        place: u8,
        byte: u8,
    },
    /// The server publishes to the client.
    Send {
        qos: Level,
        bytes: u8,
        expiry: Option<u8>,
    },
    /// The server answers the oldest message.
    Acknowledge(u8),
    Wait(u16),
    /// The connection is cut; QoS 1 messages may be taken back before the next one.
    Reconnect {
        terms: Terms,
        withdraw: bool,
    },
}

/// A legal packet.
#[derive(Debug, Arbitrary)]
enum Said {
    Publish { qos: Level, dup: bool, retain: bool, id: u8, topic: u8, alias: u8, identified: bool, bytes: u8 },
    PubAck { id: u8, reason: u8 },
    PubRec { id: u8, reason: u8 },
    PubRel { id: u8, reason: u8 },
    PubComp { id: u8, reason: u8 },
    Subscribe { id: u8 },
    Unsubscribe { id: u8 },
    PingReq,
    Disconnect { reason: u8 },
    Auth { reason: u8 },
    Connect,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Level {
    Zero,
    One,
    Two,
}

impl From<Level> for QoS {
    fn from(level: Level) -> Self {
        match level {
            Level::Zero => Self::AtMostOnce,
            Level::One => Self::AtLeastOnce,
            Level::Two => Self::ExactlyOnce,
        }
    }
}

impl Said {
    fn encode(&self, version: ProtocolVersion) -> Vec<u8> {
        let mut out = WriteBuffer::new();
        self.packet(version).encode(version, &mut out);
        out.to_bytes().to_vec()
    }

    fn packet(&self, version: ProtocolVersion) -> Packet {
        let ack = |id, reason, packet| Ack::new(packet_id(id), reason_of(reason, packet));
        let filter = || TopicFilter::try_from("a/#").expect("a filter");
        match *self {
            Self::Publish { qos, dup, retain, id, topic, alias, identified, bytes } => {
                let qos = QoS::from(qos);
                let alias = NonZeroU16::new(alias.into()).filter(|_| version.is_v5());
                let topic = match topic % 4 {
                    0 if alias.is_some() => TopicName::ALIASED,
                    number => TopicName::try_from(["a", "b/c", "$d", "e"][usize::from(number)]).expect("a topic"),
                };
                Packet::Publish(Publish {
                    dup: dup && qos.is_acknowledged(),
                    qos,
                    retain,
                    packet_id: qos.is_acknowledged().then(|| packet_id(id)),
                    topic_alias: alias,
                    subscription_identifiers: if identified && version.is_v5() { vec![1] } else { Vec::new() },
                    ..Publish::new(topic, payload(bytes.into()))
                })
            }
            Self::PubAck { id, reason } => Packet::PubAck(ack(id, reason, PacketType::PubAck)),
            Self::PubRec { id, reason } => Packet::PubRec(ack(id, reason, PacketType::PubRec)),
            Self::PubRel { id, reason } => Packet::PubRel(ack(id, reason, PacketType::PubRel)),
            Self::PubComp { id, reason } => Packet::PubComp(ack(id, reason, PacketType::PubComp)),
            Self::Subscribe { id } => {
                let options = SubscriptionOptions::at(QoS::ExactlyOnce);
                let subscriptions = vec![Subscription { filter: filter(), options }];
                let (packet_id, user_properties) = (packet_id(id), Vec::new());
                Packet::Subscribe(Subscribe {
                    packet_id,
                    subscription_identifier: None,
                    user_properties,
                    subscriptions,
                })
            }
            Self::Unsubscribe { id } => Packet::Unsubscribe(Unsubscribe {
                packet_id: packet_id(id),
                user_properties: Vec::new(),
                filters: vec![filter()],
            }),
            Self::Disconnect { reason } => {
                Packet::Disconnect(Disconnect::new(reason_of(reason, PacketType::Disconnect)))
            }
            Self::Auth { reason } if version.is_v5() => {
                let reason = reason_of(reason, PacketType::Auth);
                Packet::Auth(Box::new(Auth { reason, properties: Default::default() }))
            }
            Self::PingReq | Self::Auth { .. } => Packet::PingReq(PingReq::PLAIN),
            Self::Connect => Packet::Connect(Box::new(Connect::new(version, Text::from_static("c")))),
        }
    }
}

/// The server's side.
struct Server {
    version: ProtocolVersion,
    terms: Terms,
    decoder: Decoder,
    input: BytesMut,
    connection: Connection,
    now: Instant,
    out: WriteBuffer,
    pending: Vec<PendingAck>,
    bounds: Bounds,
}

/// Bounds that the session has to respect.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    receive_maximum: u16,
    peer_receive_maximum: u16,
    connections: usize,
}

impl Server {
    fn new(version: ProtocolVersion, terms: Terms, session: Session, now: Instant, bounds: Bounds) -> Self {
        let limits = limits(terms);
        let mut decoder = Decoder::server(100_000);
        let mut out = WriteBuffer::new();
        Packet::Connect(Box::new(Connect::new(version, Text::from_static("c")))).encode(version, &mut out);
        let mut input = BytesMut::from(&out.to_bytes()[..]);
        assert!(matches!(decoder.decode(&mut input), Ok(Decoded::Packet(Packet::Connect(_)))));
        out.clear();
        let mut connection = Connection::new(Role::Server, version, limits, session, now);
        connection.resume(now, &mut out);
        while connection.poll_dropped().is_some() {}
        let bounds = Bounds {
            receive_maximum: bounds.receive_maximum.max(limits.receive_maximum),
            peer_receive_maximum: bounds.peer_receive_maximum.max(limits.peer_receive_maximum),
            connections: bounds.connections + 1,
        };
        Self { version, terms, decoder, input, connection, now, out, pending: Vec::new(), bounds }
    }

    fn reconnect(self, terms: Terms, withdraw: bool) -> Self {
        let mut session = self.connection.into_session();
        if withdraw {
            let before = session.in_flight();
            // They do not come back, so that their numbers mean nothing.
            let withdrawn = session.withdraw(|delivery| delivery.share.is_none(), |_| 1);
            assert!(withdrawn.iter().all(|delivery| delivery.qos == QoS::AtLeastOnce), "QoS 2 stays [MQTT-4.8.2-4]");
            assert_eq!(session.in_flight() + withdrawn.len(), before);
            session.detach();
        }
        Self::new(self.version, terms, session, self.now, self.bounds)
    }

    /// Handles received bytes; returns `false` when the connection is over.
    fn receive(&mut self, bytes: &[u8]) -> bool {
        self.input.extend_from_slice(bytes);
        loop {
            match self.decoder.decode(&mut self.input) {
                Ok(Decoded::Packet(packet)) => {
                    if !self.take(packet) {
                        return false;
                    }
                }
                Ok(Decoded::NeedMore(_)) => return true,
                Err(error) => {
                    self.connection.disconnect(Violation::from(error).reason(), &mut self.out);
                    return false;
                }
            }
        }
    }

    fn take(&mut self, packet: Packet) -> bool {
        match self.connection.handle_packet(packet, self.now, &mut self.out) {
            Ok(Event::Publish(publication)) => {
                assert!(!publication.topic.is_empty(), "aliases are resolved");
                self.pending.extend(publication.ack);
            }
            Ok(Event::Duplicate(ack)) => self.pending.push(ack),
            Ok(Event::Disconnect(_)) => return false,
            Ok(_) => while self.connection.poll_dropped().is_some() {},
            Err(violation) => {
                self.connection.disconnect(violation.reason(), &mut self.out);
                return false;
            }
        }
        true
    }

    fn send(&mut self, qos: QoS, bytes: usize, expiry: Option<u8>) {
        let topic = TopicName::try_from("topic").expect("a topic");
        let template = PublishTemplate::new(&topic, None, &payload(bytes), &mut BytesMut::new());
        let expires_at = expiry.map(|seconds| self.now + Duration::from_secs(seconds.into()));
        let delivery = Delivery { expires_at, ..Delivery::new(template, qos, false) };
        self.connection.send(delivery, self.now, &mut self.out);
    }

    fn acknowledge(&mut self, reason: u8) {
        if !self.pending.is_empty() {
            let ack = self.pending.remove(0);
            let reason = reason_of(reason, PacketType::PubAck);
            self.connection.acknowledge(ack, reason, self.now, &mut self.out);
        }
    }

    fn check(&mut self) {
        let mut decoder = Decoder::client(self.version, self.connection.limits().peer_maximum_packet_size);
        let mut input = BytesMut::from(&self.out.to_bytes()[..]);
        self.out.clear();
        while let Decoded::Packet(packet) = decoder.decode(&mut input).expect("legal packets are written") {
            assert!(!matches!(&packet, Packet::Publish(publish) if publish.dup && !publish.qos.is_acknowledged()));
        }
        assert!(input.is_empty(), "half a packet was written");

        let (session, bounds) = (self.connection.session(), self.bounds);
        // Resumption may leave more than one connection allows; see `Connection`.
        let allowed = usize::from(bounds.receive_maximum) * bounds.connections.min(2);
        assert!(session.awaiting_release() <= allowed, "{} of {allowed} to be released", session.awaiting_release());
        let allowed = usize::from(bounds.peer_receive_maximum);
        assert!(session.in_flight() <= allowed, "{} of {allowed} in flight", session.in_flight());
        assert!(self.connection.send_quota() <= self.connection.limits().peer_receive_maximum);
        assert!(session.in_flight() > 0 || session.in_flight_bytes() == 0, "bytes of nothing");
    }
}

fn limits(terms: Terms) -> Limits {
    Limits {
        receive_maximum: u16::from(terms.receive_maximum % 8) + 1,
        peer_receive_maximum: u16::from(terms.peer_receive_maximum % 8) + 1,
        // Room for every packet but PUBLISH, the only one that may be held back.
        peer_maximum_packet_size: terms.peer_maximum_packet_size.map_or(u32::MAX, |bytes| u32::from(bytes) + 10),
        topic_alias_maximum: u16::from(terms.topic_aliases % 4),
        peer_topic_alias_maximum: u16::from(terms.peer_topic_aliases % 4),
        keep_alive: Duration::from_secs(10),
        ..Limits::default()
    }
}

/// A Packet Identifier, mostly one that the session knows.
fn packet_id(byte: u8) -> PacketId {
    let id = if byte < 224 { u16::from(byte % 16) + 1 } else { u16::MAX - u16::from(byte - 224) };
    PacketId::new(id).expect("not 0")
}

fn reason_of(byte: u8, packet: PacketType) -> ReasonCode {
    let reasons = ReasonCode::ALL.into_iter().filter(|reason| reason.is_valid_in(packet)).collect::<Vec<_>>();
    let success = reasons.contains(&ReasonCode::Success) && byte < 128;
    if success { ReasonCode::Success } else { reasons[usize::from(byte) % reasons.len()] }
}

fn payload(bytes: usize) -> Bytes {
    Bytes::from_static(&[b'x'; 256]).slice(..bytes)
}

fn epoch() -> Instant {
    Instant::now()
}

/// Maximum number of operations of one run; longer runs find no further faults.
const OPERATIONS_MAX: usize = 300;
