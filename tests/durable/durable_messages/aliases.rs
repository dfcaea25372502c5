//! Topic Aliases when some packets wait for the disk and others do not.

use std::collections::HashMap;

use tenbin_codec::{Ack, Packet, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{ConfigFile, DataDirectory, encode, lasting, share};

#[test]
fn mqtt_3_3_2_12_topic_alias_is_never_used_before_it_is_sent() {
    let directory = DataDirectory::new();
    let config = ConfigFile::new("[[share]]\nlate_binding = \"off\"\n");
    let broker = directory.start_with(&["--config", config.path()]);
    let mut connect = lasting(ProtocolVersion::V5, "receiver");
    connect.properties.topic_alias_maximum = Some(10);
    connect.properties.receive_maximum = std::num::NonZeroU16::new(WINDOW as u16);
    let mut receiver = broker.connect(connect);
    receiver.subscribe("first", QoS::AtLeastOnce);
    receiver.subscribe("both/+", QoS::ExactlyOnce);
    let group = share("g", "both/#");
    receiver.subscribe(&group, QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    for _ in 0..WINDOW {
        publisher.publish("first", "x", QoS::AtLeastOnce);
    }
    let first: Vec<_> = (0..WINDOW).map(|_| receiver.receive_publish()).collect();
    // The queued messages: the receiver's own, and the same ones again as the group's.
    for number in 0..WINDOW / 2 {
        publisher.publish(&format!("both/{number}"), &number.to_string(), QoS::ExactlyOnce);
    }
    assert_eq!(receiver.unsubscribe(&[&group]), [ReasonCode::Success]);
    let ids = first.iter().map(|publish| publish.packet_id.expect("QoS 1"));
    let acks = ids.map(|id| encode(&Packet::PubAck(Ack::new(id, ReasonCode::Success)), ProtocolVersion::V5));
    receiver.send_bytes(&acks.collect::<Vec<_>>().concat()); // one write, so that the broker sends them together
    let mut topics = HashMap::new();
    for _ in 0..WINDOW {
        let Publish { topic, payload, topic_alias, .. } = receiver.receive_publish();
        let expected = format!("both/{}", String::from_utf8_lossy(&payload));
        let alias = topic_alias.map(std::num::NonZeroU16::get);
        if topic.as_bytes().is_empty() {
            let alias = alias.expect("there is no topic");
            assert_eq!(topics.get(&alias), Some(&expected), "alias {alias} was not introduced");
        } else {
            topics.extend(alias.map(|alias| (alias, expected)));
        }
    }
    assert_eq!(topics.len(), WINDOW / 2);
}

const WINDOW: usize = 8;
