//! The fixed header: sizes, flags, and which side may send a packet.

use bytes::BytesMut;
use tenbin_codec::{
    Connect, DecodeError, Decoded, Decoder, Packet, PacketType, ProtocolVersion, QoS, ReasonCode, SubscriptionOptions,
    Text, VARINT_MAX,
};

use ProtocolVersion::{V5, V311};

use crate::receiver::{Sender, encode, packet, receive};

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
fn packet_type_0_is_a_protocol_error() {
    assert_eq!(DecodeError::ReservedPacketType(0).reason(), ReasonCode::ProtocolError);
    assert_eq!(receive(Sender::Client, V5, &[0x00]), Err(DecodeError::ReservedPacketType(0)));
    assert_eq!(Decoder::server(100).decode(&mut BytesMut::from(&[0x0F][..])), Err(DecodeError::ReservedPacketType(0)));
}

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
fn v311_has_no_auth_and_no_disconnect_from_a_server() {
    for sender in [Sender::Client, Sender::Server] {
        assert_eq!(receive(sender, V311, &[0xF0]), Err(DecodeError::ReservedPacketType(15)));
    }
    let wrong = DecodeError::WrongDirection(PacketType::Disconnect);
    assert_eq!(receive(Sender::Server, V311, &[0xE0, 0]), Err(wrong));
    assert!(receive(Sender::Server, V5, &[0xE0, 0]).is_ok());
    assert!(receive(Sender::Client, V311, &[0xE0, 0]).is_ok());
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
