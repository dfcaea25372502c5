//! QoS 1 and 2 messages without room: refused, never dropped silently.

use tenbin_codec::{Connect, ProtocolVersion, QoS, ReasonCode};

use super::{Figures, narrow, numbered, publish_all, receive};
use crate::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, lasting, text};

#[test]
fn full_queue_refuses_messages_until_there_is_room() {
    let on_disk = ConfigFile::new("[store]\nqueue_bytes_maximum = 20000\n[sys]\ninterval_seconds = 1\n");
    let in_memory = ConfigFile::new("[queue]\nmessages_maximum = 20\n[sys]\ninterval_seconds = 1\n");
    let by_bytes = ConfigFile::new("[queue]\nbytes_maximum = 20000\n[sys]\ninterval_seconds = 1\n");
    let directory = DataDirectory::new();
    refuses(&directory.start_with(&["--config", on_disk.path()]));
    for config in [in_memory, by_bytes] {
        refuses(&BrokerProcess::start(&["--config", config.path(), "--ephemeral"]));
    }
}

fn refuses(broker: &BrokerProcess) {
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "away"));
    receiver.subscribe("topic", QoS::ExactlyOnce);
    receiver.disconnect();
    let mut publisher = broker.v5("publisher");
    let mut publish = |number| publisher.publish_with(numbered("topic", number, 1000, QoS::ExactlyOnce));
    let taken = (0..100).take_while(|&number| publish(number) == ReasonCode::Success).count();
    assert!((15..=25).contains(&taken), "{taken}");
    assert_eq!(publish(100), ReasonCode::QuotaExceeded);
    assert_eq!(publish(101), ReasonCode::QuotaExceeded);
    broker.log().wait_for(&["away", "are refused"], PATIENCE);

    Figures::of(broker).wait_for("publish/messages/refused/over_quota", |refused| refused >= 2);
    let (mut receiver, _) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "away"));
    assert_eq!(receive(&mut receiver, taken), (0..taken).collect::<Vec<_>>());
    receiver.expect_nothing_waiting();
    assert_eq!(publish(102), ReasonCode::Success);
    assert_eq!(receive(&mut receiver, 1), [102]);
}

#[test]
fn full_group_refuses_messages_until_there_is_room() {
    let on_disk = ConfigFile::new("[store]\nqueue_bytes_maximum = 20000\n");
    let directory = DataDirectory::new();
    refuses_for_a_group(&directory.start_with(&["--config", on_disk.path()]));
    for bound in ["messages_maximum = 20", "bytes_maximum = 20000"] {
        let config = ConfigFile::new(&format!("[queue]\n{bound}\n"));
        refuses_for_a_group(&BrokerProcess::start(&["--config", config.path(), "--ephemeral"]));
    }
}

fn refuses_for_a_group(broker: &BrokerProcess) {
    let mut member = broker.connect(lasting(ProtocolVersion::V5, "away"));
    member.subscribe("$share/group/topic", QoS::AtLeastOnce);
    member.disconnect();
    let mut publisher = broker.v5("publisher");
    let mut publish = |number| publisher.publish_with(numbered("topic", number, 1000, QoS::AtLeastOnce));
    let taken = (0..200).take_while(|&number| publish(number) == ReasonCode::Success).count();
    assert!((15..=90).contains(&taken), "64 KiB are in memory beside what is on disk: {taken}");
    assert_eq!(publish(200), ReasonCode::QuotaExceeded);
    let (mut member, _) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "away"));
    assert_eq!(receive(&mut member, taken), (0..taken).collect::<Vec<_>>());
    member.expect_nothing_waiting();
    assert_eq!(publish(201), ReasonCode::Success);
    assert_eq!(receive(&mut member, 1), [201]);
}

#[test]
fn connected_receiver_without_disk_is_limited_to_its_queue() {
    let config =
        ConfigFile::new("[queue]\nmessages_maximum = 20\nwhen_full = \"spool\"\n[sys]\ninterval_seconds = 1\n");
    let broker = BrokerProcess::start(&["--config", config.path(), "--ephemeral"]);
    let mut receiver = broker.connect(narrow(Connect::new(ProtocolVersion::V5, text("connected")), 1));
    receiver.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let mut publish = |number| publisher.publish_with(numbered("topic", number, 1000, QoS::AtLeastOnce));
    let taken = (0..100).take_while(|&number| publish(number) == ReasonCode::Success).count();
    assert!((20..=22).contains(&taken), "one is under way: {taken}");
    assert_eq!(publish(100), ReasonCode::QuotaExceeded);
    assert_eq!(receive(&mut receiver, taken), (0..taken).collect::<Vec<_>>());
    receiver.expect_nothing_waiting();
    assert_eq!(publish(101), ReasonCode::Success);
    assert_eq!(receive(&mut receiver, 1), [101]);
}

#[test]
fn transient_receiver_with_disk_may_exceed_its_queue() {
    let config =
        ConfigFile::new("[queue]\nmessages_maximum = 20\n[store]\nsync = \"never\"\n[sys]\ninterval_seconds = 1\n");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let mut receiver = broker.connect(narrow(Connect::new(ProtocolVersion::V5, text("connected")), 1));
    receiver.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    // All in one write: the slow-consumer monitor cannot run in between.
    let messages = (0..500).map(|number| numbered("topic", number, 100, QoS::AtLeastOnce)).collect();
    assert!(publish_all(&mut publisher, messages).iter().all(|reason| *reason == ReasonCode::Success));
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages > 200);
    assert_eq!(receive(&mut receiver, 500), (0..500).collect::<Vec<_>>());
    receiver.expect_nothing_waiting();
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages == 0);
    // Messages still queued when the receiver disconnects are discarded.
    let messages = (0..500).map(|number| numbered("topic", number, 100, QoS::AtLeastOnce)).collect();
    publish_all(&mut publisher, messages);
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages > 200);
    receiver.disconnect();
    Figures::of(&broker).wait_for("spooling/messages", |messages| messages == 0);
}
