//! What the limits add up to in memory. Each bound is stated, and measured (Linux).

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};

use crate::broker_with;
use crate::growth::Growth;
use crate::support::{BrokerProcess, lasting};

/// 300 MB for a session whose client is away, at the default bound of 16 MiB a session: growth ≤ 64 MiB.
#[test]
fn an_offline_session_holds_what_its_queue_may() {
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

/// Many sessions together stay within the bound of all: 100 × 16 MiB asked for, 32 MiB allowed, growth ≤ 64 MiB.
#[test]
fn all_offline_sessions_together_hold_what_all_queues_may() {
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
