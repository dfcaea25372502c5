//! A client at the gateway: datagrams, packets of the broker and time, in any order.
//!
//! ```text
//!   settings | steps: kind, one or two numbers, and their meaning
//! ```
//!
//! Every packet to the broker and every datagram to the client is legal. A client whose address is not proven gets at
//! most three times its bytes, and no messages. A sleeping client gets no message. Waiting messages stay within their bounds. A deadline that was handled
//! does not stay. An ended peer is silent.
#![no_main]

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tenbin_codec::{
    Ack, ConnAck, Decoded, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, SubAck, TopicName, UnsubAck,
    WriteBuffer,
};
use tenbin_sn::{Action, Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings};
use tenbin_sn_codec::v1_2::Message;

#[derive(Debug, Arbitrary)]
enum Step<'a> {
    /// A datagram of the client: message type and body.
    Client(u8, &'a [u8]),
    Publish {
        topic: u8,
        qos: u8,
        id: u16,
        size: u16,
    },
    Ack {
        kind: u8,
        id: u16,
        is_refusal: bool,
    },
    ConnAck {
        session_present: bool,
        is_refusal: bool,
    },
    PingResp,
    Pass {
        milliseconds: u32,
    },
    Open,
    Closed,
    Rebind,
    Probe,
}

#[derive(Debug, Arbitrary)]
struct Start {
    will: bool,
    clean_session: bool,
    duration: u16,
    in_flight: u8,
    awake_messages: u8,
    qos_minus_one: bool,
    trusts_addresses: bool,
}

const TOPICS: [&str; 6] = ["a/b", "xy", "pre/defined", "of/c", "a/c", "long/topic/name"];
const SLEEP_MESSAGES: usize = 8;
const SLEEP_BYTES: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let _ = run(&mut Unstructured::new(data));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let start = Start::arbitrary(input)?;
    let settings = Settings {
        in_flight: NonZeroU16::new(u16::from(start.in_flight % 4) + 1).expect("1 to 4"),
        awake_messages: NonZeroU16::new(u16::from(start.awake_messages % 4)),
        qos_minus_one: start.qos_minus_one,
        trusts_addresses: start.trusts_addresses,
        topics_maximum: 4,
        sleep_messages: SLEEP_MESSAGES,
        sleep_bytes: SLEEP_BYTES,
        ..Settings::default()
    };
    let topics = PredefinedTopics::new([(1, "pre/defined"), (2, "of/%c")]).expect("legal");
    let gateway = Arc::new(Gateway::new(settings, topics));
    let flags = u8::from(start.will) << 3 | u8::from(start.clean_session) << 2;
    let [high, low] = start.duration.to_be_bytes();
    let connect = [7, 0x04, flags, 1, high, low, b'c'];

    let mut world = World {
        now: Instant::now(),
        upstream: WriteBuffer::new(),
        output: Output::default(),
        decoder: Decoder::server(1 << 20),
        bytes: BytesMut::new(),
        received: connect.len(),
        sent: 0,
        action: Action::Continue,
        wants_open: false,
    };
    let Ok(Message::Connect(message)) = Message::decode(&connect) else { panic!("it is a CONNECT") };
    let mut io = Io { now: world.now, upstream: &mut world.upstream, output: &mut world.output };
    let (mut peer, action) = GatewayPeer::accept(&gateway, &message, connect.len(), None, &mut io);
    world.action = action;
    world.check(&peer, false);
    while !input.is_empty() && !matches!(world.action, Action::End(_)) {
        let step = Step::arbitrary(input)?;
        world.step(&mut peer, step);
    }
    if matches!(world.action, Action::End(_)) {
        assert_eq!(peer.poll_timeout(), None);
        world.call(&mut peer, true, |peer, io| peer.handle_message(&Message::PingResp, 2, io));
        world.call(&mut peer, true, |peer, io| peer.handle_packet(Packet::PingResp, io));
        world.call(&mut peer, true, |peer, io| peer.handle_timeout(io));
        assert_eq!(world.action, Action::Continue);
    }
    Ok(())
}

struct World {
    now: Instant,
    upstream: WriteBuffer,
    output: Output,
    decoder: Decoder,
    bytes: BytesMut,
    /// Bytes of the client, and bytes to it.
    received: usize,
    sent: usize,
    action: Action,
    /// The peer asked for a stream to the broker.
    wants_open: bool,
}

