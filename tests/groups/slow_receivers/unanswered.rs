//! Refusals that do not reach their publisher: MQTT 3.1.1 has none, and a connection may break before.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use tenbin_codec::{Connect, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, WriteBuffer};

use super::{narrow, number_of, numbered, receive};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, lasting, share, text};

const BOTH: [QoS; 2] = [QoS::AtLeastOnce, QoS::ExactlyOnce];

fn broker_with_room_for(messages: usize) -> BrokerProcess {
    let config = ConfigFile::new(&format!("[queue]\nmessages_maximum = {messages}\n"));
    BrokerProcess::start(&["--config", config.path(), "--ephemeral"])
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("not 0")
}

/// Sends a message with this identifier, without waiting for an answer.
fn send(client: &mut RawClient, identifier: u16, dup: bool, publish: Publish) {
    client.send(&Packet::Publish(Publish { packet_id: Some(id(identifier)), dup, ..publish }));
}

/// Fills the queue of an offline session. Returns the number of queued messages.
fn fill(broker: &BrokerProcess, filter: &str) -> usize {
    let mut full = broker.connect(lasting(ProtocolVersion::V5, "full"));
    full.subscribe(filter, QoS::ExactlyOnce);
    full.disconnect();
    let mut publisher = broker.v5("filler");
    let mut publish = |number| publisher.publish_with(numbered("fill", number, 100, QoS::AtLeastOnce));
    (0..10_000).take_while(|&number| publish(number) == ReasonCode::Success).count()
}

#[test]
fn full_queue_closes_a_3_1_1_publisher_until_there_is_room() {
    for qos in BOTH {
        let broker = broker_with_room_for(10);
        let waiting = fill(&broker, "#");
        let old = || broker.connect(lasting(ProtocolVersion::V311, "old"));
        let mut publisher = old();
        for is_again in [false, true] {
            send(&mut publisher, 1, is_again, numbered("topic", 77, 100, qos));
            publisher.expect_closed(); // without an acknowledgement
            publisher = old();
        }
        // The same client is served as long as nothing is refused.
        assert_eq!(publisher.publish("other/client", "x", QoS::AtMostOnce), ReasonCode::Success);
        publisher.settle();
        let mut full = broker.connect(lasting(ProtocolVersion::V5, "full"));
        receive(&mut full, waiting);
        send(&mut publisher, 1, true, numbered("topic", 77, 100, qos));
        let answer = if qos == QoS::ExactlyOnce { PacketType::PubRec } else { PacketType::PubAck };
        assert_eq!(publisher.wait_for_ack(answer, id(1)), ReasonCode::Success);
        let came: Vec<_> =
            full.drain().iter().filter(|publish| publish.topic.as_bytes() == b"topic").map(number_of).collect();
        assert_eq!(came, [77], "{qos}");
    }
}

#[test]
fn full_queue_of_one_receiver_does_not_stop_a_3_1_1_publisher() {
    for qos in BOTH {
        let broker = broker_with_room_for(10);
        fill(&broker, "#");
        let mut healthy = broker.v5("healthy");
        healthy.subscribe("topic", QoS::ExactlyOnce);
        let mut publisher = broker.v311("old");
        for number in 0..20 {
            assert_eq!(publisher.publish_with(numbered("topic", number, 100, qos)), ReasonCode::Success);
            assert_eq!(number_of(&healthy.receive_message()), number);
        }
        healthy.expect_nothing_waiting();
    }
}

/// A publisher sends a chunk, and resends unacknowledged messages after each loss of its connection. A receiver is
/// slow.
#[test]
fn all_messages_of_a_3_1_1_publisher_arrive_in_order() {
    const COUNT: usize = 150;
    for qos in BOTH {
        let broker = broker_with_room_for(40);
        let mut slow = broker.connect(narrow(lasting(ProtocolVersion::V5, "slow"), 5));
        slow.subscribe("topic", QoS::ExactlyOnce);
        thread::scope(|scope| {
            let broker = &broker;
            let publisher = scope.spawn(move || publish_until_acknowledged(broker, qos, COUNT));
            let (mut first_arrivals, mut seen) = (Vec::new(), BTreeSet::new());
            while seen.len() < COUNT {
                let number = number_of(&slow.receive_message());
                if seen.insert(number) {
                    first_arrivals.push(number);
                } else {
                    assert_eq!(qos, QoS::AtLeastOnce, "message {number} came twice");
                }
            }
            assert_eq!(first_arrivals, (0..COUNT).collect::<Vec<_>>());
            publisher.join().expect("it publishes");
        });
    }
}

