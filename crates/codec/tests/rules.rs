//! Rules of the standard: each is violated on the wire and refused with its Reason Code.

mod receiver;

use bytes::{Bytes, BytesMut};
use tenbin_codec::{
    ConnAck, Connect, DecodeError, Decoded, Decoder, PACKET_SIZE_MAX, Packet, PacketId, PacketType, ProtocolVersion,
    Publish, PublishHeader, PublishTemplate, QoS, ReasonCode, SubscriptionOptions, Text, TopicName, VARINT_MAX,
    WriteBuffer,
};

use ProtocolVersion::{V5, V311};
use receiver::{Sender, decode, encode, packet, receive, receiver_of};

// ---- fixed header -------------------------------------------------------------------------------------------

#[test]
fn mqtt_2_1_4_five_byte_remaining_length_is_malformed() {
    for sender in [Sender::Client, Sender::Server] {
        for version in [V311, V5] {
            let input = [0x30, 0xFF, 0xFF, 0xFF, 0xFF];
            for len in 1..input.len() {
                assert_eq!(receive(sender, version, &input[..len]), Ok(Decoded::NeedMore(1)));
            }
            assert_eq!(receive(sender, version, &input), Err(DecodeError::RemainingLength));
        }
    }
}

#[test]
fn mqtt_1_5_5_1_only_v5_demands_the_shortest_remaining_length() {
    let long_form = [0x40, 0x82, 0x80, 0x00, 0, 7];
    assert_eq!(receive(Sender::Client, V5, &long_form), Err(DecodeError::Varint));
    assert!(matches!(receive(Sender::Client, V311, &long_form), Ok(Decoded::Packet(Packet::PubAck(_)))));
}

#[test]
fn mqtt_3_2_2_15_the_size_is_judged_by_the_fixed_header_alone() {
    let limits = [
        (0x7F, &[0x7F][..]),
        (0x3FFF, &[0xFF, 0x7F]),
        (0x1F_FFFF, &[0xFF, 0xFF, 0x7F]),
        (VARINT_MAX, &[0xFF, 0xFF, 0xFF, 0x7F]),
    ];
    for (remaining, length) in limits {
        let size = 1 + length.len() as u32 + remaining;
        let header = [&[0x10], length].concat();
        let mut input = BytesMut::from(&header[..]);
        let more = remaining as usize;
        assert_eq!(Decoder::server(size).decode(&mut input), Ok(Decoded::NeedMore(more)));
        let maximum = size - 1;
        let error = DecodeError::PacketTooLarge { size, maximum };
        assert_eq!(Decoder::server(maximum).decode(&mut input), Err(error));
        assert_eq!(error.reason(), ReasonCode::PacketTooLarge);
    }
}

#[test]
fn the_size_limit_can_change_after_connect() {
    let mut decoder = Decoder::server(20);
    let connect = encode(&Packet::Connect(Box::new(Connect::new(V5, Text::EMPTY))), V5);
    assert!(matches!(decoder.decode(&mut BytesMut::from(&connect[..])), Ok(Decoded::Packet(_))));
    let mut input = BytesMut::from(&[0x30, 40][..]);
    assert_eq!(decoder.decode(&mut input), Err(DecodeError::PacketTooLarge { size: 42, maximum: 20 }));
    decoder.set_maximum_packet_size(42);
    assert_eq!(decoder.decode(&mut input), Ok(Decoded::NeedMore(40)));
}

