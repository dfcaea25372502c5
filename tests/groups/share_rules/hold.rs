//! Back-pressure: acknowledgements of publishers are held while a group backlog is too long.

use tenbin_codec::{Packet, PacketId, PacketType, PingReq, ProtocolVersion, Publish, QoS, UserProperty};

use crate::support::{BrokerProcess, ConfigFile, RawClient, lasting, number_of, share, text};

const TOPIC: &str = "work";
const MESSAGES: u16 = 40;

/// A worker that takes one message at a time, and needs 100 ms for it by its report.
fn worker(broker: &BrokerProcess) -> RawClient {
    let mut connect = lasting(ProtocolVersion::V5, "worker");
    connect.properties.user_properties = vec![UserProperty::new(text("concurrency"), text("1"))];
    let mut worker = broker.connect(connect);
    worker.subscribe(&share("group", TOPIC), QoS::ExactlyOnce);
    let report = r#"{"msgsInQueue":0,"processingTimePerMsg":100}"#;
    worker.send(&Packet::PingReq(PingReq::with_payload(report.into())));
    worker.wait_for(PacketType::PingResp);
    worker
}

fn publish_all(publisher: &mut RawClient, qos: QoS) {
    for number in 1..=MESSAGES {
        let topic = text(TOPIC).as_str().try_into().unwrap();
        let publish = Publish::new(topic, number.to_string().into());
        publisher.send(&Packet::Publish(Publish { qos, packet_id: PacketId::new(number), ..publish }));
    }
}

/// Counts the acknowledgements that precede the answers to pings. These are not held.
fn acknowledged(publisher: &mut RawClient) -> u16 {
    let mut acknowledged = 0;
    for _ in 0..2 {
        publisher.send(&Packet::PingReq(PingReq::default()));
        loop {
            match publisher.receive() {
                Packet::PubAck(_) | Packet::PubRec(_) => acknowledged += 1,
                Packet::PingResp => break,
                other => panic!("{other:?}"),
            }
        }
    }
    acknowledged
}

/// Waits for the acknowledgements of all messages after `first`, in order.
fn wait_for_rest(publisher: &mut RawClient, first: u16, qos: QoS) {
    let packet_type = if qos == QoS::AtLeastOnce { PacketType::PubAck } else { PacketType::PubRec };
    for number in first + 1..=MESSAGES {
        assert!(!publisher.wait_for_ack(packet_type, PacketId::new(number).unwrap()).is_error());
    }
}

#[test]
fn acknowledgements_are_held_while_the_backlog_is_too_long() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let file = ConfigFile::new("[[share]]\nhold_beyond_ms = 1000");
        let broker = BrokerProcess::start(&["--config", file.path()]);
        let mut worker = worker(&broker);
        let mut publisher = broker.v5("publisher");
        publish_all(&mut publisher, qos);
        let before = acknowledged(&mut publisher);
        assert!(before < MESSAGES, "{qos}: a backlog of four seconds");
        let mut other = broker.v5("other");
        assert!(!other.publish("elsewhere", "", qos).is_error(), "others are not held");
        assert!(!other.publish(TOPIC, "0", qos).is_error(), "nor those with few of the waiting messages");
        assert_eq!(acknowledged(&mut publisher), 0, "{qos}: the hold goes on");
        let got = (0..=MESSAGES).map(|_| number_of(&worker.receive_message()));
        let (few, many): (Vec<_>, Vec<_>) = got.partition(|number| *number == 0);
        assert_eq!(few.len(), 1, "{qos}");
        assert!(many.into_iter().eq(1..=usize::from(MESSAGES)), "{qos}");
        wait_for_rest(&mut publisher, before, qos);
    }
}

#[test]
fn nothing_is_held_without_a_connected_member() {
    let file = ConfigFile::new("[[share]]\nhold_beyond_ms = 1000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let worker = worker(&broker);
    let mut publisher = broker.v5("publisher");
    publish_all(&mut publisher, QoS::AtLeastOnce);
    let before = acknowledged(&mut publisher);
    assert!(before < MESSAGES);
    worker.cut();
    wait_for_rest(&mut publisher, before, QoS::AtLeastOnce);
}

#[test]
fn nothing_is_held_after_the_group_has_ended() {
    let file = ConfigFile::new("[[share]]\nhold_beyond_ms = 1000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut worker = worker(&broker);
    let mut publisher = broker.v5("publisher");
    publish_all(&mut publisher, QoS::AtLeastOnce);
    let before = acknowledged(&mut publisher);
    assert!(before < MESSAGES);
    worker.unsubscribe(&[&share("group", TOPIC)]);
    wait_for_rest(&mut publisher, before, QoS::AtLeastOnce);
}
