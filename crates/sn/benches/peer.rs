//! The gateway's peer: one message of 255 bytes in either direction, with all its acknowledgements; and the ways of the
//! published prototype to find message ids and topics, for comparison.
//!
//! `cargo bench -p tenbin-sn`
#![allow(clippy::disallowed_methods, missing_docs, reason = "a bench needs a start, and its macros have no docs")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, Bytes};
use criterion::{Criterion, criterion_group, criterion_main};
use tenbin_codec::{Ack, ConnAck, Packet, PacketId, Publish, QoS, ReasonCode, TopicName, WriteBuffer};
use tenbin_sn::{Gateway, GatewayPeer, Io, Output, PredefinedTopics, Settings};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, PubAck, ReturnCode, Topic};

/// An active client with the topic id 1.
struct Bench {
    peer: GatewayPeer,
    now: Instant,
    upstream: WriteBuffer,
    output: Output,
}

impl Bench {
    fn new() -> Self {
        let settings = Settings { trusts_addresses: true, ..Settings::default() };
        let gateway = Arc::new(Gateway::new(settings, PredefinedTopics::default()));
        let (now, mut upstream, mut output) = (Instant::now(), WriteBuffer::new(), Output::default());
        let mut io = Io { now, upstream: &mut upstream, output: &mut output };
        let connect = v1_2::Connect { will: false, clean_session: true, duration: 0, client_id: "c" };
        let (mut peer, _) = GatewayPeer::accept(&gateway, &connect, 7, None, &mut io);
        peer.upstream_opened(&mut io);
        let mut bench = Self { peer, now, upstream, output };
        bench.broker(Packet::ConnAck(Box::new(ConnAck::new(false, ReasonCode::Success))));
        bench.client(b"\x10\x0A\x00\x00\x00\x01plant/line");
        bench
    }

    fn client(&mut self, datagram: &[u8]) {
        let message = Message::decode(datagram).expect("a legal message");
        let mut io = Io { now: self.now, upstream: &mut self.upstream, output: &mut self.output };
        let _ = black_box(self.peer.handle_message(&message, datagram.len(), &mut io));
        self.discard();
    }

    fn broker(&mut self, packet: Packet) {
        let mut io = Io { now: self.now, upstream: &mut self.upstream, output: &mut self.output };
        let _ = black_box(self.peer.handle_packet(packet, &mut io));
        self.discard();
    }

    fn discard(&mut self) {
        self.output.datagrams.clear();
        self.upstream.advance(self.upstream.len());
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn peer(criterion: &mut Criterion) {
    let data = [7; 255];
    let publish = |qos, id| {
        let (topic, message_id) = (Topic::Normal(1), MessageId::new(id));
        encoded(&Message::Publish(v1_2::Publish {
            dup: false,
            qos: Some(qos),
            retain: false,
            topic,
            message_id,
            data: &data,
        }))
    };
    let ack = |id| Ack::new(PacketId::new(id).expect("not 0"), ReasonCode::Success);

    let mut bench = Bench::new();
    let datagram = publish(v1_2::QoS::AtMostOnce, 0);
    criterion.bench_function("publish_in_qos_0", |b| b.iter(|| bench.client(&datagram)));

    let mut bench = Bench::new();
    let datagrams: Vec<_> = (1..=1000).map(|id| publish(v1_2::QoS::AtLeastOnce, id)).collect();
    let mut id = 0;
    criterion.bench_function("publish_in_qos_1", |b| {
        b.iter(|| {
            id = id % 1000 + 1;
            bench.client(&datagrams[usize::from(id) - 1]);
            bench.broker(Packet::PubAck(ack(id)));
        });
    });

    let message = |qos, id| {
        let mut publish =
            Publish::new(TopicName::try_from("plant/line").expect("a name"), Bytes::from_static(&[7; 255]));
        (publish.qos, publish.packet_id) = (qos, PacketId::new(id));
        Packet::Publish(publish)
    };
    let mut bench = Bench::new();
    let packet = message(QoS::AtMostOnce, 0);
    criterion.bench_function("publish_out_qos_0", |b| b.iter(|| bench.broker(packet.clone())));

    let mut bench = Bench::new();
    let packet = message(QoS::AtLeastOnce, 5);
    let (topic_id, message_id, code) = (1, MessageId::new(5), ReturnCode::Accepted);
    let puback = encoded(&Message::PubAck(PubAck { topic_id, message_id, code }));
    criterion.bench_function("publish_out_qos_1", |b| {
        b.iter(|| {
            bench.broker(packet.clone());
            bench.client(&puback);
        });
    });
}

/// Random numbers, as good as any for this purpose: SplitMix64.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB)
    }
}

/// The id of a message: drawn until it is free, as in the prototype, or the client's own.
fn message_id(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("message_id");
    for in_flight in [0, 100, 10_000, 60_000] {
        let mut random = Random(7);
        let mut used = HashMap::new();
        while used.len() < in_flight {
            used.insert((random.draw() % 65_535) as u16 + 1, ());
        }
        group.bench_function(format!("drawn/{in_flight}"), |b| {
            b.iter(|| {
                let id = loop {
                    let id = (random.draw() % 65_535) as u16 + 1;
                    if !used.contains_key(&id) {
                        break id;
                    }
                };
                used.insert(id, ());
                black_box(used.remove(&id))
            });
        });
    }
    // With all of the message's other costs. A client has at most 16 under way.
    for in_flight in [0, 15] {
        let mut bench = Bench::new();
        let publish = |id| {
            let message_id = MessageId::new(id);
            let (topic, qos) = (Topic::Normal(1), Some(v1_2::QoS::AtLeastOnce));
            encoded(&Message::Publish(v1_2::Publish { dup: false, qos, retain: false, topic, message_id, data: b"" }))
        };
        (0..in_flight).for_each(|id| bench.client(&publish(60_000 + id)));
        let datagrams: Vec<_> = (1..=1000).map(publish).collect();
        let mut id = 0;
        group.bench_function(format!("whole_message/{in_flight}"), |b| {
            b.iter(|| {
                id = id % 1000 + 1;
                bench.client(&datagrams[usize::from(id) - 1]);
                bench.broker(Packet::PubAck(Ack::new(PacketId::new(id).expect("not 0"), ReasonCode::Success)));
            });
        });
    }
}

/// The name of a topic id: searched in a list, as in the prototype, or at its position.
fn topic_id(criterion: &mut Criterion) {
    const TOPICS: u16 = 256;
    let mut group = criterion.benchmark_group("topic_id");
    let list: Vec<(u16, String)> = (1..=TOPICS).map(|id| (id, format!("plant/line/{id}"))).collect();
    group.bench_function("searched", |b| {
        b.iter(|| black_box(list.iter().find(|(id, _)| *id == black_box(TOPICS)).map(|(_, name)| name)));
    });
    let mut bench = Bench::new();
    for id in 2..=TOPICS {
        let name = format!("plant/line/{id}");
        let register = v1_2::Register { topic_id: 0, message_id: MessageId::new(1), topic: &name };
        bench.client(&encoded(&Message::Register(register)));
    }
    for topic in [1, TOPICS] {
        let (topic, qos) = (Topic::Normal(topic), Some(v1_2::QoS::AtMostOnce));
        let publish = v1_2::Publish { dup: false, qos, retain: false, topic, message_id: None, data: b"" };
        let datagram = encoded(&Message::Publish(publish));
        group.bench_function(format!("whole_message/{topic:?}"), |b| b.iter(|| bench.client(&datagram)));
    }
}

criterion_group!(benches, peer, message_id, topic_id);
criterion_main!(benches);
