//! Messages written by hand from the specification, and damaged ones.

use std::collections::HashSet;

use tenbin_sn_codec::v1_2::{
    Advertise, Auth, Connect, Disconnect, GwInfo, Message, MessageId, MessageType, PingReq, PubAck, Publish, QoS,
    RegAck, Register, ReturnCode, SearchGw, ShortName, SubAck, Subscribe, Subscribed, Topic, Unsubscribe, WillTopic,
};
use tenbin_sn_codec::{DecodeError, Forwarded};

fn id(id: u16) -> MessageId {
    MessageId::new(id).expect("not 0")
}

fn short(name: &str) -> ShortName {
    ShortName::new(name).expect("two bytes")
}

/// Bytes and message, at least one of each type.
fn vectors() -> Vec<(&'static [u8], Message<'static>)> {
    let publish =
        Publish { dup: false, qos: None, retain: false, topic: Topic::Normal(0), message_id: None, data: b"" };
    vec![
        (b"\x05\x00\x07\x03\x84", Message::Advertise(Advertise { gateway_id: 7, duration: 900 })),
        (b"\x03\x01\x02", Message::SearchGw(SearchGw { radius: 2 })),
        (b"\x03\x02\x07", Message::GwInfo(GwInfo { gateway_id: 7, address: b"" })),
        (b"\x07\x02\x07\x7F\0\0\x01", Message::GwInfo(GwInfo { gateway_id: 7, address: &[127, 0, 0, 1] })),
        (
            b"\x0C\x04\x0C\x01\x00\x3Cclient",
            Message::Connect(Connect { will: true, clean_session: true, duration: 60, client_id: "client" }),
        ),
        (
            b"\x06\x04\x00\x01\xFF\xFF",
            Message::Connect(Connect { will: false, clean_session: false, duration: 65_535, client_id: "" }),
        ),
        (b"\x03\x05\x00", Message::ConnAck(ReturnCode::Accepted)),
        (b"\x03\x05\x03", Message::ConnAck(ReturnCode::NotSupported)),
        (b"\x02\x06", Message::WillTopicReq),
        (b"\x06\x07\x30a/b", Message::WillTopic(Some(WillTopic { qos: QoS::AtLeastOnce, retain: true, topic: "a/b" }))),
        (b"\x02\x07", Message::WillTopic(None)),
        (b"\x02\x08", Message::WillMsgReq),
        (b"\x06\x09gone", Message::WillMsg(b"gone")),
        (b"\x02\x09", Message::WillMsg(b"")),
        (
            b"\x09\x0A\x00\x00\x00\x05a/b",
            Message::Register(Register { topic_id: 0, message_id: Some(id(5)), topic: "a/b" }),
        ),
        (
            b"\x07\x0B\x01\x02\x00\x05\x00",
            Message::RegAck(RegAck { topic_id: 0x0102, message_id: Some(id(5)), code: ReturnCode::Accepted }),
        ),
        (
            b"\x09\x0C\xF0\x00\x01\x00\x09hi",
            // All QoS bits, and DUP: QoS -1.
            Message::Publish(Publish {
                dup: true,
                retain: true,
                topic: Topic::Normal(1),
                message_id: Some(id(9)),
                data: b"hi",
                ..publish
            }),
        ),
        (
            b"\x09\x0C\x21\x00\x01\x00\x09hi",
            Message::Publish(Publish {
                qos: Some(QoS::AtLeastOnce),
                topic: Topic::Predefined(1),
                message_id: Some(id(9)),
                data: b"hi",
                ..publish
            }),
        ),
        (
            b"\x07\x0C\x42ab\x12\x34",
            Message::Publish(Publish {
                qos: Some(QoS::ExactlyOnce),
                topic: Topic::Short(short("ab")),
                message_id: Some(id(0x1234)),
                ..publish
            }),
        ),
        (
            b"\x07\x0C\x03\x00\x07\x00\x00",
            Message::Publish(Publish { qos: Some(QoS::AtMostOnce), topic: Topic::Reserved(7), ..publish }),
        ),
        (
            b"\x07\x0D\x00\x01\x00\x09\x02",
            Message::PubAck(PubAck { topic_id: 1, message_id: Some(id(9)), code: ReturnCode::InvalidTopicId }),
        ),
        (
            b"\x07\x0D\x00\x01\x00\x00\x01",
            Message::PubAck(PubAck { topic_id: 1, message_id: None, code: ReturnCode::Congestion }),
        ),
        (b"\x0E\x03\x00\x05PLAIN\x00u\x00pw", Message::Auth(Auth { reason: 0, method: "PLAIN", data: b"\x00u\x00pw" })),
        (b"\x04\x0E\x00\x09", Message::PubComp(id(9))),
        (b"\x04\x0F\x00\x09", Message::PubRec(id(9))),
        (b"\x04\x10\x00\x09", Message::PubRel(id(9))),
        (
            b"\x08\x12\xA0\x00\x06a/#",
            Message::Subscribe(Subscribe {
                dup: true,
                qos: QoS::AtLeastOnce,
                message_id: id(6),
                topic: Subscribed::Name("a/#"),
            }),
        ),
        (
            b"\x07\x12\x41\x00\x06\x00\x02",
            Message::Subscribe(Subscribe {
                dup: false,
                qos: QoS::ExactlyOnce,
                message_id: id(6),
                topic: Subscribed::Predefined(2),
            }),
        ),
        (
            b"\x07\x12\x02\x00\x06ab",
            Message::Subscribe(Subscribe {
                dup: false,
                qos: QoS::AtMostOnce,
                message_id: id(6),
                topic: Subscribed::Short(short("ab")),
            }),
        ),
        (
            b"\x08\x13\x20\x00\x01\x00\x06\x00",
            Message::SubAck(SubAck {
                qos: QoS::AtLeastOnce,
                topic_id: 1,
                message_id: id(6),
                code: ReturnCode::Accepted,
            }),
        ),
        (
            b"\x08\x14\x00\x00\x07a/b",
            Message::Unsubscribe(Unsubscribe { message_id: id(7), topic: Subscribed::Name("a/b") }),
        ),
        (
            b"\x07\x14\x01\x00\x07\x00\x02",
            Message::Unsubscribe(Unsubscribe { message_id: id(7), topic: Subscribed::Predefined(2) }),
        ),
        (b"\x04\x15\x00\x07", Message::UnsubAck(id(7))),
        (b"\x02\x16", Message::PingReq(PingReq { client_id: None })),
        (b"\x08\x16client", Message::PingReq(PingReq { client_id: Some("client") })),
        (b"\x02\x17", Message::PingResp),
        (b"\x02\x18", Message::Disconnect(Disconnect { duration: None })),
        (b"\x04\x18\x0E\x10", Message::Disconnect(Disconnect { duration: Some(3600) })),
        (
            b"\x06\x1A\x50a/b",
            Message::WillTopicUpd(Some(WillTopic { qos: QoS::ExactlyOnce, retain: true, topic: "a/b" })),
        ),
        (b"\x02\x1A", Message::WillTopicUpd(None)),
        (b"\x03\x1B\x00", Message::WillTopicResp(ReturnCode::Accepted)),
        (b"\x06\x1Cgone", Message::WillMsgUpd(b"gone")),
        (b"\x03\x1D\x01", Message::WillMsgResp(ReturnCode::Congestion)),
    ]
}

