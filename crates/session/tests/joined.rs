//! Tests of a client's and a server's connection, joined on a virtual clock, against a simple model of QoS 0 to 2.
//!
//! The output of one side reaches the other through the real decoder, late and in pieces of any size. A cut loses the
//! bytes in transit in both directions. Runs 2,000 cases of up to 120 operations, and two tables.

#[path = "joined/pair.rs"]
mod pair;

use pair::{ConnectionLimits, End, Pair};
use proptest::prelude::*;
use tenbin_codec::{ProtocolVersion, QoS};

#[derive(Debug, Clone)]
enum Operation {
    Publish(End, QoS, u8),
    /// Up to this many bytes arrive at this end, if they are due.
    Deliver(End, usize),
    /// The application of this end acknowledges or refuses this many messages.
    Acknowledge(End, usize, bool),
    Wait(u16),
    Cut,
    Connect(ConnectionLimits),
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Client), Just(End::Server)]
}

fn limits() -> impl Strategy<Value = ConnectionLimits> {
    ([1u16..=5, 1u16..=5], [0u16..=3, 0u16..=3])
        .prop_map(|(receive_maximum, topic_aliases)| ConnectionLimits { receive_maximum, topic_aliases })
}

fn operation() -> impl Strategy<Value = Operation> {
    let qos = prop_oneof![1 => Just(QoS::AtMostOnce), 1 => Just(QoS::AtLeastOnce), 2 => Just(QoS::ExactlyOnce)];
    prop_oneof![
        8 => (end(), qos, 0u8..4).prop_map(|(end, qos, topic)| Operation::Publish(end, qos, topic)),
        10 => (end(), prop_oneof![1usize..40, Just(usize::MAX)]).prop_map(|(end, bytes)| Operation::Deliver(end, bytes)),
        6 => (end(), 1usize..5, prop::bool::weighted(0.1))
            .prop_map(|(end, count, refuse)| Operation::Acknowledge(end, count, refuse)),
        4 => (0u16..30).prop_map(Operation::Wait),
        1 => Just(Operation::Cut),
        2 => limits().prop_map(Operation::Connect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_qos_keeps_its_guarantee_over_any_number_of_cuts(
        version in prop_oneof![1 => Just(ProtocolVersion::V311), 3 => Just(ProtocolVersion::V5)],
        delays in [0u16..25, 0u16..25],
        first in limits(),
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut pair = Pair::new(version, delays);
        pair.connect(first);
        for operation in operations {
            match operation {
                Operation::Publish(end, qos, topic) => pair.publish(end, qos, topic),
                Operation::Deliver(end, bytes) => pair.deliver(end, bytes),
                Operation::Acknowledge(end, count, refuse) => pair.acknowledge(end, count, refuse),
                Operation::Wait(milliseconds) => pair.wait(milliseconds),
                Operation::Cut => pair.cut(),
                Operation::Connect(limits) => pair.connect(limits),
            }
        }
        pair.run_until_quiet();
        pair.check();
    }
}

const LIMITS: ConnectionLimits = ConnectionLimits { receive_maximum: [2, 2], topic_aliases: [2, 2] };

/// The server has the message, but its application has not acknowledged it when the connection is lost.
#[test]
fn mqtt_4_3_3_10_cut_before_pubrec_keeps_exactly_once() {
    for cuts in 1..4 {
        let mut pair = Pair::new(ProtocolVersion::V5, [1, 1]);
        pair.connect(LIMITS);
        pair.publish(End::Client, QoS::ExactlyOnce, 0);
        for _ in 0..cuts {
            pair.wait(5);
            pair.deliver(End::Server, usize::MAX);
            pair.cut();
            pair.connect(LIMITS);
        }
        pair.run_until_quiet();
        pair.check();
        assert_eq!((pair.arrivals(End::Server), pair.duplicates(End::Server)), (1, cuts));
    }
}

/// Cuts the exchange of one message after every single byte in either direction.
#[test]
fn a_cut_after_any_byte_breaks_no_promise() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for sender in [End::Client, End::Server] {
            for bytes in 0..80 {
                let mut pair = Pair::new(ProtocolVersion::V5, [0, 0]);
                pair.connect(LIMITS);
                pair.publish(sender, qos, 0);
                for byte in 0..bytes {
                    // The receiver first; its answer arrives at once.
                    let end = if pair.is_under_way_to(sender.other()) { sender.other() } else { sender };
                    pair.deliver(end, 1);
                    if byte % 2 == 0 {
                        pair.acknowledge(sender.other(), 1, false);
                    }
                }
                pair.cut();
                pair.connect(LIMITS);
                pair.run_until_quiet();
                pair.check();
            }
        }
    }
}
