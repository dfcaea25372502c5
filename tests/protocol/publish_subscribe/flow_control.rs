//! Receive Maximum and Maximum Packet Size, both ways.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;
use tenbin_codec::{Ack, Connect, ConnectProperties, Packet, PacketType, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::support::{BrokerProcess, ConfigFile, QOS_ALL, RawClient, VERSIONS, at_qos, message, text};

#[test]
fn mqtt_3_3_4_9_unacknowledged_messages_stay_in_receive_maximum() {
    let broker = BrokerProcess::start(&[]);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut subscriber = with_receive_maximum(&broker, 2);
        subscriber.subscribe("topic", QoS::ExactlyOnce);
        let mut publisher = broker.v5("publisher");
        for payload in ["1", "2", "3", "4"] {
            publisher.publish("topic", payload, qos);
        }
        publisher.publish("topic", "passes", QoS::AtMostOnce);
        publisher.settle();

        let first = subscriber.receive_publish();
        let second = subscriber.receive_publish();
        assert_eq!((&first.payload[..], &second.payload[..]), (&b"1"[..], &b"2"[..]));
        assert_eq!(subscriber.receive_publish().payload, "passes", "[MQTT-4.9.0-3]");
        subscriber.expect_nothing_waiting();

        subscriber.acknowledge(&first);
        let third = subscriber.receive_publish();
        assert_eq!(third.payload, "3");
        subscriber.expect_nothing_waiting();
        subscriber.acknowledge(&third);
        subscriber.acknowledge(&second);
        assert_eq!(subscriber.receive_message().payload, "4");
    }
}

#[test]
fn mqtt_4_9_0_2_a_quota_is_free_again_after_a_refusal() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = with_receive_maximum(&broker, 1);
    subscriber.subscribe("topic", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    for (payload, qos) in [("1", QoS::AtLeastOnce), ("2", QoS::ExactlyOnce), ("3", QoS::AtLeastOnce)] {
        publisher.publish("topic", payload, qos);
    }
    let id = subscriber.receive_publish().packet_id.expect("QoS 1");
    subscriber.send(&Packet::PubAck(Ack::new(id, ReasonCode::UnspecifiedError)));
    let id = subscriber.receive_publish().packet_id.expect("QoS 2");
    subscriber.send(&Packet::PubRec(Ack::new(id, ReasonCode::QuotaExceeded)));
    assert_eq!(subscriber.receive_message().payload, "3");
}

#[test]
fn mqtt_3_3_4_7_exceeding_receive_maximum_disconnects() {
    let file = ConfigFile::new("[sessions]\nreceive_maximum = 3");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = Connect::new(ProtocolVersion::V5, text("hasty"));
    let (mut client, connack) = RawClient::connect(broker.address(), connect);
    assert_eq!(connack.properties.receive_maximum, NonZeroU16::new(3));
    for number in 1..=4 {
        let packet_id = Some(client.next_id());
        client.send(&Packet::Publish(Publish { packet_id, ..at_qos("topic", "payload", QoS::ExactlyOnce) }));
        if number <= 3 {
            client.wait_for(PacketType::PubRec);
        }
    }
    client.expect_end(ReasonCode::ReceiveMaximumExceeded);
}

#[test]
fn completed_handshakes_never_exceed_the_receive_maximum() {
    let file = ConfigFile::new("[sessions]\nreceive_maximum = 1");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let mut client = broker.v5("");
    for number in 0..20 {
        client.publish("topic", "payload", QOS_ALL[number % 3]);
    }
    client.settle();
}

#[test]
fn mqtt_3_1_2_24_and_25_oversized_message_frees_its_slot() {
    let broker = BrokerProcess::start(&[]);
    let properties = ConnectProperties {
        maximum_packet_size: NonZeroU32::new(64),
        receive_maximum: NonZeroU16::new(1),
        ..ConnectProperties::default()
    };
    let mut subscriber = broker.connect(Connect { properties, ..Connect::new(ProtocolVersion::V5, text("small")) });
    subscriber.subscribe("topic", QoS::ExactlyOnce);
    let mut other = broker.v5("large");
    other.subscribe("topic", QoS::ExactlyOnce);
    let mut publisher = broker.v5("publisher");
    let large = "x".repeat(64);
    for qos in QOS_ALL {
        publisher.publish("topic", &large, qos);
        publisher.publish("topic", "fits", qos);
        assert_eq!(subscriber.receive_message().payload, "fits", "QoS {qos}");
        assert_eq!(other.receive_message().payload, large, "QoS {qos}");
        assert_eq!(other.receive_message().payload, "fits", "QoS {qos}");
    }
    subscriber.expect_nothing_waiting();
}

#[test]
fn large_payloads_pass() {
    let broker = BrokerProcess::start(&[]);
    let payload: Bytes = (0..1 << 20).map(|number: u32| (number % 251) as u8).collect();
    for version in VERSIONS {
        let mut subscriber = broker.client(version, "subscriber");
        subscriber.subscribe("large", QoS::ExactlyOnce);
        let mut publisher = broker.client(version, "publisher");
        for qos in QOS_ALL {
            publisher.publish_with(Publish { qos, payload: payload.clone(), ..message("large", "") });
            assert!(subscriber.receive_message().payload == payload, "{version}, QoS {qos}");
        }
    }
}

#[test]
fn mqtt_3_2_2_15_oversized_packet_is_refused_at_its_header() {
    let file = ConfigFile::new("[connections]\npacket_bytes_maximum = 1000");
    let broker = BrokerProcess::start(&["--config", file.path()]);
    let connect = Connect::new(ProtocolVersion::V5, text("client"));
    let (mut client, connack) = RawClient::connect(broker.address(), connect);
    assert_eq!(connack.properties.maximum_packet_size, NonZeroU32::new(1000));
    client.subscribe("t", QoS::AtMostOnce);
    // 3 bytes of fixed header, 3 of topic, 1 of property length.
    client.publish("t", &"x".repeat(1000 - 7), QoS::AtMostOnce);
    assert_eq!(client.receive_message().payload.len(), 1000 - 7);
    client.send_bytes(&[0x30, 0xE6, 0x07]); // 1001 bytes in all
    client.expect_end(ReasonCode::PacketTooLarge);
}

fn with_receive_maximum(broker: &BrokerProcess, maximum: u16) -> RawClient {
    let properties = ConnectProperties { receive_maximum: NonZeroU16::new(maximum), ..ConnectProperties::default() };
    broker.connect(Connect { properties, ..Connect::new(ProtocolVersion::V5, text("subscriber")) })
}