#[test]
fn messages_of_the_specification_have_these_bytes() {
    let mut types = HashSet::new();
    for (bytes, message) in vectors() {
        let mut out = b"before".to_vec();
        message.encode(&mut out);
        assert_eq!(&out[6..], bytes, "{message:?}");
        assert_eq!(Message::decode(bytes), Ok(message));
        types.insert(message.message_type());
    }
    assert_eq!(types.len(), MessageType::ALL.len(), "an example of each type");
}

#[test]
fn plain_credentials_are_user_name_and_password() {
    let data = Auth::plain_data("plant", b"a\0b");
    let auth = |method, data| Auth { reason: 0, method, data };
    assert_eq!(auth(Auth::PLAIN, &data).plain(), Some(("plant", &b"a\0b"[..])));
    assert_eq!(auth("SCRAM-SHA-256", &data).plain(), None);
    assert_eq!(auth(Auth::PLAIN, b"\0plant").plain(), None);
    assert_eq!(auth(Auth::PLAIN, b"\0\xFF\0pw").plain(), None);
}

#[test]
fn unused_flags_are_ignored() {
    let connect = Connect { will: false, clean_session: false, duration: 1, client_id: "c" };
    assert_eq!(Message::decode(b"\x07\x04\xF3\x01\x00\x01c"), Ok(Message::Connect(connect)));
    let subscribe = Subscribe { dup: false, qos: QoS::AtMostOnce, message_id: id(1), topic: Subscribed::Name("a") };
    assert_eq!(Message::decode(b"\x06\x12\x1C\x00\x01a"), Ok(Message::Subscribe(subscribe)));
}

