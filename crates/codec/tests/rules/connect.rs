//! CONNECT and CONNACK.

use bytes::BytesMut;
use tenbin_codec::{
    ConnAck, Connect, DecodeError, Decoded, Decoder, Packet, PacketType, ProtocolVersion, ReasonCode, Text,
};

use ProtocolVersion::{V5, V311};

use crate::receiver::{Sender, decode, encode, packet, receiver_of};

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
fn mqtt_3_1_connack_has_no_session_present() {
    let connack = Packet::ConnAck(Box::new(ConnAck::new(true, ReasonCode::Success)));
    assert_eq!(encode(&connack, ProtocolVersion::V31)[..], [0x20, 2, 0, 0]);
    assert_eq!(encode(&connack, V311)[..], [0x20, 2, 1, 0]);
}

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
