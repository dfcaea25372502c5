//! Memory that clients can make the broker hold.

use std::time::Instant;

use bytes::Bytes;
use tenbin_codec::{Packet, ProtocolVersion, Publish, QoS, WriteBuffer};

use crate::support::{BrokerProcess, ConfigFile, PATIENCE, RawClient, at_qos, hex, lasting, message, retained};

#[test]
fn packets_announced_before_connect_take_no_memory() {
    let broker = BrokerProcess::start(&[]);
    broker.assert_serves();
    let before = broker.resident_bytes();
    // 256 MiB each, then less than the limit of a CONNECT. Only the start of the packet is sent.
    for announced in ["10 FF FF FF 7F", "30 FF FF FF 7F", "10 FF FF 0F"] {
        let mut strangers: Vec<_> = (0..100).map(|_| broker.open(ProtocolVersion::V5)).collect();
        for stranger in &mut strangers {
            stranger.send_bytes(&hex(announced));
            stranger.try_send_bytes(&[0; 512]);
        }
        broker.assert_serves();
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 24 << 20, "{announced}: grown by {grown} bytes");
        if announced != "10 FF FF 0F" {
            strangers.iter_mut().for_each(RawClient::expect_closed); // ended at the header
        }
    }
}

#[test]
fn refused_connects_leave_nothing_behind() {
    let broker = BrokerProcess::start(&[]);
    let refuse = |count| {
        for _ in 0..count {
            // A Will with a property that is illegal there.
            let mut client = broker.open(ProtocolVersion::V5);
            client.send_bytes(&hex("10 17 00 04 4D 51 54 54 05 06 00 3C 00 00 01 63 03 23 00 01 00 01 77 00 00"));
            client.read_to_end();
        }
    };
    refuse(200);
    let before = broker.resident_bytes();
    refuse(2000);
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "grown by {grown} bytes");
}

#[test]
fn subscriber_not_reading_delays_no_other_client() {
    let broker = BrokerProcess::start(&[]);
    let mut stuck = broker.v5("stuck");
    stuck.subscribe("flood", QoS::AtMostOnce);
    let mut reader = broker.v5("reader");
    reader.subscribe("flood", QoS::AtMostOnce);
    let mut publisher = broker.v5("publisher");
    publisher.settle();
    let before = broker.resident_bytes();

    // 200 MB, 1 MB at a time, so that the reader is never far behind.
    let payload = Bytes::from(vec![7; 16_000]);
    let began = Instant::now();
    let mut most = 0;
    for _ in 0..200 {
        let mut out = WriteBuffer::new();
        for _ in 0..64 {
            let publish = Publish { payload: payload.clone(), ..message("flood", "") };
            Packet::Publish(publish).encode(publisher.version(), &mut out);
        }
        publisher.send_bytes(&out.to_bytes());
        for _ in 0..64 {
            assert!(reader.receive_publish().payload == payload);
        }
        most = most.max(broker.resident_bytes());
    }
    publisher.settle();
    assert!(began.elapsed() < PATIENCE, "200 MB took {:?}", began.elapsed());
    let grown = most.saturating_sub(before);
    assert!(grown <= 64 << 20, "grown by {grown} bytes");

    // Once the stuck client reads, it sees the newest messages, complete.
    publisher.publish("flood", "last", QoS::AtMostOnce);
    publisher.settle();
    while stuck.receive_publish().payload != "last" {}
}

#[test]
fn only_receiver_not_reading_does_not_block_the_publisher() {
    let broker = BrokerProcess::start(&[]);
    let mut stuck = broker.v5("stuck");
    stuck.subscribe("flood", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    let began = Instant::now();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for _ in 0..40 {
            publisher.publish("flood", &"x".repeat(1 << 20), qos);
        }
    }
    publisher.settle();
    assert!(began.elapsed() < PATIENCE, "120 MB took {:?}", began.elapsed());
    broker.assert_serves();
}

#[test]
fn an_offline_queue_is_bounded() {
    // The bound also holds on disk, if there is a store.
    let file = ConfigFile::new("[queue]\nbytes_maximum = 4194304\n[store]\nqueue_bytes_maximum = 3500000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("flood", QoS::ExactlyOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    publisher.settle();
    let before = broker.resident_bytes();
    for number in 0..100 {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        publisher.publish("flood", &"x".repeat(1_000_000), qos);
    }
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown <= 32 << 20, "grown by {grown} bytes");
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.receive_messages(4); // the queue has room for four
}

/// A stored message must not pin the buffer that it was read into.
#[test]
fn small_stored_messages_do_not_pin_large_read_buffers() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("queued", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    let large = Publish { payload: Bytes::from(vec![7; 1_000_000]), ..message("nobody", "") };
    let before = broker.resident_bytes();
    for number in 0..200 {
        let packet_id = Some(publisher.next_id());
        let kept = retained(&format!("kept/{number}"), "x");
        let queued = at_qos("queued", "x", QoS::AtLeastOnce);
        let mut out = WriteBuffer::new();
        for publish in [large.clone(), Publish { packet_id, ..kept }, large.clone()] {
            Packet::Publish(publish).encode(publisher.version(), &mut out);
        }
        let packet_id = Some(publisher.next_id());
        Packet::Publish(Publish { packet_id, ..queued }).encode(publisher.version(), &mut out);
        publisher.send_bytes(&out.to_bytes());
        publisher.wait_for(tenbin_codec::PacketType::PubAck);
        publisher.wait_for(tenbin_codec::PacketType::PubAck);
    }
    let grown = broker.resident_bytes().saturating_sub(before);
    assert!(grown <= 48 << 20, "400 small messages keep {grown} bytes");
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.receive_messages(200);
}
