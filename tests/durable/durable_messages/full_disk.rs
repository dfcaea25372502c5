//! A full disk: messages that cannot be stored are refused, other traffic continues, and no acknowledged message is
//! lost.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, Packet, PacketId, PacketType, ProtocolVersion, Publish, QoS, ReasonCode, WriteBuffer};

use crate::support::{
    BrokerProcess, ConfigFile, PATIENCE, RawClient, SmallDisk, at_qos, lasting, message, number_of, text,
};

/// Larger than the files that the log allocates ahead.
const DISK_MEBIBYTES: usize = 192;
const MESSAGE_BYTES: usize = 60_000;
const WINDOW: usize = 16;

#[test]
fn full_disk_refuses_messages_that_cannot_be_stored() {
    fill_the_disk("");
}

#[test]
fn full_disk_refuses_messages_despite_publishers_wait() {
    fill_the_disk("publishers_wait = true");
}

fn fill_the_disk(store: &str) {
    let Some(disk) = SmallDisk::mount(DISK_MEBIBYTES) else { return };
    let data = disk.data();
    let config = super::roomy(store);
    let arguments = ["--data", data.to_str().expect("a readable name"), "--config", config.path()];
    let broker = BrokerProcess::start(&arguments);
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("kept", QoS::ExactlyOnce);
    receiver.cut();
    let mut other = broker.v5("other");
    other.subscribe("goes/on", QoS::AtLeastOnce);

    let filler = disk.fill();
    let mut load =
        Load { publisher: broker.v5("publisher"), next: 0, under_way: VecDeque::new(), accepted: Vec::new() };
    load.publish_until_full(&broker);
    // Traffic without disk writes continues, on the same connection too.
    load.publisher.send(&Packet::Publish(message("goes/on", "0")));
    assert_eq!(other.receive_message().payload, "0");
    other.publish("goes/on", "1", QoS::AtMostOnce);
    assert_eq!(other.receive_message().payload, "1");
    assert_eq!(other.publish("goes/on", "2", QoS::AtLeastOnce), ReasonCode::Success);
    assert_eq!(other.receive_message().payload, "2");
    broker.assert_serves();

    drop(filler);
    let until = Instant::now() + PATIENCE;
    load.publish();
    while !load.take() {
        assert!(Instant::now() < until, "refused, now that there is room:\n{}", broker.log().all().join("\n"));
        std::thread::sleep(Duration::from_millis(20));
        load.publish();
    }
    let accepted = load.accepted;
    drop((load.publisher, other, broker));
    let broker = BrokerProcess::start(&arguments);
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for number in accepted {
        let publish = receiver.receive_message();
        let publish = Publish { payload: publish.payload.slice(..NUMBER_BYTES), ..publish };
        assert_eq!(number_of(&publish), number);
    }
    receiver.expect_nothing_waiting();
}

#[test]
fn full_disk_limits_a_slow_receiver_to_its_queue_in_memory() {
    let Some(disk) = SmallDisk::mount(DISK_MEBIBYTES) else { return };
    let data = disk.data();
    let config = ConfigFile::new("[queue]\nmessages_maximum = 50\n[store]\n");
    let broker = BrokerProcess::start(&["--data", data.to_str().expect("a readable name"), "--config", config.path()]);
    let mut away = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    away.subscribe("kept", QoS::AtLeastOnce);
    away.cut();
    let _filler = disk.fill();
    let mut load =
        Load { publisher: broker.v5("publisher"), next: 0, under_way: VecDeque::new(), accepted: Vec::new() };
    load.publish_until_full(&broker);

    // A transient session.
    let mut connect = Connect::new(ProtocolVersion::V5, text("slow"));
    connect.properties.receive_maximum = NonZeroU16::new(1);
    let mut slow = broker.connect(connect);
    slow.subscribe("slow", QoS::AtLeastOnce);
    let mut other = broker.v5("other");
    for _ in 0..2 {
        let mut publish = |number: usize| other.publish("slow", &format!("{number:0NUMBER_BYTES$}"), QoS::AtLeastOnce);
        let taken = (0..200).take_while(|&number| publish(number) == ReasonCode::Success).count();
        assert!((40..=60).contains(&taken), "one is under way: {taken}");
        let numbers: Vec<_> = (0..taken).map(|_| number_of(&slow.receive_message())).collect();
        assert_eq!(numbers, (0..taken).collect::<Vec<_>>(), "what was acknowledged, and no more");
        slow.expect_nothing_waiting();
    }
    // All in one write: the broker collects them before it notices that there is no room.
    let mut out = WriteBuffer::new();
    for number in 0..200 {
        let publish = at_qos("slow", &format!("{number:0NUMBER_BYTES$}"), QoS::AtLeastOnce);
        let publish = Publish { packet_id: PacketId::new(1000 + number as u16), ..publish };
        Packet::Publish(publish).encode(other.version(), &mut out);
    }
    other.send_bytes(&out.to_bytes());
    let mut reason = |number: u16| {
        let id = PacketId::new(1000 + number).expect("not 0");
        other.wait_for_ack(PacketType::PubAck, id)
    };
    let accepted: Vec<_> = (0..200).filter(|&number| reason(number) == ReasonCode::Success).collect();
    assert!((40..=60).contains(&accepted.len()), "{} of 200 are acknowledged", accepted.len());
    let numbers: Vec<_> = accepted.iter().map(|_| number_of(&slow.receive_message()) as u16).collect();
    assert_eq!(numbers, accepted);
}

/// Publisher of numbered messages to `kept`.
struct Load {
    publisher: RawClient,
    next: usize,
    under_way: VecDeque<PacketId>,
    /// Numbers of accepted messages.
    accepted: Vec<usize>,
}

impl Load {
    /// Publishes until the broker refuses messages, then waits for all answers.
    fn publish_until_full(&mut self, broker: &BrokerProcess) {
        let mut is_refused = false;
        while !is_refused {
            let sent = self.next * MESSAGE_BYTES;
            assert!(sent < DISK_MEBIBYTES << 20, "{sent} bytes have found room on a full disk");
            while self.under_way.len() < WINDOW {
                self.publish();
            }
            is_refused = !self.take();
        }
        while !self.under_way.is_empty() {
            self.take();
        }
        let until = Instant::now() + PATIENCE;
        while !broker.log().all().iter().any(|line| line.contains("little room is left for messages")) {
            assert!(Instant::now() < until, "no word of a full disk:\n{}", broker.log().all().join("\n"));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn publish(&mut self) {
        let payload = format!("{:0NUMBER_BYTES$}{}", self.next, "x".repeat(MESSAGE_BYTES));
        let packet_id = self.publisher.next_id();
        let publish = at_qos("kept", &payload, QoS::AtLeastOnce);
        self.publisher.send(&Packet::Publish(Publish { packet_id: Some(packet_id), ..publish }));
        self.under_way.push_back(packet_id);
        self.next += 1;
    }

    /// Waits for the next PUBACK. Returns true if it accepts the message.
    fn take(&mut self) -> bool {
        let Packet::PubAck(ack) = self.publisher.receive() else { panic!("no PUBACK") };
        let first = self.next - self.under_way.len();
        assert_eq!(Some(ack.packet_id), self.under_way.pop_front());
        assert!([ReasonCode::Success, ReasonCode::QuotaExceeded].contains(&ack.reason), "{ack:?}");
        let is_accepted = ack.reason == ReasonCode::Success;
        self.accepted.extend(is_accepted.then_some(first));
        is_accepted
    }
}

const NUMBER_BYTES: usize = 10;
