//! Handshakes that are never completed.

use tenbin_codec::{Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, WriteBuffer};

use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, at_qos, lasting};

/// Four 3.1.1 sessions send QoS 2 messages of 1 KB with all 65,535 Packet Identifiers and release none: only
/// identifiers stay in memory, growth ≤ 24 MiB. A repeated identifier is recognized, and its message is not delivered
/// twice.
#[test]
fn identifiers_never_released() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    for number in 0..4 {
        let mut client = broker.connect(lasting(ProtocolVersion::V311, &format!("client-{number}")));
        let payload = "x".repeat(1000);
        for first in (1..=65_535u16).step_by(512) {
            let ids = first..=first.saturating_add(511);
            let count = ids.len();
            let mut out = WriteBuffer::new();
            for id in ids {
                let publish = Publish { packet_id: PacketId::new(id), ..at_qos("t", &payload, QoS::ExactlyOnce) };
                Packet::Publish(publish).encode(ProtocolVersion::V311, &mut out);
            }
            client.send_bytes(&out.to_bytes());
            for _ in 0..count {
                client.wait_for(PacketType::PubRec);
            }
        }
        growth.look();
    }
    growth.assert_within(24, "4 x 65,535 identifiers");
    let mut witness = broker.v5("witness");
    witness.subscribe("t", QoS::AtMostOnce);
    let mut client = broker.connect(lasting(ProtocolVersion::V311, "client-0"));
    for id in [1, 77, 65_535] {
        let publish = Publish { packet_id: PacketId::new(id), dup: true, ..at_qos("t", "x", QoS::ExactlyOnce) };
        client.send(&Packet::Publish(publish));
        client.wait_for(PacketType::PubRec);
    }
    witness.expect_nothing_waiting();
}

/// A receiver that reads and never acknowledges holds `in_flight_maximum` messages and its queue: 60 MB of 20 KB
/// messages, growth ≤ 64 MiB (20 MiB in flight, 16 MiB queued).
#[test]
fn messages_never_acknowledged() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    client.subscribe("t", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let payload = "x".repeat(20_000);
    for number in 0..3000 {
        publisher.publish("t", &payload, QoS::AtLeastOnce);
        if number % 100 == 0 {
            client.settle();
            growth.look();
        }
    }
    growth.assert_within(64, "60 MB never acknowledged");
    broker.assert_serves();
}
