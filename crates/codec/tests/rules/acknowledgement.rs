//! Acknowledgements, and Reason Codes.

use tenbin_codec::{DecodeError, Packet, PacketType, ProtocolVersion, ReasonCode};

use ProtocolVersion::V5;

use crate::receiver::{decode, encode, packet};

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