#[test]
fn mqtt_2_1_3_1_illegal_flags_are_malformed_at_the_first_byte() {
    for (sender, version) in
        [(Sender::Client, V5), (Sender::Server, V5), (Sender::Client, V311), (Sender::Server, V311)]
    {
        for byte in 0x10..=u8::MAX {
            let legal = match byte >> 4 {
                3 => byte & 0b0110 != 0b0110 && byte & 0b1110 != 0b1000,
                6 | 8 | 10 => byte & 0x0F == 2,
                _ => byte & 0x0F == 0,
            };
            let result = receive(sender, version, &[byte]);
            assert!(legal || result.is_err(), "{byte:#04x}: {result:?}");
        }
    }
}

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
fn packet_type_0_is_a_protocol_error() {
    assert_eq!(DecodeError::ReservedPacketType(0).reason(), ReasonCode::ProtocolError);
    assert_eq!(receive(Sender::Client, V5, &[0x00]), Err(DecodeError::ReservedPacketType(0)));
    assert_eq!(Decoder::server(100).decode(&mut BytesMut::from(&[0x0F][..])), Err(DecodeError::ReservedPacketType(0)));
}

// ---- direction of packets -----------------------------------------------------------------------------------

#[test]
fn wrong_direction_is_a_protocol_error_before_the_body() {
    for (sender, first, kind) in [
        (Sender::Client, 0x20, PacketType::ConnAck),
        (Sender::Client, 0x90, PacketType::SubAck),
        (Sender::Client, 0xB0, PacketType::UnsubAck),
        (Sender::Client, 0xD0, PacketType::PingResp),
        (Sender::Server, 0x10, PacketType::Connect),
        (Sender::Server, 0x82, PacketType::Subscribe),
        (Sender::Server, 0xA2, PacketType::Unsubscribe),
        (Sender::Server, 0xC0, PacketType::PingReq),
    ] {
        for version in [V311, V5] {
            assert_eq!(receive(sender, version, &[first]), Ok(Decoded::NeedMore(1)));
            assert_eq!(receive(sender, version, &[first, 9]), Err(DecodeError::WrongDirection(kind)));
        }
    }
    assert_eq!(DecodeError::WrongDirection(PacketType::ConnAck).reason(), ReasonCode::ProtocolError);
}

#[test]
fn mqtt_3_1_0_1_the_first_packet_is_connect() {
    for first in (0x20..=u8::MAX).step_by(0x10) {
        let kind = PacketType::from_bits(first >> 4).unwrap();
        let result = Decoder::server(100).decode(&mut BytesMut::from(&[first][..]));
        assert_eq!(result, Err(DecodeError::ConnectExpected(kind)));
    }
    assert_eq!(DecodeError::ConnectExpected(PacketType::Publish).reason(), ReasonCode::ProtocolError);
}

#[test]
fn mqtt_4_12_0_7_auth_without_method_is_refused_before_its_body() {
    let connect = encode(&Packet::Connect(Box::new(Connect::new(V5, Text::EMPTY))), V5);
    for first in 0xF0..=0xFFu8 {
        let mut decoder = Decoder::server(100);
        assert!(decoder.decode(&mut BytesMut::from(&connect[..])).is_ok());
        let result = decoder.decode(&mut BytesMut::from(&[first, 50][..]));
        assert_eq!(result, Err(DecodeError::UnexpectedAuth), "{first:#04x}");
    }
    assert_eq!(DecodeError::UnexpectedAuth.reason(), ReasonCode::ProtocolError);
}

#[test]
fn mqtt_3_1_is_level_3_of_mqisdp() {
    let body = b"\0\x06MQIsdp\x03\x02\0\x0A\0\x01p";
    let Ok(Decoded::Packet(Packet::Connect(connect))) =
        Decoder::server(100).decode(&mut BytesMut::from(&packet(0x10, body)[..]))
    else {
        panic!()
    };
    assert_eq!((connect.version, connect.version.is_v5()), (ProtocolVersion::V31, false));
    assert_eq!(encode(&Packet::Connect(connect), V5), packet(0x10, body));
}