impl World {
    fn step(&mut self, peer: &mut GatewayPeer, step: Step<'_>) {
        let is_asleep = peer.is_asleep();
        match step {
            Step::Client(kind, body) => {
                let body = &body[..body.len().min(200)];
                let datagram = [&[body.len() as u8 + 2, kind % 0x20][..], body].concat();
                if let Ok(message) = Message::decode(&datagram) {
                    self.received += datagram.len();
                    self.call(peer, false, |peer, io| peer.handle_message(&message, datagram.len(), io));
                }
            }
            Step::Publish { topic, qos, id, size } if peer.accepts_packets() => {
                let topic = TopicName::try_from(TOPICS[usize::from(topic) % TOPICS.len()]).expect("a name");
                let mut publish = Publish::new(topic, Bytes::from(vec![7; usize::from(size % 1500)]));
                publish.qos = QoS::from_bits(qos % 3).expect("0 to 2");
                publish.packet_id = PacketId::new(id.max(1)).filter(|_| publish.qos.is_acknowledged());
                // A message of the broker is nothing for a client that does not listen.
                let is_silent = is_asleep && !peer.is_awake();
                self.call(peer, is_silent, |peer, io| peer.handle_packet(Packet::Publish(publish), io));
            }
            Step::Ack { kind, id, is_refusal } => {
                let id = PacketId::new(id.max(1)).expect("not 0");
                let reason = if is_refusal { ReasonCode::NotAuthorized } else { ReasonCode::Success };
                let ack = Ack::new(id, reason);
                let packet = match kind % 6 {
                    0 => Packet::PubAck(ack),
                    1 => Packet::PubRec(ack),
                    2 => Packet::PubRel(Ack::new(id, ReasonCode::Success)),
                    3 => Packet::PubComp(Ack::new(id, ReasonCode::Success)),
                    4 => {
                        Packet::SubAck(SubAck { packet_id: id, properties: Default::default(), reasons: vec![reason] })
                    }
                    _ => Packet::UnsubAck(UnsubAck {
                        packet_id: id,
                        properties: Default::default(),
                        reasons: vec![reason],
                    }),
                };
                self.call(peer, false, |peer, io| peer.handle_packet(packet, io));
            }
            Step::ConnAck { session_present, is_refusal } => {
                let reason = if is_refusal { ReasonCode::ServerBusy } else { ReasonCode::Success };
                let connack = Packet::ConnAck(Box::new(ConnAck::new(session_present, reason)));
                self.call(peer, false, |peer, io| peer.handle_packet(connack, io));
            }
            Step::PingResp => self.call(peer, false, |peer, io| peer.handle_packet(Packet::PingResp, io)),
            Step::Pass { milliseconds } => {
                let end = self.now + Duration::from_millis(u64::from(milliseconds % 200_000));
                while let Some(deadline) = peer.poll_timeout().filter(|&deadline| deadline <= end) {
                    self.now = self.now.max(deadline);
                    let is_silent = peer.is_asleep() && !peer.is_awake();
                    self.call(peer, is_silent, |peer, io| peer.handle_timeout(io));
                    assert_ne!(peer.poll_timeout(), Some(deadline), "a deadline that stays");
                }
                self.now = end;
            }
            Step::Publish { .. } => {}
            Step::Open if !std::mem::take(&mut self.wants_open) => {}
            Step::Open => {
                self.decoder = Decoder::server(1 << 20);
                self.call(peer, true, |peer, io| {
                    peer.upstream_opened(io);
                    Action::Continue
                });
            }
            Step::Closed => self.call(peer, false, GatewayPeer::upstream_closed),
            Step::Rebind => {
                peer.rebind();
                (self.received, self.sent) = (0, 0);
            }
            Step::Probe => self.call(peer, false, |peer, io| {
                peer.probe(io);
                Action::Continue
            }),
        }
    }

    fn call(
        &mut self,
        peer: &mut GatewayPeer,
        is_silent: bool,
        f: impl FnOnce(&mut GatewayPeer, &mut Io<'_>) -> Action,
    ) {
        let mut io = Io { now: self.now, upstream: &mut self.upstream, output: &mut self.output };
        self.action = f(peer, &mut io);
        self.check(peer, is_silent);
    }

    fn check(&mut self, peer: &GatewayPeer, is_silent: bool) {
        for datagram in self.output.datagrams.iter() {
            let message = Message::decode(datagram).expect("a legal message");
            assert!(!is_silent || matches!(message, Message::Disconnect(_)), "{message:?} to one who does not listen");
            assert!(datagram.len() <= 1400, "larger than a datagram");
            let is_large = matches!(message, Message::Publish(_)) && datagram.len() > 128;
            assert!(peer.is_proven() || !is_large, "a large message to an address that is not proven");
            self.sent += datagram.len();
        }
        self.output.datagrams.clear();
        assert!(peer.is_proven() || self.sent <= 3 * self.received, "{} for {}", self.sent, self.received);
        self.bytes.extend_from_slice(&self.upstream.to_bytes());
        self.upstream.clear();
        while let Decoded::Packet(_) = self.decoder.decode(&mut self.bytes).expect("legal packets") {}
        assert!(self.bytes.is_empty(), "whole packets");
        assert!(peer.waiting().0 <= SLEEP_MESSAGES, "{:?}", peer.waiting());
        self.wants_open |= matches!(self.action, Action::OpenUpstream | Action::ReopenUpstream);
    }
}
