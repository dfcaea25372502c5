//! Packets with references in place of payloads: encoded by a leader, put together by a relay.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tenbin_codec::{
    BadStream, EXTERNAL_GREETING, ExternalPublish, ExternalScanner, MessageProperties, PacketId, ProtocolVersion,
    PublishHeader, PublishTemplate, QoS, REFERENCE_BYTES, Scanned, TopicName, WriteBuffer, write_external,
};

/// A message as a client gets it, and as a leader sends it by reference.
fn both(payload: usize, version: ProtocolVersion, number: u8) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let topic = TopicName::try_from("a/b").unwrap();
    let properties = MessageProperties { payload_format_indicator: Some(true), ..MessageProperties::default() };
    let payload: Vec<u8> = (0..payload).map(|at| at as u8 ^ number).collect();
    let whole = PublishTemplate::new(&topic, Some(&properties), &Bytes::from(payload.clone()), &mut BytesMut::new());
    let (properties_len, _) = whole.to_store();
    let empty = PublishTemplate::new(&topic, Some(&properties), &Bytes::new(), &mut BytesMut::new());
    let head = Bytes::copy_from_slice(empty.to_store().1[0]);
    let external =
        PublishTemplate::external(properties_len, head, payload.len() as u32, [number; REFERENCE_BYTES]).unwrap();
    assert!(external.is_external() && !whole.is_external());
    assert_eq!((external.whole_len(), whole.whole_len()), (whole.len(), whole.len()));
    let header = PublishHeader {
        qos: QoS::AtLeastOnce,
        packet_id: PacketId::new(9),
        message_expiry_interval: Some(7),
        subscription_identifiers: &[3, 300],
        ..PublishHeader::default()
    };
    let (mut expected, mut packet, mut sent) = (WriteBuffer::new(), WriteBuffer::new(), WriteBuffer::new());
    whole.encode(&header, version, &mut expected);
    external.encode(&header, version, &mut packet);
    write_external(packet, &mut sent);
    (expected.to_bytes().to_vec(), sent.to_bytes().to_vec(), payload)
}

#[test]
fn payload_put_in_gives_the_packet_of_the_whole_message() {
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        for size in [0, 4095, 4096, 70_000, 3_000_000] {
            let (expected, sent, payload) = both(size, version, 5);
            let Ok(Scanned::External(used, content)) = ExternalScanner::default().scan(&sent) else { panic!("{size}") };
            assert_eq!(used, sent.len());
            let ExternalPublish { head, payload_len, reference } = ExternalPublish::parse(&content).unwrap();
            assert_eq!((payload_len as usize, reference), (payload.len(), [5; REFERENCE_BYTES]));
            assert_eq!([head, payload].concat(), expected, "{size} {version:?}");
        }
    }
}

/// Ordinary packets and external ones, as bytes of the stream, and whether each is external.
fn stream() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
    let ordinary = prop_oneof![
        Just(vec![0xD0, 0]),
        Just(vec![0x40, 2, 0, 7]),
        (0..40_000_usize).prop_map(|size| both(size, ProtocolVersion::V5, 1).0),
    ];
    let external = prop_oneof![
        Just(EXTERNAL_GREETING.to_vec()),
        (0..40_000_usize).prop_map(|size| both(size, ProtocolVersion::V5, 1).1),
    ];
    let packet = prop_oneof![ordinary.prop_map(|bytes| (bytes, false)), external.prop_map(|bytes| (bytes, true)),];
    prop::collection::vec(packet, 0..8)
}

proptest! {
    #[test]
    fn packets_are_found_however_the_stream_is_cut(packets in stream(), cuts in prop::collection::vec(1..9000_usize, 1..40)) {
        let all: Vec<u8> = packets.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let (mut scanner, mut rest, mut ordinary, mut found) = (ExternalScanner::default(), &all[..], Vec::new(), Vec::new());
        for cut in cuts.iter().cycle() {
            let Some(size) = Some(rest.len().min(*cut)).filter(|&size| size > 0) else { break };
            let (mut part, behind) = rest.split_at(size);
            rest = behind;
            while !part.is_empty() {
                let (used, is_ordinary) = match scanner.scan(part).unwrap() {
                    Scanned::Ordinary(used) => (used, true),
                    Scanned::Part(used) => (used, false),
                    Scanned::External(used, content) => {
                        found.push(content);
                        (used, false)
                    }
                };
                prop_assert!(used > 0);
                if is_ordinary {
                    ordinary.extend_from_slice(&part[..used]);
                }
                part = &part[used..];
            }
        }
        let expected: Vec<u8> = packets.iter().filter(|(_, external)| !external).flat_map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(ordinary, expected);
        let externals: Vec<_> = packets.iter().filter(|(_, external)| *external).map(|(bytes, _)| bytes).collect();
        prop_assert_eq!(found.len(), externals.len());
        for (content, bytes) in found.iter().zip(externals) {
            prop_assert!(bytes.ends_with(content) && bytes.len() - content.len() <= 5);
        }
    }

    #[test]
    fn any_bytes_are_scanned_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (mut scanner, mut rest) = (ExternalScanner::default(), &bytes[..]);
        while !rest.is_empty() {
            let used = match scanner.scan(rest) {
                Ok(Scanned::Ordinary(used) | Scanned::Part(used)) => used,
                Ok(Scanned::External(used, content)) => {
                    let _ = ExternalPublish::parse(&content);
                    used
                }
                Err(BadStream) => break,
            };
            prop_assert!(0 < used && used <= rest.len());
            rest = &rest[used..];
        }
        let _ = ExternalPublish::parse(&bytes);
    }
}
