//! A disk full of messages: publishers are refused in time, and the broker recovers when receivers fetch the messages.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tenbin_codec::{Packet, PacketId, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{
    BrokerProcess, ConfigFile, PATIENCE, RawClient, Silence, SmallDisk, at_qos, lasting, number_of, retained,
};

const DISK_MEBIBYTES: usize = 300;
const MESSAGE_BYTES: usize = 30_000;
const WINDOW: usize = 16;
const NUMBER_BYTES: usize = 10;
/// Few, so that the state beside the log stays small.
const RETAINED: usize = 8;
const RETAINED_BYTES: usize = 1_000_000;
const SUBSCRIBES: usize = 20;
/// Messages whose acknowledgements a kill may lose: several receive windows on a busy machine.
const LAST: usize = 512;

#[test]
fn disk_filled_by_one_client_recovers_after_draining() {
    fill_drain_and_fill(None);
}

#[test]
fn disk_filled_by_one_client_recovers_after_kill_when_full() {
    fill_drain_and_fill(Some(Kill::Full));
}

#[test]
fn drained_messages_do_not_come_again_after_kill() {
    fill_drain_and_fill(Some(Kill::Drained));
}

#[test]
fn store_stays_below_its_bytes_maximum() {
    let Some(disk) = SmallDisk::mount(DISK_MEBIBYTES) else { return };
    let data = disk.path().join("data");
    let maximum = 256 << 20;
    let config = super::roomy(&format!("bytes_maximum = {maximum}"));
    let arguments = ["--data", data.to_str().expect("a readable name"), "--config", config.path()];
    let broker = BrokerProcess::start(&arguments);
    let accepted = fill(&broker);
    assert!(accepted > 1_000, "{accepted}");
    assert!(used_bytes(&data) <= maximum, "{}", used_bytes(&data));
    drain(&broker, accepted);
    assert_accepts_again(&broker, accepted);
}

#[test]
fn retained_messages_wait_for_room_on_a_full_disk() {
    subscribe_to_retained_on_full_disk("", DISK_MEBIBYTES);
}

#[test]
fn retained_messages_wait_below_the_store_maximum() {
    subscribe_to_retained_on_full_disk("bytes_maximum = 268435456", 256);
}

/// A persistent session requests large retained messages again and again while messages fill the disk.
fn subscribe_to_retained_on_full_disk(store: &str, mebibytes: usize) {
    let Some(disk) = SmallDisk::mount(DISK_MEBIBYTES) else { return };
    let data = disk.path().join("data");
    let config = super::roomy(store);
    let arguments = ["--data", data.to_str().expect("a readable name"), "--config", config.path()];
    let broker = BrokerProcess::start(&arguments);
    let mut publisher = broker.v5("retainer");
    for number in 0..RETAINED {
        let payload = "r".repeat(RETAINED_BYTES);
        let reason = publisher.publish_with(retained(&format!("ret/{number}"), &payload));
        assert!(!reason.is_error(), "{reason:?}");
    }
    publisher.disconnect();
    let accepted = fill(&broker);

    let mut reader = broker.connect(lasting(ProtocolVersion::V5, "reader"));
    let mut found: HashSet<_> = HashSet::new();
    for _ in 0..SUBSCRIBES {
        reader.subscribe("ret/#", QoS::AtLeastOnce);
        found = reader.drain().into_iter().map(|publish| publish.topic).collect();
    }
    let used = used_bytes(&data);
    assert!(used <= (mebibytes as u64) << 20, "{used} bytes of the disk");
    let log = broker.log().all().join("\n");
    assert!(!log.contains("messages cannot be written"), "{log}");

    drain(&broker, accepted);
    while found.len() < RETAINED {
        found.insert(reader.receive_message().topic);
    }
    wait_for_few_segments(&data);
    assert_accepts_again(&broker, accepted);
}

/// When the broker is killed.
#[derive(Clone, Copy, PartialEq)]
enum Kill {
    Full,
    Drained,
}

fn fill_drain_and_fill(kill: Option<Kill>) {
    let Some(disk) = SmallDisk::mount(DISK_MEBIBYTES) else { return };
    let data = disk.path().join("data");
    let config: ConfigFile = super::roomy("");
    let arguments = ["--data", data.to_str().expect("a readable name"), "--config", config.path()];
    let mut broker = BrokerProcess::start(&arguments);
    let accepted = fill(&broker);
    assert!(accepted > 1_000, "{accepted}");
    if kill == Some(Kill::Full) {
        drop(broker);
        broker = BrokerProcess::start(&arguments);
    }
    drain(&broker, accepted);
    wait_for_few_segments(&data);
    if kill == Some(Kill::Drained) {
        drop(broker);
        broker = BrokerProcess::start(&arguments);
    }
    assert_accepts_again(&broker, accepted);
}