fn publish_until_acknowledged(broker: &BrokerProcess, qos: QoS, count: usize) {
    let mut unacknowledged: BTreeSet<usize> = (0..count).collect();
    let mut is_again = false;
    while !unacknowledged.is_empty() {
        let mut client = broker.connect(lasting(ProtocolVersion::V311, "old"));
        let mut out = WriteBuffer::new();
        for &number in &unacknowledged {
            let publish = numbered("topic", number, 100, qos);
            let publish = Publish { packet_id: Some(id(number as u16 + 1)), dup: is_again, ..publish };
            Packet::Publish(publish).encode(ProtocolVersion::V311, &mut out);
        }
        client.try_send_bytes(&out.to_bytes());
        is_again = true;
        while !unacknowledged.is_empty() {
            match client.try_receive(PATIENCE) {
                Ok(Packet::PubAck(ack) | Packet::PubRec(ack)) => {
                    assert!(unacknowledged.remove(&(usize::from(ack.packet_id.get()) - 1)));
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => break,
            }
        }
    }
}

/// The publisher does not read that its QoS 2 message was refused, and sends it again.
#[test]
fn lost_refusal_brings_no_second_copy() {
    let in_memory = ConfigFile::new("[queue]\nmessages_maximum = 10\n");
    second_copies(&mut || BrokerProcess::start(&["--config", in_memory.path(), "--ephemeral"]), false);
}

#[test]
fn lost_refusal_brings_no_second_copy_after_a_restart() {
    let directory = DataDirectory::new();
    let on_disk = ConfigFile::new("[store]\nqueue_bytes_maximum = 2000\n");
    second_copies(&mut || directory.start_with(&["--config", on_disk.path()]), true);
}

/// Asserts that nothing arrives but the end of a handshake that the restart interrupted.
fn expect_no_message(receiver: &mut RawClient) {
    receiver.settle();
    while let Ok(packet) = receiver.try_receive(Duration::ZERO) {
        match packet {
            Packet::PubRel(ack) => receiver.send(&Packet::PubComp(ack)),
            other => panic!("{other:?}: a second copy"),
        }
    }
}

fn second_copies(start: &mut dyn FnMut() -> BrokerProcess, restarts: bool) {
    let mut broker = start();
    fill(&broker, "#");
    let publisher = |broker: &BrokerProcess| broker.connect(lasting(ProtocolVersion::V5, "publisher"));
    let healthy = |broker: &BrokerProcess| broker.connect(lasting(ProtocolVersion::V5, "healthy"));
    let mut receiver = healthy(&broker);
    receiver.subscribe("topic", QoS::ExactlyOnce);
    let mut client = publisher(&broker);
    send(&mut client, 5, false, numbered("topic", 1, 100, QoS::ExactlyOnce));
    assert_eq!(client.wait_for_ack(PacketType::PubRec, id(5)), ReasonCode::QuotaExceeded);
    client.cut();
    assert_eq!(number_of(&receiver.receive_message()), 1);
    for _ in 0..2 {
        expect_no_message(&mut receiver);
        if restarts {
            drop(receiver);
            drop(broker); // killed
            broker = start();
            receiver = healthy(&broker);
        }
        let mut client = publisher(&broker);
        send(&mut client, 5, true, numbered("topic", 1, 100, QoS::ExactlyOnce));
        assert_eq!(client.wait_for_ack(PacketType::PubRec, id(5)), ReasonCode::QuotaExceeded, "as before");
        client.cut();
    }
    expect_no_message(&mut receiver);
    // The identifier is free for another message, which is accepted if there is room, and recognized when resent.
    let mut client = publisher(&broker);
    let mut full = broker.connect(Connect { clean_start: true, ..Connect::new(ProtocolVersion::V5, text("full")) });
    full.settle();
    send(&mut client, 5, false, numbered("topic", 2, 100, QoS::ExactlyOnce));
    assert_eq!(client.wait_for_ack(PacketType::PubRec, id(5)), ReasonCode::Success);
    client.cut();
    let mut client = publisher(&broker);
    send(&mut client, 5, true, numbered("topic", 2, 100, QoS::ExactlyOnce));
    assert_eq!(client.wait_for_ack(PacketType::PubRec, id(5)), ReasonCode::Success);
    assert_eq!(number_of(&receiver.receive_message()), 2);
    expect_no_message(&mut receiver);
}

/// A full session is known when a QoS 2 message arrives, a full share group only later.
#[test]
fn message_that_all_refused_is_judged_anew_after_restart() {
    const COUNT: u16 = 60;
    /// Room of the group: its member's queue, its backlog, and the message in flight.
    const ROOM: u16 = 10 + 10 + 1;
    let directory = DataDirectory::new();
    let config = ConfigFile::new("[queue]\nmessages_maximum = 10\n[store]\nqueue_bytes_maximum = 2000\n");
    let start = || directory.start_with(&["--config", config.path()]);
    let connect = |broker: &BrokerProcess| broker.connect(lasting(ProtocolVersion::V5, "publisher"));
    let broker = start();
    fill(&broker, "#");
    let mut member = broker.connect(narrow(Connect::new(ProtocolVersion::V5, text("member")), 1));
    member.subscribe(&share("group", "topic"), QoS::ExactlyOnce);
    let mut publisher = connect(&broker);
    let publish = |number: u16| numbered("topic", number.into(), 4, QoS::ExactlyOnce);
    let mut out = WriteBuffer::new();
    for number in 1..=COUNT {
        let publish = Publish { packet_id: Some(id(number)), ..publish(number) };
        Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
    }
    publisher.send_bytes(&out.to_bytes());
    for number in 1..=COUNT {
        assert_eq!(publisher.wait_for_ack(PacketType::PubRec, id(number)), ReasonCode::QuotaExceeded);
    }
    publisher.cut();
    assert_eq!(number_of(&member.receive_publish()), 1);
    drop((member, broker)); // killed
    let broker = start();
    broker.connect(Connect { clean_start: true, ..Connect::new(ProtocolVersion::V5, text("full")) }).settle();
    let mut live = broker.v5("live");
    live.subscribe("topic", QoS::ExactlyOnce);
    let mut publisher = connect(&broker);
    for number in 1..=COUNT {
        send(&mut publisher, number, true, publish(number));
        let reason = publisher.wait_for_ack(PacketType::PubRec, id(number));
        match number {
            1 => assert_eq!(reason, ReasonCode::QuotaExceeded, "the member has got it"),
            _ if number <= ROOM && reason == ReasonCode::QuotaExceeded => {}
            _ => {
                assert_eq!(reason, ReasonCode::Success, "no receiver has message {number}");
                assert_eq!(number_of(&live.receive_message()), usize::from(number));
            }
        }
    }
    expect_no_message(&mut live);
}