#[test]
fn damaged_messages_are_refused_with_their_cause() {
    let cases: &[(&[u8], DecodeError)] = &[
        (b"", DecodeError::Empty),
        (b"\x00", DecodeError::LengthTooShort(0)),
        (b"\x01\x00\x02\x17", DecodeError::LengthTooShort(2)),
        (b"\x03\x17", DecodeError::LengthMismatch { length: 3, size: 2 }),
        (b"\x02\x17\x02\x17", DecodeError::LengthMismatch { length: 2, size: 4 }),
        (b"\x03\x17\x00", DecodeError::SurplusBytes),
        (b"\x04\x05\x00\x00", DecodeError::SurplusBytes),
        (b"\x02\x05", DecodeError::Truncated),
        (b"\x03\x05\x04", DecodeError::ReturnCode(4)),
        (b"\x07\x0D\x00\x01\x00\x01\xFF", DecodeError::ReturnCode(255)),
        (b"\x02\x01", DecodeError::Truncated),
        (b"\x03\x18\x00", DecodeError::Truncated),
        (b"\x05\x18\x00\x00\x00", DecodeError::SurplusBytes),
        (b"\x06\x0C\x00\x00\x01\x00", DecodeError::Truncated),
        (b"\x07\x0C\x20\x00\x01\x00\x00", DecodeError::MessageIdZero),
        (b"\x07\x0C\x40\x00\x01\x00\x00", DecodeError::MessageIdZero),
        (b"\x07\x0C\x02\xFF\xFF\x00\x00", DecodeError::InvalidUtf8),
        (b"\x07\x0C\x02a\x00\x00\x00", DecodeError::NulCharacter),
        (b"\x04\x0F\x00\x00", DecodeError::MessageIdZero),
        (b"\x04\x10\x00\x00", DecodeError::MessageIdZero),
        (b"\x06\x12\x00\x00\x00a", DecodeError::MessageIdZero),
        (b"\x06\x12\x60\x00\x01a", DecodeError::QoSReserved),
        (b"\x07\x12\x03\x00\x01ab", DecodeError::TopicIdTypeReserved),
        (b"\x07\x14\x03\x00\x01ab", DecodeError::TopicIdTypeReserved),
        (b"\x05\x12\x00\x00\x01", DecodeError::TopicEmpty),
        (b"\x06\x12\x01\x00\x01a", DecodeError::Truncated),
        (b"\x08\x12\x01\x00\x01abc", DecodeError::SurplusBytes),
        (b"\x08\x12\x02\x00\x01abc", DecodeError::SurplusBytes),
        (b"\x07\x12\x00\x00\x01a\x00", DecodeError::NulCharacter),
        (b"\x06\x0A\x00\x00\x00\x01", DecodeError::TopicEmpty),
        (b"\x07\x0A\x00\x00\x00\x01\x80", DecodeError::InvalidUtf8),
        (b"\x03\x07\x00", DecodeError::TopicEmpty),
        (b"\x04\x07\x60a", DecodeError::QoSReserved),
        (b"\x05\x1A\x00a\x00", DecodeError::NulCharacter),
        (b"\x07\x04\x00\x02\x00\x01c", DecodeError::ProtocolId(2)),
        (b"\x0B\x04\x00\x02\x00\x01\x00\x00\x00\x00\x01", DecodeError::ProtocolId(2)),
        (b"\x05\x04\x00\x01\x00", DecodeError::Truncated),
        (b"\x07\x04\x00\x01\x00\x01\x00", DecodeError::NulCharacter),
        (b"\x03\x16\x00", DecodeError::NulCharacter),
        (b"\x04\x03\x00\x01", DecodeError::Truncated),
        (b"\x05\x03\x00\x01\x00", DecodeError::NulCharacter),
    ];
    for (bytes, error) in cases {
        assert_eq!(Message::decode(bytes), Err(*error), "{bytes:02X?}");
    }
}

#[test]
fn reserved_message_types_are_refused() {
    let mut reserved = (0..=u8::MAX).filter(|&byte| MessageType::from_byte(byte).is_none());
    assert!(reserved.by_ref().take(2).eq([0x11, 0x19]));
    assert!(reserved.eq(0x1E..=0xFF));
    for byte in [0x11, 0x19, 0x1E, 0xFD, 0xFE, 0xFF] {
        assert_eq!(Message::decode(&[2, byte]), Err(DecodeError::ReservedType(byte)));
    }
}

#[test]
fn messages_of_256_bytes_use_the_long_length() {
    for (size, header) in [(253, &[255, 0x09][..]), (254, &[1, 1, 2, 0x09])] {
        let data = vec![7; size];
        let mut out = Vec::new();
        Message::WillMsg(&data).encode(&mut out);
        assert_eq!(&out[..header.len()], header);
        assert_eq!(Message::decode(&out), Ok(Message::WillMsg(&data)));
    }
    let (data, mut out) = (vec![7; 65_532], Vec::new());
    Message::WillMsg(&data).encode(&mut out);
    assert!(out.is_empty(), "larger than any message");
}

#[test]
fn forwarder_header_covers_its_node_id_only() {
    let forwarded = Forwarded { radius: 1, node_id: &[0xAA, 0xBB], message: &[2, 0x17] };
    let bytes = [5, 0xFE, 1, 0xAA, 0xBB, 2, 0x17];
    let mut out = Vec::new();
    forwarded.encode(&mut out);
    assert_eq!(out, bytes);
    assert_eq!(Forwarded::decode(&bytes), Ok(forwarded));
    assert_eq!(Message::decode(forwarded.message), Ok(Message::PingResp));
    assert_eq!(Forwarded::decode(&[2, 0xFE]), Err(DecodeError::Truncated));
    assert_eq!(Forwarded::decode(&[3, 0xFE, 0]), Err(DecodeError::Truncated));
    assert_eq!(Forwarded::decode(&[2, 0x17]), Err(DecodeError::ReservedType(0x17)));
    assert!(!Forwarded::is_envelope(&[2, 0x17]));
}
