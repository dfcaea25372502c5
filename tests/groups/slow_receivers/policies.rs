//! Overflow policies for QoS 0 messages of a receiver that does not read.

use std::time::{Duration, Instant};

use tenbin_codec::{Packet, ProtocolVersion, QoS, ReasonCode};

use super::{Figures, config, number_of, numbered, publish_all};
use crate::support::{BrokerProcess, DataDirectory, PATIENCE, RawClient, Silence, lasting, message};

const BYTES: usize = 16 * 1024;

/// Returns a receiver that does not read, and the number of messages published until it was slow and shortly after.
fn stuck(broker: &BrokerProcess) -> (RawClient, usize) {
    stuck_until(broker, &["receiver", "stuck", "to=\"spooling\""])
}

/// As [`stuck`], until the log contains `said`.
fn stuck_until(broker: &BrokerProcess, said: &[&str]) -> (RawClient, usize) {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "stuck"));
    receiver.subscribe("topic", QoS::AtMostOnce);
    let mut publisher = broker.v5("publisher");
    let until = Instant::now() + PATIENCE;
    let mut published = 0;
    let mut publish = |count: usize| {
        for number in published..published + count {
            publish_all(&mut publisher, vec![numbered("topic", number, BYTES, QoS::AtMostOnce)]);
        }
        published += count;
        publisher.settle();
        published
    };
    // The system's socket buffers fill first.
    while broker.log().find(said, Duration::from_millis(20)).is_none() {
        assert!(Instant::now() < until, "never slow");
        publish(16);
    }
    let published = publish(200);
    (receiver, published)
}

/// Reads all queued messages, and those that follow when there is room again.
fn read_all(broker: &BrokerProcess, receiver: &mut RawClient) -> Vec<usize> {
    let mut publisher = broker.v5("last");
    let mut numbers = Vec::new();
    let until = Instant::now() + PATIENCE;
    loop {
        match receiver.try_receive(Duration::from_secs(1)) {
            Ok(Packet::Publish(publish)) if publish.payload == "last" => return numbers,
            Ok(Packet::Publish(publish)) => numbers.push(number_of(&publish)),
            // Behind a long queue it may find no room, and is published again.
            Err(Silence::TimedOut) => drop(publisher.publish_with(message("topic", "last"))),
            other => panic!("{other:?} instead of PUBLISH"),
        }
        assert!(Instant::now() < until, "the last one does not come");
    }
}

#[test]
fn drop_oldest_keeps_the_newest() {
    let config = config("");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let (mut receiver, published) = stuck(&broker);
    Figures::of(&broker).wait_for("queued messages/bytes", |bytes| bytes <= 256 * 1024);
    let numbers = read_all(&broker, &mut receiver);
    assert!(numbers.is_sorted(), "in order");
    assert_eq!(numbers.last(), Some(&(published - 1)));
    assert!(numbers.len() < published, "memory has a bound");
    let figures = Figures::of(&broker);
    figures.wait_for("publish/messages/dropped/queue_full", |dropped| dropped == (published - numbers.len()) as u64);
    figures.wait_for("clients/spooling", |clients| clients == 0);
}

#[test]
fn drop_newest_keeps_the_oldest() {
    let config = config("when_full = \"drop_newest\"");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let (mut receiver, published) = stuck(&broker);
    let numbers = read_all(&broker, &mut receiver);
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "none is left out before the last");
    assert!(numbers.len() < published);
}

#[test]
fn spool_policy_keeps_all_messages_in_order() {
    let config = config("when_full = \"spool\"");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let (mut receiver, published) = stuck(&broker);
    Figures::of(&broker).wait_for("queued messages/bytes", |bytes| bytes <= 256 * 1024);
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages > 200);
    let numbers = read_all(&broker, &mut receiver);
    assert_eq!(numbers, (0..published).collect::<Vec<_>>());
    Figures::of(&broker).wait_for("clients/spooling", |clients| clients == 0);
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages == 0);
}

#[test]
fn disconnect_policy_sends_a_reason() {
    let config = config("when_full = \"disconnect\"");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    // A queue that fills at once is full before its receiver counts as slow.
    let (mut receiver, _) = stuck_until(&broker, &["stuck", "too slow"]);
    let packets = receiver.read_to_end();
    match packets.last() {
        Some(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.reason, ReasonCode::QuotaExceeded),
        other => panic!("{other:?} instead of DISCONNECT"),
    }
    Figures::of(&broker).wait_for("spooling/disconnected", |clients| clients == 1);
    Figures::of(&broker).wait_for("clients/spooling", |clients| clients == 0);
}
