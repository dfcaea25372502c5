//! Arbitrary input: a decoder returns a packet, asks for more bytes or fails, but never panics.
//!
//! Each of the four properties runs 256 cases unless `PROPTEST_CASES` says otherwise. Each case goes to the decoders of
//! both sides at both versions, and to a server's that still waits for CONNECT.

mod generators;
mod receiver;

use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tenbin_codec::{Decoded, Decoder, ProtocolVersion};

use generators::{packet, sender, version};
use receiver::{Sender, encode, receiver_of};

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        decode_everywhere(&bytes)?;
    }

    #[test]
    fn arbitrary_bodies_behind_a_right_header_never_panic(
        first in 0x10u8..,
        body in vec(prop_oneof![1 => any::<u8>(), 2 => 0u8..8], 0..100),
    ) {
        let first = match first >> 4 {
            3 => first,
            6 | 8 | 10 => first & 0xF0 | 2,
            _ => first & 0xF0,
        };
        decode_everywhere(&[&[first, body.len() as u8], &body[..]].concat())?;
    }

    #[test]
    fn packets_with_mutations_never_panic(
        (version, packet) in (sender(), version()).prop_flat_map(|(sender, version)| {
            (Just(version), packet(sender, version))
        }),
        mutations in vec(mutation(), 1..4),
    ) {
        let mut bytes = encode(&packet, version).to_vec();
        mutations.into_iter().for_each(|mutation| mutation.apply(&mut bytes));
        decode_everywhere(&bytes)?;
    }

    #[test]
    fn intact_packet_after_a_mutated_one_never_panics(
        (sender, version, packets) in (sender(), version()).prop_flat_map(|(sender, version)| {
            (Just(sender), Just(version), vec(packet(sender, version), 3))
        }),
        mutation in mutation(),
    ) {
        let mut bytes = encode(&packets[0], version).to_vec();
        mutation.apply(&mut bytes);
        packets[1..].iter().for_each(|packet| bytes.extend_from_slice(&encode(packet, version)));
        decode_all(receiver_of(sender, version), sender, version, &bytes)?;
    }
}

/// Corruption of sent bytes.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    /// Changes the second byte: a Remaining Length, or its first part.
    Lengthen(u8),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        any::<Index>().prop_map(Mutation::Truncate),
        prop_oneof![Just(1), Just(0xFF), any::<u8>()].prop_map(Mutation::Lengthen),
    ]
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>) {
        if bytes.len() < 2 {
            return;
        }
        let len = bytes.len();
        match self {
            Self::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Self::Set(at, byte) => bytes[at.index(len)] = byte,
            Self::Insert(at, byte) => bytes.insert(at.index(len), byte),
            Self::Remove(at) => drop(bytes.remove(at.index(len))),
            Self::Truncate(at) => bytes.truncate(at.index(len)),
            Self::Lengthen(by) => bytes[1] = bytes[1].wrapping_add(by),
        }
    }
}

fn decode_everywhere(bytes: &[u8]) -> Result<(), TestCaseError> {
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        for sender in [Sender::Client, Sender::Server] {
            decode_all(receiver_of(sender, version), sender, version, bytes)?;
        }
    }
    let mut stranger = Decoder::server(u32::MAX);
    let _ = decode_one(&mut stranger, &mut BytesMut::from(bytes))?;
    Ok(())
}

/// Decodes until no packet follows. Each packet must round-trip.
fn decode_all(
    mut decoder: Decoder,
    sender: Sender,
    version: ProtocolVersion,
    bytes: &[u8],
) -> Result<(), TestCaseError> {
    let mut input = BytesMut::from(bytes);
    while let Some(packet) = decode_one(&mut decoder, &mut input)? {
        let mut again = BytesMut::from(&encode(&packet, version)[..]);
        prop_assert_eq!(receiver_of(sender, version).decode(&mut again)?, Decoded::Packet(packet));
        prop_assert!(again.is_empty());
    }
    Ok(())
}

/// The next packet, or `None` if the decoder needs more bytes or fails.
fn decode_one(decoder: &mut Decoder, input: &mut BytesMut) -> Result<Option<tenbin_codec::Packet>, TestCaseError> {
    let before = input.clone();
    match decoder.decode(input) {
        Ok(Decoded::Packet(packet)) => {
            prop_assert!(before.len() - input.len() >= 2);
            prop_assert!(before.ends_with(input));
            Ok(Some(packet))
        }
        Ok(Decoded::NeedMore(more)) => {
            prop_assert!(more >= 1);
            prop_assert_eq!(&before, input, "a wish for more takes nothing");
            Ok(None)
        }
        Err(error) => {
            prop_assert!(error.reason().is_error());
            let rule = format!("[{}]", error.rule());
            prop_assert!(error.to_string().ends_with(&rule));
            Ok(None)
        }
    }
}
