//! Memory that results from the limits. Each bound is stated, and measured (Linux).

use std::num::NonZeroU16;

use tenbin_codec::{Packet, PacketType, ProtocolVersion, QoS, ReasonCode, WriteBuffer};

use crate::limits::broker_with;
use crate::limits::growth::Growth;
use crate::support::{BrokerProcess, DataDirectory, RawClient, at_qos, lasting};

/// 300 MB for an offline session, at the default bound of 16 MiB per session: growth ≤ 64 MiB.
#[test]
fn offline_session_stays_within_its_queue_limit() {
    let broker = BrokerProcess::start(&[]);
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    sleeper.subscribe("flood", QoS::AtLeastOnce);
    sleeper.disconnect();
    let mut publisher = broker.v5("publisher");
    publisher.settle();
    let mut growth = Growth::of(&broker);
    let payload = "x".repeat(1_000_000);
    let mut taken = 0;
    for _ in 0..300 {
        taken += usize::from(publisher.publish("flood", &payload, QoS::AtLeastOnce) == ReasonCode::Success);
        growth.look();
    }
    growth.assert_within(64, "an offline session x 300 MB");
    let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, "sleeper"));
    assert_eq!(sleeper.drain().len(), taken, "what was not refused");
    assert!((14..=16).contains(&taken), "from seven eighths on there is no more: {taken}");
}

/// Many sessions together stay within the total bound: 100 × 16 MiB requested, 32 MiB allowed, growth ≤ 64 MiB.
#[test]
fn offline_sessions_stay_within_the_total_queue_limit() {
    let broker = broker_with("[queue]\ntotal_bytes_maximum = 33554432");
    for number in 0..100 {
        let mut sleeper = broker.connect(lasting(ProtocolVersion::V5, &format!("sleeper-{number}")));
        sleeper.subscribe(&format!("flood/{number}"), QoS::AtLeastOnce);
        sleeper.disconnect();
    }
    let mut publisher = broker.v5("publisher");
    publisher.settle();
    let mut growth = Growth::of(&broker);
    let payload = "x".repeat(1_000_000);
    for number in 0..200 {
        publisher.publish(&format!("flood/{}", number % 100), &payload, QoS::AtLeastOnce);
    }
    growth.assert_within(64, "100 offline sessions x 2 MB");
}

/// 40 sessions have the same 1.5 MB in flight when their connections break: growth ≤ 16 MiB, copies would be 60 MB.
#[test]
fn sessions_that_lose_their_network_keep_no_copies() {
    let directory = DataDirectory::new();
    for broker in [directory.start(), BrokerProcess::start(&["--ephemeral"])] {
        let connect = |number: usize| {
            let mut connect = lasting(ProtocolVersion::V5, &format!("fleet-{number}"));
            connect.properties.receive_maximum = NonZeroU16::new(u16::MAX);
            broker.connect(connect)
        };
        let mut fleet: Vec<_> = (0..40).map(connect).collect();
        fleet.iter_mut().for_each(|client| client.subscribe("fleet", QoS::AtLeastOnce));
        let mut publisher = broker.v5("publisher");
        for first in (0..1000).step_by(100) {
            let mut out = WriteBuffer::new();
            let ids: Vec<_> = (first..first + 100).map(|_| publisher.next_id()).collect();
            for (number, id) in (first..).zip(&ids) {
                let mut publish = at_qos("fleet", &format!("{number:01500}"), QoS::AtLeastOnce);
                publish.packet_id = Some(*id);
                Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
            }
            publisher.send_bytes(&out.to_bytes());
            for id in ids {
                assert_eq!(publisher.wait_for_ack(PacketType::PubAck, id), ReasonCode::Success);
            }
            // The messages are in flight, not in a queue.
            for client in &mut fleet {
                for number in first..first + 100 {
                    assert_eq!(number_of(client), number);
                }
            }
        }
        let mut growth = Growth::of(&broker);
        fleet.into_iter().for_each(RawClient::cut);
        growth.assert_within(16, "40 sessions with 1.5 MB under way lose their network");
        let mut back = connect(7);
        for number in 0..1000 {
            let publish = back.receive_publish();
            assert!(publish.dup, "it was sent before");
            let text = std::str::from_utf8(&publish.payload).expect("a number as text");
            assert_eq!(text.parse(), Ok(number));
            back.acknowledge(&publish);
        }
        back.expect_nothing_waiting();
    }
}

fn number_of(client: &mut RawClient) -> usize {
    let publish = client.receive_publish();
    std::str::from_utf8(&publish.payload).expect("a number as text").parse().expect("a number as text")
}
