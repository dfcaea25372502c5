//! Tests of one side of a connection with hand-made packets of the peer.
//!
//! The real decoder reads its output back. None of the tests waits.

mod aliases;
mod expiry;
mod flow_control;
mod keep_alive;
mod packet_size;
mod plain;
mod receiving;
mod resumption;
mod roles;
mod sending;
mod shared;
mod stored;

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    Ack, Connect, Decoded, Decoder, Packet, PacketId, ProtocolVersion, Publish, PublishTemplate, QoS, ReasonCode, Text,
    TopicName, WriteBuffer,
};

use super::*;

const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// One side, its clock and its output.
struct Side {
    connection: Connection,
    now: Instant,
    out: WriteBuffer,
}

impl Side {
    fn server(limits: Limits) -> Self {
        Self::new(Role::Server, ProtocolVersion::V5, limits, Session::new(), epoch())
    }

    fn client(limits: Limits) -> Self {
        Self::new(Role::Client, ProtocolVersion::V5, limits, Session::new(), epoch())
    }

    fn new(role: Role, version: ProtocolVersion, limits: Limits, session: Session, now: Instant) -> Self {
        Self { connection: Connection::new(role, version, limits, session, now), now, out: WriteBuffer::new() }
    }

    /// Returns the next connection of the same session, resumed.
    fn reconnect(self, limits: Limits) -> Self {
        self.reconnect_holding(limits, |_| false)
    }

    /// As [`Side::reconnect`], without the messages that are held back.
    fn reconnect_holding(self, limits: Limits, is_held: impl Fn(&Delivery) -> bool) -> Self {
        let (role, version) = (self.connection.role, self.connection.version);
        let mut next = Self::new(role, version, limits, self.connection.into_session(), self.now);
        next.connection.resume_but(is_held, next.now, &mut next.out);
        next
    }

    fn take(&mut self, packet: Packet) -> Result<Event, Violation> {
        self.connection.handle_packet(packet, self.now, &mut self.out)
    }

    /// Handles a packet that yields no event for the application.
    fn handle(&mut self, packet: Packet) {
        let event = self.take(packet);
        assert!(matches!(event, Ok(Event::Handled)), "{event:?}");
    }

    fn acknowledge(&mut self, id: u16, qos: QoS, reason: ReasonCode) {
        let ack = PendingAck { packet_id: packet_id(id), qos };
        self.connection.acknowledge(ack, reason, self.now, &mut self.out);
    }

    fn send(&mut self, delivery: Delivery) -> Sent {
        self.connection.send(delivery, self.now, &mut self.out)
    }

    /// Sends a message that must be written. Returns its Packet Identifier.
    fn sent(&mut self, qos: QoS) -> Option<u16> {
        match self.send(delivery("topic", qos)) {
            Sent::Written(id) => id.map(PacketId::get),
            other => panic!("{other:?}"),
        }
    }

    fn is_blocked(&mut self, qos: QoS) -> bool {
        matches!(self.send(delivery("topic", qos)), Sent::Blocked(_))
    }

    fn handle_timeout(&mut self) -> Result<(), Violation> {
        self.connection.handle_timeout(self.now, &mut self.out)
    }

    /// Returns the packets written since the last call.
    fn written(&mut self) -> Vec<Packet> {
        let mut input = BytesMut::from(&self.out.to_bytes()[..]);
        self.out.clear();
        let mut decoder = match self.connection.role {
            Role::Server => Decoder::client(self.connection.version, u32::MAX),
            Role::Client => server_decoder(self.connection.version),
        };
        let mut packets = Vec::new();
        while let Decoded::Packet(packet) = decoder.decode(&mut input).unwrap() {
            packets.push(packet);
        }
        assert!(input.is_empty(), "half a packet was written");
        packets
    }

    /// Returns the only packet written since the last call.
    fn answer(&mut self) -> Packet {
        let mut written = self.written();
        assert_eq!(written.len(), 1, "{written:?}");
        written.remove(0)
    }

    /// Returns identifier and DUP of the PUBLISHes written since the last call.
    fn published(&mut self) -> Vec<(u16, bool)> {
        let publishes = self.written().into_iter().filter_map(|packet| match packet {
            Packet::Publish(publish) => publish.packet_id.map(|id| (id.get(), publish.dup)),
            _ => None,
        });
        publishes.collect()
    }
}

/// A server's decoder after CONNECT.
fn server_decoder(version: ProtocolVersion) -> Decoder {
    let mut connect = WriteBuffer::new();
    Packet::Connect(Box::new(Connect::new(version, Text::EMPTY))).encode(version, &mut connect);
    let mut decoder = Decoder::server(u32::MAX);
    decoder.decode(&mut BytesMut::from(&connect.to_bytes()[..])).unwrap();
    decoder
}

#[allow(clippy::disallowed_methods, reason = "there is no other way to an Instant; nothing waits for it")]
fn epoch() -> Instant {
    Instant::now()
}

fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).unwrap()
}

fn topic(name: &str) -> TopicName {
    TopicName::try_from(name).unwrap()
}

fn delivery(topic_name: &str, qos: QoS) -> Delivery {
    let template =
        PublishTemplate::new(&topic(topic_name), None, &Bytes::from_static(b"payload"), &mut BytesMut::new());
    Delivery::new(template, qos, false)
}

/// A PUBLISH of the peer; `id` is ignored at QoS 0.
fn publish(id: u16, qos: QoS) -> Publish {
    let packet_id = qos.is_acknowledged().then(|| packet_id(id));
    Publish { qos, packet_id, ..Publish::new(topic("topic"), Bytes::from_static(b"payload")) }
}

fn puback(id: u16) -> Packet {
    Packet::PubAck(Ack::new(packet_id(id), ReasonCode::Success))
}

fn pubrec(id: u16) -> Packet {
    Packet::PubRec(Ack::new(packet_id(id), ReasonCode::Success))
}

fn pubrel(id: u16) -> Packet {
    Packet::PubRel(Ack::new(packet_id(id), ReasonCode::Success))
}

fn pubcomp(id: u16) -> Packet {
    Packet::PubComp(Ack::new(packet_id(id), ReasonCode::Success))
}

/// Returns an acknowledgement's code, and checks that it is for `id`.
fn refusal(id: u16, reason: ReasonCode) -> Ack {
    Ack::new(packet_id(id), reason)
}

#[track_caller]
fn assert_delivered(event: Result<Event, Violation>, id: u16, expected: ReasonCode) {
    match event {
        Ok(Event::Delivered { packet_id, reason, .. }) => assert_eq!((packet_id.get(), reason), (id, expected)),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_new(event: Result<Event, Violation>) -> crate::Publication {
    match event {
        Ok(Event::Publish(publication)) => publication,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_violation(event: Result<Event, Violation>, expected: Violation, code: u8) {
    assert_eq!(event.expect_err("a violation"), expected);
    assert_eq!(expected.reason().byte(), code);
}
