//! Messages of ended sessions: discarded, and soon removed from the disk.

use std::path::Path;
use std::time::{Duration, Instant};

use tenbin_codec::{Connect, ConnectProperties, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{DataDirectory, PATIENCE, RawClient, at_qos, lasting, text};

/// Published messages, each queued for all sessions.
const MESSAGES: usize = 2600;
const MESSAGE_BYTES: usize = 60_000;
/// Messages in flight.
const WINDOW: usize = 20;
/// More than the log keeps in reserve, less than the published bytes.
const LITTLE: u64 = 160 << 20;

#[test]
fn messages_of_ended_sessions_free_their_disk_space() {
    let config = super::roomy("");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    for client in ["ended", "expired", "expired meanwhile"] {
        let mut receiver = broker.connect(lasting(ProtocolVersion::V5, client));
        receiver.subscribe("topic", QoS::AtLeastOnce);
        receiver.disconnect();
    }
    let mut publisher = broker.v5("publisher");
    (0..MESSAGES / WINDOW).for_each(|_| publish_some(&mut publisher));
    let taken = bytes_below(&directory.path().join("spool"));
    assert!(taken > (MESSAGES * MESSAGE_BYTES) as u64, "{taken} bytes on the disk for messages that wait");

    broker.connect(Connect::new(ProtocolVersion::V5, text("ended"))).disconnect();
    broker.connect(expiring("expired", 1)).disconnect();
    broker.connect(expiring("expired meanwhile", 3)).disconnect();
    std::thread::sleep(Duration::from_millis(1100));
    drop(broker);
    std::thread::sleep(Duration::from_millis(2000));
    let broker = directory.start_with(&["--config", config.path()]);
    let until = Instant::now() + PATIENCE;
    while bytes_below(&directory.path().join("spool")) > LITTLE {
        let taken = bytes_below(&directory.path().join("spool"));
        assert!(Instant::now() < until, "{taken} bytes on the disk for nobody");
        std::thread::sleep(Duration::from_millis(50));
    }
    for client in ["ended", "expired", "expired meanwhile"] {
        let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, client));
        assert!(!connack.session_present, "{client}");
        receiver.subscribe("topic", QoS::AtLeastOnce);
        receiver.expect_nothing_waiting();
    }
}

#[test]
fn delivered_messages_free_their_disk_space() {
    let config = super::roomy("");
    let directory = DataDirectory::new();
    let broker = directory.start_with(&["--config", config.path()]);
    let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
    receiver.subscribe("topic", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..MESSAGES / WINDOW {
        publish_some(&mut publisher);
        (0..WINDOW).for_each(|_| drop(receiver.receive_message()));
    }
    receiver.disconnect();
    let until = Instant::now() + PATIENCE;
    let spool = directory.path().join("spool");
    assert!(spool.exists(), "messages of sessions that last go to the disk");
    while bytes_below(&spool) > LITTLE {
        assert!(Instant::now() < until, "{} bytes on the disk for nobody", bytes_below(&spool));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Publishes [`WINDOW`] messages and waits for their acknowledgements.
fn publish_some(publisher: &mut RawClient) {
    let ids: Vec<_> = (0..WINDOW).map(|_| publisher.next_id()).collect();
    for &id in &ids {
        let publish = Publish { payload: vec![b'x'; MESSAGE_BYTES].into(), ..at_qos("topic", "", QoS::AtLeastOnce) };
        publisher.send(&Packet::Publish(Publish { packet_id: Some(id), ..publish }));
    }
    for id in ids {
        assert_eq!(publisher.wait_for_ack(PacketType::PubAck, id), ReasonCode::Success);
    }
}

/// CONNECT that resumes a session, with this Session Expiry Interval.
fn expiring(client_id: &str, seconds: u32) -> Connect {
    let properties = ConnectProperties { session_expiry_interval: Some(seconds), ..ConnectProperties::default() };
    Connect { properties, ..lasting(ProtocolVersion::V5, client_id) }
}

/// Bytes of the files below a directory. A file that is removed during the count counts as 0.
fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().map_while(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}
