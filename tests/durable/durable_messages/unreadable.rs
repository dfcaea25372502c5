//! Messages that cannot be read, for a while or for good.

use std::fs;
use std::path::{Path, PathBuf};

use tenbin_codec::{ProtocolVersion, QoS, ReasonCode};
use tenbin_store::spool::{Limit, Messages, Options, Place, QueueId, Sequence, Spool};

use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, lasting, share};

#[test]
fn session_queue_is_delivered_after_a_transient_read_error() {
    let directory = DataDirectory::new();
    let broker = directory.start();
    left_waiting(&broker, 0..3);
    let hidden = Hidden::from(directory.path());
    let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "receiver"));
    assert!(connack.session_present);
    broker.log().wait_for(&["messages of the session cannot be read"], PATIENCE);
    receiver.settle();
    hidden.come_back();
    for number in 0..3 {
        assert_eq!(receiver.receive_message().payload, number.to_string());
    }
    receiver.expect_nothing_waiting();
}

#[test]
fn group_backlog_survives_transient_read_error() {
    let directory = DataDirectory::new();
    let mut broker = directory.start();
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
    member.subscribe(&share("workers", "waits"), QoS::AtLeastOnce);
    member.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in 0..3 {
        assert_eq!(publisher.publish("waits", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
    drop(publisher);
    stop(&mut broker);
    let broker = directory.start(); // starts with no message in memory
    let hidden = Hidden::from(directory.path());
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "member"));
    broker.log().wait_for(&["messages of the share group cannot be read"], PATIENCE);
    member.settle();
    hidden.come_back();
    for number in 0..3 {
        assert_eq!(member.receive_message().payload, number.to_string());
    }
    member.expect_nothing_waiting();
}

#[test]
fn undecodable_messages_are_skipped_and_kept() {
    let directory = DataDirectory::new();
    let mut broker = directory.start();
    left_waiting(&broker, 0..2);
    stop(&mut broker);
    let spool = directory.path().join("spool");
    let (log, _) = Spool::open(&spool, Options::default()).expect("the broker is gone");
    let queue = log.queues()[0];
    let Some((_, Sequence(last))) = log.queue(queue).and_then(|content| content.ends) else { panic!("it has two") };
    let room = log.take_room(1_000, false).expect("the disk has room");
    let mut batch = log.begin();
    // More entries than one read returns, behind two readable ones.
    for sequence in last + 1..=last + UNREADABLE {
        let place = Place { queue, sequence: Sequence(sequence) };
        batch.message(&room, &[(place, b"")], None, &[b"\xff of a later version"]).expect("small");
    }
    drop(batch);
    log.give_room(room);
    drop(log);

    let unbounded = ConfigFile::new("[log]\nlines_per_second = 0");
    let mut broker = directory.start_with(&["--config", unbounded.path()]);
    let mut publisher = broker.v5("publisher");
    assert_eq!(publisher.publish("waits", "2", QoS::AtLeastOnce), ReasonCode::Success);
    for _ in 0..2 {
        let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "receiver"));
        assert!(connack.session_present);
        for number in 0..3 {
            assert_eq!(receiver.receive_message().payload, number.to_string());
        }
        receiver.expect_nothing_waiting();
        receiver.disconnect();
        for number in 0..3 {
            publisher.publish("waits", &number.to_string(), QoS::AtLeastOnce);
        }
    }
    broker.log().count("stays on disk", UNREADABLE as usize, PATIENCE);
    let said = broker.log().all().into_iter().filter(|line| line.contains("stays on disk")).collect::<Vec<_>>();
    assert_eq!(said.len(), UNREADABLE as usize, "once each: {}", said.join("\n"));
    for sequence in last + 1..=last + UNREADABLE {
        let place = format!("place={sequence} ");
        assert!(said.iter().any(|line| line.contains(&place) && line.contains("queue=")), "{place}");
    }
    stop(&mut broker);
    let (log, _) = Spool::open(&spool, Options::default()).expect("the broker is gone");
    let kept: Vec<_> = (last + 1..=last + UNREADABLE).collect();
    assert_eq!(waiting_from(&log, queue, last + 1)[..kept.len()], kept);
}

/// The log's files, moved to names that the broker does not look for.
struct Hidden(Vec<(PathBuf, PathBuf)>);

impl Hidden {
    fn from(directory: &Path) -> Self {
        let hidden = directory.join("hidden");
        fs::create_dir(&hidden).expect("ours to write");
        let to = |path: &Path| hidden.join(path.file_name().expect("a file's path"));
        let moved: Vec<_> = segments(directory).into_iter().map(|path| (to(&path), path)).collect();
        moved.iter().for_each(|(to, from)| fs::rename(from, to).expect("ours to write"));
        Self(moved)
    }

    fn come_back(self) {
        self.0.iter().for_each(|(to, from)| fs::rename(to, from).expect("ours to write"));
    }
}

/// Queues numbered messages for an offline receiver.
fn left_waiting(broker: &BrokerProcess, numbers: std::ops::Range<usize>) {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("waits", QoS::AtLeastOnce);
    receiver.disconnect();
    let mut publisher = broker.v5("publisher");
    for number in numbers {
        assert_eq!(publisher.publish("waits", &number.to_string(), QoS::AtLeastOnce), ReasonCode::Success);
    }
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("spool")).expect("ours to read");
    let paths = entries.map(|entry| entry.expect("ours to read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

fn stop(broker: &mut BrokerProcess) {
    broker.signal("TERM");
    assert!(broker.wait_for_exit(PATIENCE).success());
}

fn waiting_from(log: &Spool, queue: QueueId, from: u64) -> Vec<u64> {
    let mut messages = Messages::default();
    let limit = Limit { messages: usize::MAX, bytes: usize::MAX };
    log.read(queue, Sequence(from), limit, &mut messages).expect("it is whole");
    messages.iter().map(|message| message.sequence.0).collect()
}

const UNREADABLE: u64 = 300;
