//! Packets and TCP segments do not line up.

use tenbin_codec::{Connect, Packet, PacketId, PacketType, PingReq, Publish, QoS, ReasonCode, Subscribe, WriteBuffer};

use crate::support::{BrokerProcess, VERSIONS, at_qos, encode, message, number_of, subscription, text};

#[test]
fn many_packets_in_one_segment() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut out = WriteBuffer::new();
        let connect = Connect::new(version, text("hasty"));
        Packet::Connect(Box::new(connect)).encode(version, &mut out);
        let subscribe = Subscribe {
            packet_id: PacketId::new(1).expect("not 0"),
            subscription_identifier: None,
            user_properties: Vec::new(),
            subscriptions: vec![subscription("topic", QoS::AtMostOnce)],
        };
        Packet::Subscribe(subscribe).encode(version, &mut out);
        for number in 0..500 {
            Packet::Publish(message("topic", &number.to_string())).encode(version, &mut out);
        }
        Packet::PingReq(PingReq::PLAIN).encode(version, &mut out);

        let mut client = broker.open(version);
        client.send_bytes(&out.to_bytes());
        assert!(matches!(client.receive(), Packet::ConnAck(_)));
        client.wait_for(PacketType::PingResp);
        client.wait_for(PacketType::SubAck);
        let numbers: Vec<_> = (0..500).map(|_| number_of(&client.receive_publish())).collect();
        assert!(numbers.iter().copied().eq(0..500), "{numbers:?}");
    }
}

#[test]
fn one_packet_in_many_segments() {
    let broker = BrokerProcess::start(&[]);
    for version in VERSIONS {
        let mut client = broker.open(version);
        let connect = Packet::Connect(Box::new(Connect::new(version, text("slow"))));
        let id = PacketId::new(9).expect("not 0");
        let publish = Packet::Publish(Publish { packet_id: Some(id), ..at_qos("topic", "payload", QoS::AtLeastOnce) });
        for (packet, answer) in [(connect, PacketType::ConnAck), (publish, PacketType::PubAck)] {
            for byte in &encode(&packet, version)[..] {
                client.send_bytes(std::slice::from_ref(byte));
            }
            client.wait_for(answer);
        }
    }
}

#[test]
fn packets_before_an_illegal_packet_are_processed() {
    let broker = BrokerProcess::start(&[]);
    let mut subscriber = broker.v5("subscriber");
    subscriber.subscribe("topic", QoS::AtMostOnce);
    let mut client = broker.v5("client");
    let mut bytes = encode(&Packet::Publish(message("topic", "legal")), client.version()).to_vec();
    bytes.extend([0x36, 0x00]); // QoS 3
    client.send_bytes(&bytes);
    client.expect_end(ReasonCode::MalformedPacket);
    assert_eq!(subscriber.receive_message().payload, "legal");
}