#[test]
fn bit_7_of_the_level_marks_a_bridge() {
    for (body, version) in [
        (&b"\0\x06MQIsdp\x83\x02\0\x0A\0\x01p"[..], ProtocolVersion::V31),
        (b"\0\x04MQTT\x84\x02\0\x0A\0\x01p", V311),
        (b"\0\x04MQTT\x85\x02\0\x0A\0\0\x01p", V5),
    ] {
        let mut decoder = Decoder::server(100);
        let decoded = decoder.decode(&mut BytesMut::from(&packet(0x10, body)[..]));
        let Ok(Decoded::Packet(Packet::Connect(connect))) = decoded else { panic!("{decoded:?}") };
        assert_eq!((connect.version, connect.is_bridge, decoder.version()), (version, true, Some(version)));
        assert_eq!(encode(&Packet::Connect(connect), V5), packet(0x10, body));
    }
}

#[test]
fn mqtt_3_1_ignores_reserved_bits_and_header_flags() {
    use ProtocolVersion::V31;
    let header = [
        &[0x60, 2, 0, 1][..],                      // PUBREL at "QoS 0"
        &[0x6A, 2, 0, 1],                          // PUBREL, DUP
        &[0x8A, 6, 0, 1, 0, 1, b't', 1],           // SUBSCRIBE, DUP
        &[0xAA, 5, 0, 1, 0, 1, b't'],              // UNSUBSCRIBE, DUP
        &[0x48, 2, 0, 1],                          // PUBACK, DUP
        &[0xC1, 0],                                // PINGREQ, RETAIN
        &[0x82, 6, 0, 1, 0, 1, b't', 0b1111_1101], // reserved bits of the requested QoS
    ];
    for bytes in header {
        assert!(receive(Sender::Client, V31, bytes).is_ok(), "{bytes:02x?}");
        assert!(receive(Sender::Client, V311, bytes).is_err(), "{bytes:02x?}");
        assert!(receive(Sender::Client, V5, bytes).is_err(), "{bytes:02x?}");
    }
    let subscribe = receive(Sender::Client, V31, header[6]);
    let Ok(Decoded::Packet(Packet::Subscribe(subscribe))) = subscribe else { panic!("{subscribe:?}") };
    assert_eq!(subscribe.subscriptions[0].options, SubscriptionOptions::at(QoS::AtLeastOnce));
    assert!(receive(Sender::Client, V31, &[0x82, 6, 0, 1, 0, 1, b't', 3]).is_err(), "QoS 3");
    assert!(receive(Sender::Client, V31, &[0x36, 3, 0, 1, b't']).is_err(), "PUBLISH with QoS 3");
    let reserved_bit = packet(0x10, b"\0\x06MQIsdp\x03\x03\0\x0A\0\x01p");
    assert!(Decoder::server(100).decode(&mut BytesMut::from(&reserved_bit[..])).is_ok());
}

#[test]
fn mqtt_3_1_connack_has_no_session_present() {
    let connack = Packet::ConnAck(Box::new(ConnAck::new(true, ReasonCode::Success)));
    assert_eq!(encode(&connack, ProtocolVersion::V31)[..], [0x20, 2, 0, 0]);
    assert_eq!(encode(&connack, V311)[..], [0x20, 2, 1, 0]);
}

#[test]
fn v311_has_no_auth_and_no_disconnect_from_a_server() {
    for sender in [Sender::Client, Sender::Server] {
        assert_eq!(receive(sender, V311, &[0xF0]), Err(DecodeError::ReservedPacketType(15)));
    }
    let wrong = DecodeError::WrongDirection(PacketType::Disconnect);
    assert_eq!(receive(Sender::Server, V311, &[0xE0, 0]), Err(wrong));
    assert!(receive(Sender::Server, V5, &[0xE0, 0]).is_ok());
    assert!(receive(Sender::Client, V311, &[0xE0, 0]).is_ok());
}

// ---- CONNECT ------------------------------------------------------------------------------------------------

