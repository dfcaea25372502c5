//! Round trips: every encoded packet is decoded again, for any split of its bytes. Each of the five properties runs 256
//! cases unless `PROPTEST_CASES` says otherwise.

mod generators;
mod receiver;

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tenbin_codec::{
    Decoded, Decoder, Packet, PacketId, PacketType, PlainAcknowledged, PlainPublish, ProtocolVersion, ReasonCode,
};

use generators::{packet, sender, version};
use receiver::{Sender, encode, receiver_of};

proptest! {
    #[test]
    fn packets_of_a_v5_client_round_trip(packet in packet(Sender::Client, ProtocolVersion::V5)) {
        check(receiver_of(Sender::Client, ProtocolVersion::V5), ProtocolVersion::V5, &packet)?;
    }

    #[test]
    fn packets_of_a_v5_server_round_trip(packet in packet(Sender::Server, ProtocolVersion::V5)) {
        check(receiver_of(Sender::Server, ProtocolVersion::V5), ProtocolVersion::V5, &packet)?;
    }

    #[test]
    fn packets_of_a_v311_client_round_trip(packet in packet(Sender::Client, ProtocolVersion::V311)) {
        check(receiver_of(Sender::Client, ProtocolVersion::V311), ProtocolVersion::V311, &packet)?;
    }

    #[test]
    fn packets_of_a_v311_server_round_trip(packet in packet(Sender::Server, ProtocolVersion::V311)) {
        check(receiver_of(Sender::Server, ProtocolVersion::V311), ProtocolVersion::V311, &packet)?;
    }

    #[test]
    fn packets_come_out_in_order_for_any_split(
        (sender, version, packets) in (sender(), version()).prop_flat_map(|(sender, version)| {
            (Just(sender), Just(version), vec(packet(sender, version), 1..6))
        }),
        cuts in vec(any::<Index>(), 0..4),
    ) {
        let bytes = packets.iter().flat_map(|packet| encode(packet, version)).collect::<Vec<_>>();
        let mut cuts = cuts.into_iter().map(|cut| cut.index(bytes.len() + 1)).collect::<Vec<_>>();
        cuts.push(bytes.len());
        cuts.sort_unstable();

        let mut decoder = receiver_of(sender, version);
        let mut input = BytesMut::new();
        let (mut arrived, mut decoded) = (0, Vec::new());
        for cut in cuts {
            input.extend_from_slice(&bytes[arrived..cut]);
            arrived = cut;
            while let Decoded::Packet(packet) = decoder.decode(&mut input)? {
                decoded.push(packet);
            }
        }
        prop_assert_eq!(decoded, packets);
        prop_assert!(input.is_empty());
    }
}

#[test]
fn server_decoder_learns_the_version_from_connect() {
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let decoder = receiver_of(Sender::Client, version);
        assert_eq!(decoder.version(), Some(version));
    }
    assert_eq!(Decoder::server(0).version(), None);
}

/// Feeds `packet` byte by byte: each prefix asks for more and consumes nothing, the whole yields the packet.
fn check(mut decoder: Decoder, version: ProtocolVersion, packet: &Packet) -> Result<(), TestCaseError> {
    let bytes = encode(packet, version);
    prop_assert!(bytes.len() >= 2);
    let mut input = BytesMut::new();
    for (arrived, &byte) in bytes.iter().enumerate() {
        match decoder.decode(&mut input)? {
            Decoded::NeedMore(more) => {
                prop_assert!(more >= 1 && arrived + more <= bytes.len(), "{more} after {arrived} of {}", bytes.len());
            }
            Decoded::Packet(packet) => prop_assert!(false, "{packet:?} out of {arrived} of {} bytes", bytes.len()),
        }
        prop_assert_eq!(&input[..], &bytes[..arrived]);
        input.extend_from_slice(&[byte]);
    }
    prop_assert_eq!(decoder.decode(&mut input)?, Decoded::Packet(packet.clone()));
    prop_assert!(input.is_empty());

    // As one piece, with the next packet's first byte behind it.
    let mut input = BytesMut::from(&[&bytes[..], &bytes[..1]].concat()[..]);
    prop_assert_eq!(decoder.peek_acknowledged(&input[..bytes.len() - 1]), None);
    prop_assert_eq!(
        decoder.peek_acknowledged(&input),
        plain_acknowledged(packet).map(|publish| (publish, bytes.len())),
    );
    prop_assert_eq!(decoder.peek_ack(&input), plain_ack(packet));
    prop_assert_eq!(decoder.decode(&mut input)?, Decoded::Packet(packet.clone()));
    prop_assert_eq!(input.freeze(), Bytes::copy_from_slice(&bytes[..1]));
    Ok(())
}

/// The packet as a [`PlainAcknowledged`], if it is one.
fn plain_acknowledged(packet: &Packet) -> Option<PlainAcknowledged<'_>> {
    let Packet::Publish(publish) = packet else { return None };
    let has_more = publish.dup
        || publish.retain
        || publish.topic_alias.is_some()
        || publish.properties.is_some()
        || !publish.subscription_identifiers.is_empty();
    let packet_id = publish.packet_id.filter(|_| !has_more)?;
    let plain = PlainPublish::new(&publish.topic, &publish.payload)?;
    Some(PlainAcknowledged { publish: plain, qos: publish.qos, packet_id })
}

/// Type and Packet Identifier, if the packet is an acknowledgement of four bytes.
fn plain_ack(packet: &Packet) -> Option<(PacketType, PacketId)> {
    let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack)) = packet else {
        return None;
    };
    let is_plain = ack.reason == ReasonCode::Success && ack.properties.is_none();
    is_plain.then(|| (packet.packet_type(), ack.packet_id))
}
