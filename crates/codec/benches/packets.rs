//! Benchmarks: decoding and encoding a packet, one message for many receivers, and copying or sharing a payload.
//!
//! Decoding reads [`BATCH`] packets from one buffer, which is filled outside the measurement. "elem/s" counts packets.

#![allow(missing_docs, reason = "criterion_group! writes a public function")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tenbin_codec::{
    Connect, Decoded, Decoder, MessageProperties, Packet, PacketId, ProtocolVersion, Publish, PublishHeader,
    PublishTemplate, QoS, Text, TopicName, UserProperty, Will, WriteBuffer,
};

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = decode, encode, template, copied_or_shared
}
criterion_main!(benches);

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, packet) in packets() {
        let mut out = WriteBuffer::new();
        (0..BATCH).for_each(|_| packet.encode(ProtocolVersion::V5, &mut out));
        let bytes = out.to_bytes();
        let decoder = match packet {
            Packet::Connect(_) => Decoder::server(u32::MAX),
            _ => Decoder::client(ProtocolVersion::V5, u32::MAX),
        };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || BytesMut::from(&bytes[..]),
                |mut input| {
                    let mut decoder = decoder.clone();
                    while let Ok(Decoded::Packet(packet)) = decoder.decode(&mut input) {
                        black_box(packet);
                    }
                    input
                },
                BatchSize::LargeInput,
            );
        });
    }
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for (name, packet) in packets() {
        let mut out = WriteBuffer::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                black_box(&packet).encode(ProtocolVersion::V5, &mut out);
                black_box(&out);
                out.clear();
            });
        });
    }
}

fn template(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("template");
    let publish = publish_100(QoS::AtMostOnce);
    let mut block = BytesMut::new();
    group.bench_function("new", |bencher| {
        bencher.iter(|| PublishTemplate::new(black_box(&publish.topic), None, &publish.payload, &mut block));
    });
    for receivers in [1, 50] {
        let mut out = WriteBuffer::new();
        group.throughput(Throughput::Elements(receivers));
        group.bench_function(BenchmarkId::new("new and encode", receivers), |bencher| {
            bencher.iter(|| {
                let template = PublishTemplate::new(black_box(&publish.topic), None, &publish.payload, &mut block);
                for _ in 0..receivers {
                    template.encode(&PublishHeader::default(), ProtocolVersion::V5, &mut out);
                    black_box(&out);
                    out.clear();
                }
            });
        });
    }
}

/// Compares copying and sharing in [`WriteBuffer::put_payload`], also at sizes for which it does only one of them.
/// Sixteen packets are appended one after another, then released as after a write.
fn copied_or_shared(criterion: &mut Criterion) {
    const PACKETS: u64 = 16;
    let head = [0u8; 20];
    let mut group = criterion.benchmark_group("payload");
    for size in [1024, 4096, 16_384, 65_536] {
        let payload = Bytes::from(vec![7u8; size]);
        group.throughput(Throughput::Elements(PACKETS));
        let mut block = Vec::new();
        group.bench_function(BenchmarkId::new("copied", size), |bencher| {
            bencher.iter(|| {
                for _ in 0..PACKETS {
                    block.extend_from_slice(&head);
                    block.extend_from_slice(black_box(&payload));
                }
                black_box(&block);
                block.clear();
            });
        });
        let mut chunks = VecDeque::new();
        group.bench_function(BenchmarkId::new("shared", size), |bencher| {
            bencher.iter(|| {
                for _ in 0..PACKETS {
                    let mut block = Vec::new();
                    block.extend_from_slice(&head);
                    chunks.push_back(Bytes::from(block));
                    chunks.push_back(black_box(&payload).clone());
                }
                black_box(&chunks);
                chunks.clear();
            });
        });
    }
}

fn packets() -> [(&'static str, Packet); 4] {
    let mut with_properties = publish_100(QoS::AtLeastOnce);
    with_properties.properties = Some(Box::new(MessageProperties {
        message_expiry_interval: Some(60),
        response_topic: Some(Text::from_static("answers/1")),
        user_properties: vec![UserProperty::new(Text::from_static("trace"), Text::from_static("0123456789abcdef"))],
        ..MessageProperties::default()
    }));
    let mut connect = Connect::new(ProtocolVersion::V5, Text::from_static("sensor-0001"));
    connect.user_name = Some(Text::from_static("user"));
    connect.password = Some("password".into());
    connect.properties.session_expiry_interval = Some(3600);
    connect.will = Some(Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: topic(),
        payload: Bytes::from_static(b"gone"),
        delay_interval: Some(5),
        properties: None,
    });
    [
        ("publish 100 B, QoS 0", Packet::Publish(publish_100(QoS::AtMostOnce))),
        ("publish 100 B, QoS 1", Packet::Publish(publish_100(QoS::AtLeastOnce))),
        ("publish 100 B, QoS 1, three properties", Packet::Publish(with_properties)),
        ("connect", Packet::Connect(Box::new(connect))),
    ]
}

fn publish_100(qos: QoS) -> Publish {
    let packet_id = if qos.is_acknowledged() { PacketId::new(7) } else { None };
    Publish { qos, packet_id, ..Publish::new(topic(), Bytes::from_static(&[7; 100])) }
}

fn topic() -> TopicName {
    TopicName::try_from("building/3/floor/2/temperature").expect("a legal name")
}

/// Packets in one input buffer.
const BATCH: usize = 1000;
