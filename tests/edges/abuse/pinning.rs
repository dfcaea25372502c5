//! Small objects that could pin large buffers.

use bytes::Bytes;
use tenbin_codec::{Connect, Packet, PacketType, ProtocolVersion, Publish, QoS, Text, UserProperty, Will, WriteBuffer};

use crate::abuse::growth::Growth;
use crate::support::{BrokerProcess, at_qos, lasting, message, text, topic};

/// 300 messages of 5 KB for a receiver that never acknowledges, each between two of 1 MB without a receiver: growth ≤
/// 48 MiB.
#[test]
fn messages_in_flight_do_not_pin_large_read_buffers() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    client.subscribe("small", QoS::AtLeastOnce);
    let mut publisher = broker.v5("publisher");
    let large = Publish { payload: Bytes::from(vec![7; 1_000_000]), ..message("nobody", "") };
    let small = at_qos("small", &"x".repeat(5000), QoS::AtLeastOnce);
    for number in 0..300 {
        let packet_id = Some(publisher.next_id());
        let mut out = WriteBuffer::new();
        for publish in [large.clone(), Publish { packet_id, ..small.clone() }, large.clone()] {
            Packet::Publish(publish).encode(ProtocolVersion::V5, &mut out);
        }
        publisher.send_bytes(&out.to_bytes());
        publisher.wait_for(PacketType::PubAck);
        assert_eq!(client.receive_publish().payload.len(), 5000);
        if number % 10 == 0 {
            growth.look();
        }
    }
    growth.assert_within(48, "300 messages in flight beside 600 MB");
    drop(client);
    let mut client = broker.connect(lasting(ProtocolVersion::V5, "client"));
    for _ in 0..300 {
        assert!(client.receive_message().dup);
    }
}

/// 300 clients, each with a Will of a byte in a CONNECT of 200 KB: growth ≤ 24 MiB.
#[test]
fn wills_do_not_pin_their_connect_packets() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let value = text(&"x".repeat(50_000));
    let clients = (0..300).map(|number| {
        let mut connect = Connect::new(ProtocolVersion::V5, text(&format!("client-{number}")));
        connect.properties.user_properties = vec![UserProperty::new(Text::EMPTY, value.clone()); 4];
        connect.will = Some(Will {
            qos: QoS::AtMostOnce,
            retain: false,
            topic: topic("w"),
            payload: "x".into(),
            delay_interval: None,
            properties: None,
        });
        broker.connect(connect)
    });
    let clients = clients.collect::<Vec<_>>();
    growth.assert_within(24, "300 wills beside 60 MB");
    drop(clients);
}

/// 200 subscriptions of a few bytes, each in a SUBSCRIBE of 200 KB: growth ≤ 16 MiB.
#[test]
fn subscriptions_do_not_pin_their_packets() {
    let broker = BrokerProcess::start(&[]);
    let mut growth = Growth::of(&broker);
    let mut client = broker.v5("client");
    let value = text(&"x".repeat(50_000));
    for number in 0..200 {
        let packet_id = client.next_id();
        client.send(&Packet::Subscribe(tenbin_codec::Subscribe {
            packet_id,
            subscription_identifier: None,
            user_properties: vec![UserProperty::new(Text::EMPTY, value.clone()); 4],
            subscriptions: vec![
                crate::support::subscription(&format!("t/{number}"), QoS::AtMostOnce),
                crate::support::subscription(&format!("$share/g{number}/t/+"), QoS::AtMostOnce),
            ],
        }));
        client.wait_for(PacketType::SubAck);
    }
    growth.assert_within(16, "400 subscriptions in 40 MB");
}