/// Publishes for an offline session until a message is refused. Returns the number of accepted messages.
fn fill(broker: &BrokerProcess) -> usize {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("kept", QoS::AtLeastOnce);
    receiver.cut();
    let mut load = Load { publisher: broker.v5("publisher"), next: 0, under_way: VecDeque::new(), accepted: 0 };
    let mut is_refused = false;
    while !is_refused {
        assert!(load.next * MESSAGE_BYTES < DISK_MEBIBYTES << 20, "more than the disk holds");
        while load.under_way.len() < WINDOW {
            load.publish();
        }
        is_refused = !load.take(broker);
    }
    while !load.under_way.is_empty() {
        assert!(!load.take(broker), "accepted behind a message that was refused");
    }
    load.accepted
}

/// Receives and acknowledges `messages` messages, in order.
fn drain(broker: &BrokerProcess, messages: usize) {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    for number in 0..messages {
        let publish = receiver.receive_message();
        assert_eq!(number_of(&shortened(&publish)), number);
    }
    receiver.expect_nothing_waiting();
    receiver.disconnect();
}

fn shortened(publish: &Publish) -> Publish {
    Publish { payload: publish.payload.slice(..NUMBER_BYTES), ..publish.clone() }
}

/// Asserts that messages are accepted again. Of the acknowledged messages at most the [`LAST`] ones come again, since
/// nothing waits until acknowledgements of receivers are on disk.
fn assert_accepts_again(broker: &BrokerProcess, accepted: usize) {
    let mut publisher = broker.v5("publisher");
    let until = Instant::now() + PATIENCE;
    while publisher.publish("kept", "again", QoS::AtLeastOnce) != ReasonCode::Success {
        assert!(Instant::now() < until, "refused:\n{}", broker.log().all().join("\n"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    loop {
        let publish = receiver.receive_message();
        if publish.payload == "again" {
            break;
        }
        let number = number_of(&shortened(&publish));
        assert!(number + LAST >= accepted, "message {number} of {accepted} came again");
    }
    receiver.expect_nothing_waiting();
}

fn wait_for_few_segments(data: &Path) {
    let until = Instant::now() + PATIENCE;
    while segments(data) > 4 {
        assert!(Instant::now() < until, "{} segments after all messages were fetched", segments(data));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn segments(data: &Path) -> usize {
    let files = fs::read_dir(data.join("spool")).expect("a spool");
    files.flatten().filter(|file| file.path().extension().is_some_and(|end| end == "log")).count()
}

fn used_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => used_bytes(&entry.path()),
            Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Publisher of numbered messages to `kept`.
struct Load {
    publisher: RawClient,
    next: usize,
    under_way: VecDeque<PacketId>,
    accepted: usize,
}

impl Load {
    fn publish(&mut self) {
        let payload = format!("{:0NUMBER_BYTES$}{}", self.next, "x".repeat(MESSAGE_BYTES));
        let packet_id = self.publisher.next_id();
        let publish = at_qos("kept", &payload, QoS::AtLeastOnce);
        self.publisher.send(&Packet::Publish(Publish { packet_id: Some(packet_id), ..publish }));
        self.under_way.push_back(packet_id);
        self.next += 1;
    }

    /// Waits for the next PUBACK. Returns true if it accepts the message.
    fn take(&mut self, broker: &BrokerProcess) -> bool {
        match self.publisher.try_receive(PATIENCE) {
            Ok(Packet::PubAck(ack)) => {
                assert_eq!(Some(ack.packet_id), self.under_way.pop_front());
                assert!([ReasonCode::Success, ReasonCode::QuotaExceeded].contains(&ack.reason), "{ack:?}");
                let is_accepted = ack.reason == ReasonCode::Success;
                self.accepted += usize::from(is_accepted);
                is_accepted
            }
            Err(Silence::TimedOut) => {
                panic!("no PUBACK after {} messages:\n{}", self.accepted, broker.log().all().join("\n"))
            }
            other => panic!("{other:?} instead of PUBACK"),
        }
    }
}
