//! In-flight messages on topics that a reload forbids.

use std::fs;

use tenbin_codec::{Ack, Packet, PacketType, ProtocolVersion, QoS, ReasonCode};

use super::support::{BrokerProcess, ConfigFile, DataDirectory, PATIENCE, RawClient, lasting};

const ALL: &str = "[[acl]]\nallow = \"all\"\ntopic = \"#\"\n";
const OTHERS: &str = "[[acl]]\nallow = \"all\"\ntopic = \"other/#\"\n[[acl]]\nallow = \"all\"\ntopic = \"all/#\"\n";

#[test]
fn mqtt_4_3_3_6_abandoned_message_is_not_resent_after_a_kill() {
    for is_connected in [false, true] {
        let config = ConfigFile::new(ALL);
        let arguments = ["--config", config.path()];
        let directory = DataDirectory::new();
        let broker = directory.start_with(&arguments);
        let mut receiver = broker.connect(lasting(ProtocolVersion::V5, "receiver"));
        receiver.subscribe("#", QoS::ExactlyOnce);
        let mut publisher = broker.v5("publisher");
        let sent = ["all/1", "given/up"].map(|topic| {
            publisher.publish(topic, "x", QoS::ExactlyOnce);
            receiver.receive_publish()
        });
        receiver.cut();
        let mut narrow = lasting(ProtocolVersion::V5, "receiver");
        narrow.properties.receive_maximum = std::num::NonZeroU16::new(1);
        // The second message waits behind the first one to be resent, or for the client to connect.
        let receiver = is_connected.then(|| {
            let mut receiver = broker.connect(narrow);
            assert_eq!(receiver.receive_publish().packet_id, sent[0].packet_id);
            receiver
        });
        reload(&broker, &config, OTHERS);
        let id = sent[1].packet_id.expect("QoS 2");
        if let Some(mut receiver) = receiver {
            assert_eq!(receiver.wait_for_ack(PacketType::PubRel, id), ReasonCode::Success);
            // PUBREL was sent, so the change is durable and the kill may come at once.
            drop(broker);
        } else {
            // This message is behind the change in the same log: its PUBACK shows that both are durable.
            publisher.publish("other/1", "x", QoS::AtLeastOnce);
            drop(broker);
        }
        fs::write(config.path(), ALL).expect("ours to write");
        let broker = directory.start_with(&arguments);
        let (mut receiver, connack) = RawClient::connect(broker.address(), lasting(ProtocolVersion::V5, "receiver"));
        assert!(connack.session_present);
        assert_eq!(receiver.wait_for_ack(PacketType::PubRel, id), ReasonCode::Success, "connected: {is_connected}");
        receiver.send(&Packet::PubComp(Ack::new(id, ReasonCode::Success)));
        let again = receiver.receive_publish();
        assert_eq!((again.packet_id, again.dup), (sent[0].packet_id, true));
    }
}

fn reload(broker: &BrokerProcess, config: &ConfigFile, rules: &str) {
    fs::write(config.path(), rules).expect("ours to write");
    broker.signal("HUP");
    broker.log().wait_for(&["reloaded"], PATIENCE);
}
