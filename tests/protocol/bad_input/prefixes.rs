//! Every packet cut off at every byte.

use bytes::Bytes;
use tenbin_codec::{
    Connect, ConnectProperties, MessageProperties, Packet, PacketId, PingReq, ProtocolVersion, Publish, QoS, Subscribe,
    UserProperty, Will,
};

use crate::support::{BrokerProcess, VERSIONS, at_qos, encode, filter, subscription, text, topic};

#[test]
fn a_connection_may_end_at_any_byte() {
    let broker = BrokerProcess::start(&[]);
    let mut bystander = broker.v5("bystander");
    bystander.subscribe("topic", QoS::AtLeastOnce);
    for version in VERSIONS {
        let connect = encode(&connect(version), version);
        for end in 0..connect.len() {
            broker.open(version).send_bytes(&connect[..end]);
        }
        let plain = encode(&Packet::Connect(Box::new(Connect::new(version, text("cut")))), version);
        for packet in
            [publish(), subscribe(), unsubscribe(), PingReq::with_payload(Bytes::from_static(b"{}")).into_packet()]
        {
            let packet = encode(&packet, version);
            for end in 0..packet.len() {
                let mut client = broker.open(version);
                client.send_bytes(&[&plain, &packet[..end]].concat());
                assert!(matches!(client.receive(), Packet::ConnAck(_)));
            }
        }
    }
    assert_eq!(bystander.drain_payloads(), Vec::<String>::new(), "half a message was delivered");
    bystander.publish("topic", "whole", QoS::AtLeastOnce);
    assert_eq!(bystander.drain_payloads(), ["whole"]);
    broker.assert_serves();
}

#[test]
fn truncated_packets_are_malformed() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        for packet in [publish(), subscribe(), unsubscribe()] {
            let packet = encode(&packet, version);
            let body = &packet[2..];
            assert!(body.len() < 128, "one byte of Remaining Length");
            // The payload of PUBLISH may have any length.
            let needed = body.len() - if matches!(packet[0] >> 4, 3) { "payload".len() } else { 0 };
            for length in 0..needed {
                let mut client = broker.client(version, "short");
                client.send_bytes(&[&[packet[0], length as u8], &body[..length]].concat());
                match client.receive_or_end() {
                    None => assert!(!version.is_v5()),
                    Some(Packet::Disconnect(disconnect)) => assert!(disconnect.reason.is_error()),
                    // Cut after its first filter.
                    Some(other) => assert!(matches!(other, Packet::SubAck(_) | Packet::UnsubAck(_)), "{other:?}"),
                }
            }
        }
    }
    broker.assert_serves();
}

fn connect(version: ProtocolVersion) -> Packet {
    let properties = MessageProperties { content_type: Some(text("text")), ..MessageProperties::default() };
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: topic("topic"),
        payload: Bytes::from_static(b"will"),
        delay_interval: Some(1),
        properties: properties.boxed(),
    };
    Packet::Connect(Box::new(Connect {
        will: Some(will),
        user_name: Some(text("user")),
        password: Some("secret".into()),
        properties: ConnectProperties {
            session_expiry_interval: Some(10),
            user_properties: vec![UserProperty::new(text("name"), text("value"))],
            ..ConnectProperties::default()
        },
        ..Connect::new(version, text("cut"))
    }))
}

fn publish() -> Packet {
    let properties = MessageProperties {
        message_expiry_interval: Some(10),
        response_topic: Some(text("reply")),
        user_properties: vec![UserProperty::new(text("name"), text("value"))],
        ..MessageProperties::default()
    };
    let packet_id = PacketId::new(1);
    Packet::Publish(Publish {
        packet_id,
        properties: properties.boxed(),
        ..at_qos("topic", "payload", QoS::ExactlyOnce)
    })
}

fn subscribe() -> Packet {
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::new(1).expect("not 0"),
        subscription_identifier: Some(200),
        user_properties: Vec::new(),
        subscriptions: vec![subscription("a/+", QoS::AtLeastOnce), subscription("$share/g/a", QoS::ExactlyOnce)],
    })
}

fn unsubscribe() -> Packet {
    Packet::Unsubscribe(tenbin_codec::Unsubscribe {
        packet_id: PacketId::new(1).expect("not 0"),
        user_properties: Vec::new(),
        filters: vec![filter("a/+"), filter("b")],
    })
}

trait IntoPacket {
    fn into_packet(self) -> Packet;
}

impl IntoPacket for PingReq {
    fn into_packet(self) -> Packet {
        Packet::PingReq(self)
    }
}