#[test]
fn mqtt_3_1_2_faults_of_connect() {
    use DecodeError as E;
    for (body, error, reason) in [
        (&b"\0\x04MQTX\x05\x02\0\0\0\0\0"[..], E::ProtocolName, 0x84), // [MQTT-3.1.2-1]
        (b"\0\x06MQIsdp\x04\x02\0\0\0\0", E::ProtocolVersion(4), 0x84), // [MQTT-3.1.2-2]
        (b"\0\x04MQTT\x03\x02\0\0\0\0", E::ProtocolVersion(3), 0x84),
        (b"\0\x04MQTT\x06\x02\0\0\0\0\0", E::ProtocolVersion(6), 0x84),
        (b"\0\x04MQTT\x86\x02\0\0\0\0\0", E::ProtocolVersion(0x86), 0x84),
        (b"\0\x06MQIsdp\x84\x02\0\0\0\0", E::ProtocolVersion(0x84), 0x84),
        (b"\0\x04MQTT\x05\x03\0\0\0\0\0", E::ConnectFlagReserved, 0x81), // [MQTT-3.1.2-3]
        (b"\0\x04MQTT\x05\x0A\0\0\0\0\0", E::WillFlags, 0x81),           // [MQTT-3.1.2-11]
        (b"\0\x04MQTT\x05\x22\0\0\0\0\0", E::WillFlags, 0x81),           // [MQTT-3.1.2-13]
        (b"\0\x04MQTT\x05\x1E\0\0\0\0\0\0\0\x01w\0\0", E::WillFlags, 0x81), // [MQTT-3.1.2-12]
        (b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\0\0\0", E::TopicNameEmpty, 0x82), // [MQTT-4.7.3-1]
        (b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\x01#\0\0", E::TopicNameWildcard, 0x81), // [MQTT-4.7.0-1]
        (b"\0\x04MQTT\x05\x06\0\0\0\0\0\0\0\x01\xFF\0\0", E::InvalidUtf8, 0x81), // [MQTT-3.1.3-11]
        (b"\0\x04MQTT\x05\x02\0\0\0\0\x01\xFF", E::InvalidUtf8, 0x81),   // [MQTT-3.1.3-4]
        (b"\0\x04MQTT\x05\x82\0\0\0\0\0\0\x01\xFF", E::Credentials, 0x81), // [MQTT-3.1.3-12]
        (b"\0\x04MQTT\x05\x82\0\0\0\0\0\0\x01\x1F", E::Credentials, 0x81), // MQTT 5.0 §1.5.4
        (b"\0\x04MQTT\x05\x82\0\0\0\0\0\0\x02\xC2\x9F", E::Credentials, 0x81),
        (b"\0\x04MQTT\x05\x82\0\0\0\0\0", E::Credentials, 0x81), // [MQTT-3.1.2-17]
        (b"\0\x04MQTT\x05\x42\0\0\0\0\0", E::Credentials, 0x81), // [MQTT-3.1.2-19]
        (b"\0\x04MQTT\x05\x06\0\0\0\0\0", E::Truncated, 0x81),   // [MQTT-3.1.2-9]
        (b"\0\x04MQTT\x05\x02\0\0\0\0\0\0\x01u", E::SurplusBytes, 0x81), // [MQTT-3.1.2-16]
        (b"\0\x04MQTT\x05\x02\0\0\0", E::Truncated, 0x81),       // [MQTT-3.1.3-3]
        (b"\0\x04MQTT\x04\x42\0\0\0\0\0\x01p", E::PasswordWithoutUserName, 0x81),
        (b"", E::Truncated, 0x81),
    ] {
        let result = Decoder::server(1000).decode(&mut BytesMut::from(&packet(0x10, body)[..]));
        assert_eq!(result, Err(error), "{body:?}");
        assert_eq!(error.reason().byte(), reason, "{body:?}");
    }
}

#[test]
fn mqtt_3_1_2_19_v5_takes_a_password_without_user_name() {
    let Ok(Packet::Connect(connect)) = decode(V5, &packet(0x10, b"\0\x04MQTT\x05\x42\0\0\0\0\0\0\x01p")) else {
        panic!()
    };
    assert_eq!((connect.user_name, connect.password), (None, Some("p".into())));
}

#[test]
fn second_connect_is_decoded() {
    for version in [V311, V5] {
        let connect = encode(&Packet::Connect(Box::new(Connect::new(V5, Text::EMPTY))), V5);
        let mut decoder = receiver_of(Sender::Client, version);
        assert!(matches!(decoder.decode(&mut BytesMut::from(&connect[..])), Ok(Decoded::Packet(Packet::Connect(_)))));
        assert_eq!(decoder.version(), Some(version));
    }
}

// ---- bodies -------------------------------------------------------------------------------------------------

#[test]
fn faults_of_bodies_at_v5() {
    use DecodeError as E;
    for (first, body, error, reason) in [
        (0x30, &b"\0\0\0"[..], E::TopicNameEmpty, 0x82),    // [MQTT-4.7.3-1]
        (0x30, b"\0\x03a/+\0", E::TopicNameWildcard, 0x81), // [MQTT-3.3.2-2]
        (0x30, b"\0\x02\xC3\x28\0", E::InvalidUtf8, 0x81),  // [MQTT-3.3.2-1]
        (0x30, b"\0\x02a\0\0", E::NulCharacter, 0x81),      // [MQTT-4.7.3-2]
        (0x30, b"\0\x05a", E::Truncated, 0x81),
        (0x30, b"\0\x01a", E::Truncated, 0x81),          // [MQTT-2.2.2-1]
        (0x32, b"\0\x01a\0\0\0", E::PacketIdZero, 0x82), // [MQTT-2.2.1-3]
        (0x32, b"\0\x01a\0", E::Truncated, 0x81),
        (0x40, b"\0\0", E::PacketIdZero, 0x82),
        (0x40, b"\0", E::Truncated, 0x81),
        (0x40, b"\0\x01\0\0\0", E::SurplusBytes, 0x81),
        (0x62, b"\0\0", E::PacketIdZero, 0x82),
        (0x82, b"\0\0\0\0\x01f\0", E::PacketIdZero, 0x82),
        (0x82, b"\0\x01\0", E::NoTopicFilter, 0x82),         // [MQTT-3.8.3-2]
        (0x82, b"\0\x01\0\0\0\0", E::TopicFilter, 0x81),     // [MQTT-4.7.3-1]
        (0x82, b"\0\x01\0\0\x02a#\0", E::TopicFilter, 0x81), // [MQTT-4.7.1-1]
        (0x82, b"\0\x01\0\0\x03#/a\0", E::TopicFilter, 0x81),
        (0x82, b"\0\x01\0\0\x02+b\0", E::TopicFilter, 0x81), // [MQTT-4.7.1-2]
        (0x82, b"\0\x01\0\0\x01f", E::Truncated, 0x81),
        (0x82, b"\0\x01\0\0\x01f\x40", E::SubscriptionOptions, 0x81), // [MQTT-3.8.3-5]
        (0x82, b"\0\x01\0\0\x01f\x80", E::SubscriptionOptions, 0x81),
        (0x82, b"\0\x01\0\0\x01f\x03", E::SubscriptionOptionValue, 0x82),
        (0x82, b"\0\x01\0\0\x01f\x30", E::SubscriptionOptionValue, 0x82),
        (0x82, b"\0\x01\0\0\x09$share//t\0", E::SharedFilter, 0x81), // [MQTT-4.8.2-1]
        (0x82, b"\0\x01\0\0\x08$share/x\0", E::SharedFilter, 0x81),  // [MQTT-4.8.2-2]
        (0x82, b"\0\x01\0\0\x0A$share/+/t\0", E::SharedFilter, 0x81),
        (0x82, b"\0\x01\0\0\x0A$share/x/t\x04", E::NoLocalShared, 0x82), // [MQTT-3.8.3-4]
        (0xA2, b"\0\0\0\0\x01f", E::PacketIdZero, 0x82),
        (0xA2, b"\0\x01\0", E::NoTopicFilter, 0x82), // [MQTT-3.10.3-2]
        (0xA2, b"\0\x01\0\0\x01\xFF", E::InvalidUtf8, 0x81), // [MQTT-3.10.3-1]
        (0xC0, b"\x01", E::Truncated, 0x81),
        (0xE0, b"\0\0\0", E::SurplusBytes, 0x81),
        (0xF0, b"\x18", E::Truncated, 0x81), // AUTH has no form with a code and no Property Length
    ] {
        assert_eq!(receive(Sender::Client, V5, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
        assert_eq!(error.reason().byte(), reason, "{first:#04x} {body:?}");
    }
    for (first, body, error) in [
        (0x20, &b"\x02\0\0"[..], E::ConnAckFlags), // [MQTT-3.2.2-1]
        (0x20, b"\0\0", E::Truncated),
        (0x90, b"\0\0\0\0", E::PacketIdZero),
        (0xD0, b"\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Server, V5, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
}

#[test]
fn faults_of_bodies_at_v311() {
    use DecodeError as E;
    for (first, body, error) in [
        (0x30, &b"\0\0"[..], E::TopicNameEmpty),
        (0x40, b"\0\x01\0", E::SurplusBytes),
        (0x62, b"\0\x01\0\0", E::SurplusBytes),
        (0x82, b"\0\x01", E::NoTopicFilter),                  // 3.1.1 [MQTT-3.8.3-3]
        (0x82, b"\0\x01\0\x01f\x04", E::SubscriptionOptions), // 3.1.1 [MQTT-3.8.3-4]
        (0x82, b"\0\x01\0\x01f\x08", E::SubscriptionOptions),
        (0x82, b"\0\x01\0\x01f\x10", E::SubscriptionOptions),
        (0x82, b"\0\x01\0\x01f\x03", E::SubscriptionOptionValue),
        (0xA2, b"\0\x01", E::NoTopicFilter),
        (0xC0, b"\0", E::PingBody),
        (0xE0, b"\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Client, V311, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
    for (first, body, error) in [
        (0x20, &b"\0\x06"[..], E::ReasonCode(6)), // 3.1.1 table 3.1
        (0x20, b"\0\x80", E::ReasonCode(0x80)),
        (0x20, b"\0\0\0", E::SurplusBytes),
        (0x90, b"\0\x01\x03", E::ReasonCode(3)),
        (0x90, b"\0\x01\x87", E::ReasonCode(0x87)), // 3.1.1 [MQTT-3.9.3-2]
        (0xB0, b"\0\x01\0", E::SurplusBytes),
    ] {
        assert_eq!(receive(Sender::Server, V311, &packet(first, body)), Err(error), "{first:#04x} {body:?}");
    }
}

#[test]
fn v311_packets_have_no_properties() {
    let Ok(Packet::Publish(publish)) = decode(V311, &packet(0x30, b"\0\x01t\0payload")) else { panic!() };
    assert_eq!(&publish.payload[..], b"\0payload");
    let Ok(Packet::Subscribe(subscribe)) = decode(V311, &packet(0x82, b"\0\x01\0\x01f\x02")) else { panic!() };
    assert_eq!(subscribe.subscriptions[0].options.qos, QoS::ExactlyOnce);
    let Ok(Packet::ConnAck(connack)) = decode(V311, &packet(0x20, &[0, 5])) else { panic!() };
    assert_eq!(connack.reason, ReasonCode::NotAuthorized);
    let Ok(Packet::SubAck(suback)) = decode(V311, &packet(0x90, &[0, 1, 2, 0x80])) else { panic!() };
    assert_eq!(suback.reasons, [ReasonCode::GrantedQoS2, ReasonCode::UnspecifiedError]);
}

#[test]
fn content_unknown_to_3_1_1_is_not_written() {
    let connack = |reason| encode(&Packet::ConnAck(Box::new(ConnAck::new(false, reason))), V311);
    assert_eq!(connack(ReasonCode::ProtocolError), Bytes::new());
    assert_eq!(&connack(ReasonCode::Banned)[..], &[0x20, 2, 0, 5]);
    let ping = tenbin_codec::PingReq::with_payload(Bytes::from_static(b"{}"));
    assert_eq!(&encode(&Packet::PingReq(ping), V311)[..], &[0xC0, 0]);
    let ack = tenbin_codec::Ack::new(PacketId::new(1).unwrap(), ReasonCode::NotAuthorized);
    assert_eq!(&encode(&Packet::PubAck(ack), V311)[..], &[0x40, 2, 0, 1]);
}

#[test]
fn mqtt_3_4_2_short_forms_of_acknowledgements() {
    for (first, kind) in [
        (0x40, PacketType::PubAck),
        (0x50, PacketType::PubRec),
        (0x62, PacketType::PubRel),
        (0x70, PacketType::PubComp),
    ] {
        let failure = if first < 0x60 { ReasonCode::QuotaExceeded } else { ReasonCode::PacketIdentifierNotFound };
        for (body, reason) in [
            (&[0, 1][..], ReasonCode::Success),
            (&[0, 1, 0], ReasonCode::Success),
            (&[0, 1, 0, 0], ReasonCode::Success),
            (&[0, 1, failure.byte()], failure),
            (&[0, 1, failure.byte(), 0], failure),
        ] {
            let decoded = decode(V5, &packet(first, body)).unwrap();
            let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack)) = &decoded
            else {
                panic!("{decoded:?}")
            };
            assert_eq!((decoded.packet_type(), ack.reason, &ack.properties), (kind, reason, &None), "{body:?}");
            // Written in the shortest form.
            let shortest = if reason == ReasonCode::Success { &[0, 1][..] } else { &[0, 1, reason.byte()] };
            assert_eq!(encode(&decoded, V5), packet(first, shortest));
        }
    }
    assert_eq!(decode(V5, &[0xE0, 0]), decode(V5, &[0xE0, 1, 0]));
    assert_eq!(decode(V5, &[0xE0, 0]), decode(V5, &[0xE0, 2, 0, 0]));
    assert_eq!(decode(V5, &[0xF0, 0]), decode(V5, &[0xF0, 2, 0, 0]));
}

// ---- Reason Codes -------------------------------------------------------------------------------------------

#[test]
fn reason_codes_of_each_packet_are_those_of_its_table() {
    for (first, before, after, codes) in [
        (
            0x20, // [MQTT-3.2.2-8]
            &[0][..],
            &[0][..],
            &[
                0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
                0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
            ][..],
        ),
        (0x40, &[0, 1], &[], &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]), // [MQTT-3.4.2-1]
        (0x50, &[0, 1], &[], &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]), // [MQTT-3.5.2-1]
        (0x62, &[0, 1], &[], &[0x00, 0x92]),                                           // [MQTT-3.6.2-1]
        (0x70, &[0, 1], &[], &[0x00, 0x92]),                                           // [MQTT-3.7.2-1]
        (
            0x90, // [MQTT-3.9.3-2]
            &[0, 1, 0],
            &[],
            &[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
        ),
        (0xB0, &[0, 1, 0], &[], &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]), // [MQTT-3.11.3-2]
        (
            0xE0, // [MQTT-3.14.2-1]; 0x8C only by table 2-6
            &[],
            &[],
            &[
                0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
                0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
            ],
        ),
        (0xF0, &[], &[0], &[0x00, 0x18, 0x19]), // [MQTT-3.15.2-1]
    ] {
        for code in 0..=u8::MAX {
            let result = decode(V5, &packet(first, &[before, &[code], after].concat()));
            if codes.contains(&code) {
                assert!(result.is_ok(), "{first:#04x} {code:#04x}: {result:?}");
            } else {
                let error =
                    if first == 0xE0 { DecodeError::DisconnectReason(code) } else { DecodeError::ReasonCode(code) };
                assert_eq!(result, Err(error), "{first:#04x}");
                assert_eq!(error.reason(), ReasonCode::ProtocolError); // docs/decisions/0004
            }
        }
    }
}

// ---- sizes --------------------------------------------------------------------------------------------------

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
