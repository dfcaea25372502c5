//! PUBLISH.

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    DecodeError, PACKET_SIZE_MAX, Packet, PacketId, ProtocolVersion, Publish, PublishHeader, PublishTemplate, QoS,
    ReasonCode, TopicName, VARINT_MAX, WriteBuffer,
};

use ProtocolVersion::{V5, V311};

use crate::receiver::{Sender, decode, encode, receive};

#[test]
fn mqtt_3_3_1_4_qos_3_is_malformed() {
    for version in [V311, V5] {
        assert_eq!(receive(Sender::Client, version, &[0x36]), Err(DecodeError::QoSReserved));
        assert_eq!(receive(Sender::Server, version, &[0x3F]), Err(DecodeError::QoSReserved));
    }
    assert_eq!(DecodeError::QoSReserved.reason(), ReasonCode::MalformedPacket);
}

#[test]
fn mqtt_3_3_1_2_dup_at_qos_0_is_malformed() {
    for version in [V311, V5] {
        assert_eq!(receive(Sender::Client, version, &[0x38]), Err(DecodeError::DupAtQoS0));
    }
    assert_eq!(DecodeError::DupAtQoS0.reason(), ReasonCode::MalformedPacket);
}

#[test]
fn mqtt_2_1_4_oversized_packets_are_not_written() {
    let topic = TopicName::try_from("t").unwrap();
    let header = PublishHeader::default();
    // 3.1.1: two bytes of topic length, one of topic.
    for (payload_len, fits) in [(VARINT_MAX as usize - 3, true), (VARINT_MAX as usize - 2, false)] {
        let payload = Bytes::from(vec![0; payload_len]);
        let template = PublishTemplate::new(&topic, None, &payload, &mut BytesMut::new());
        let size = payload_len + 3 + 5;
        assert_eq!(template.encoded_len(&header, V311), size);
        assert_eq!(size <= PACKET_SIZE_MAX as usize, fits);

        let mut out = WriteBuffer::new();
        template.encode(&header, V311, &mut out);
        assert_eq!(out.len(), if fits { size } else { 0 });
        Packet::Publish(Publish::new(topic.clone(), payload)).encode(V311, &mut out);
        assert_eq!(out.len(), if fits { 2 * size } else { 0 });
    }
}

#[test]
fn template_size_equals_its_encoded_size() {
    let topic = TopicName::try_from("a/b").unwrap();
    for payload_len in [0, 1, 100, 120, 130, WriteBuffer::SHARE_FROM - 1, WriteBuffer::SHARE_FROM, 20_000] {
        // Old content of the scratch memory makes no difference.
        let mut block = BytesMut::from(&b"left over"[..]);
        let template = PublishTemplate::new(&topic, None, &Bytes::from(vec![1; payload_len]), &mut block);
        assert_eq!((template.topic(), template.payload().len()), (&b"a/b"[..], payload_len));
        for header in [
            PublishHeader::default(),
            PublishHeader { topic_alias: std::num::NonZeroU16::new(7), ..PublishHeader::default() },
            PublishHeader {
                dup: true,
                qos: QoS::AtLeastOnce,
                packet_id: PacketId::new(5),
                topic_alias: std::num::NonZeroU16::new(7),
                topic_is_aliased: true,
                subscription_identifiers: &[1, 128, VARINT_MAX],
                message_expiry_interval: Some(9),
                ..PublishHeader::default()
            },
        ] {
            for version in [V311, V5] {
                if header.topic_is_aliased && version == V311 {
                    continue;
                }
                let mut out = WriteBuffer::new();
                template.encode(&header, version, &mut out);
                assert_eq!(out.len(), template.encoded_len(&header, version));
                assert!(out.len() <= template.encoded_len_maximum(&header));
                let Ok(Packet::Publish(publish)) = decode(version, &out.to_bytes()) else { panic!() };
                assert_eq!(publish.payload.len(), payload_len);
                assert_eq!(publish.topic.is_empty(), header.topic_is_aliased);
                if version.is_v5() {
                    assert_eq!(publish.topic_alias, header.topic_alias);
                    assert_eq!(publish.subscription_identifiers, header.subscription_identifiers);
                }
            }
        }
    }
}

#[test]
fn long_list_of_subscription_identifiers_is_accepted() {
    let ids = (1..=60_000).collect::<Vec<u32>>();
    let publish = Publish {
        subscription_identifiers: ids.clone(),
        ..Publish::new(TopicName::try_from("t").unwrap(), Bytes::from_static(b"payload"))
    };
    let Ok(Packet::Publish(publish)) = decode(V5, &encode(&Packet::Publish(publish), V5)) else { panic!() };
    assert_eq!(publish.subscription_identifiers, ids);
}

#[test]
fn mqtt_4_7_3_3_topics_of_65_535_bytes_are_accepted() {
    for topic in ["/".repeat(65_535), "a".repeat(65_535)] {
        let name = TopicName::try_from(topic.as_str()).unwrap();
        let bytes = encode(&Packet::Publish(Publish::new(name.clone(), Bytes::new())), V5);
        let Ok(Packet::Publish(publish)) = decode(V5, &bytes) else { panic!() };
        assert_eq!(publish.topic, name);
    }
}
