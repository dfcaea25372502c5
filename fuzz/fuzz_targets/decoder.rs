//! Feeds any bytes, in any pieces, to the decoders of both sides.
//!
//! ```text
//!   which decoder | Maximum Packet Size (2) | lengths of the pieces (4) | the bytes of the stream
//! ```
//!
//! Each result is a packet, a request for more bytes, or an error with a rule. The pieces of the stream make no
//! difference, a request never exceeds the missing bytes, and a packet survives encoding and decoding.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tenbin_codec::{DecodeError, Decoded, Decoder, PACKET_SIZE_MAX, Packet, ProtocolVersion, WriteBuffer};

fuzz_target!(|data: &[u8]| {
    let Some((&[reader, size_high, size_low, pieces @ ..], stream)) = data.split_first_chunk::<7>() else { return };
    let maximum_packet_size = match u32::from(u16::from_be_bytes([size_high, size_low])) {
        0 => PACKET_SIZE_MAX,
        bytes => bytes,
    };
    let decoder = match reader % 3 {
        0 => Decoder::server(maximum_packet_size),
        1 => Decoder::client(ProtocolVersion::V5, maximum_packet_size),
        _ => Decoder::client(ProtocolVersion::V311, maximum_packet_size),
    };
    let whole = decode_whole(decoder.clone(), stream);
    assert_eq!(decode_pieces(decoder, stream, pieces), whole, "how the stream is cut makes a difference");
});

/// Packets of a stream, and the error at its end.
#[derive(Debug, PartialEq)]
struct Reading {
    packets: Vec<Packet>,
    error: Option<DecodeError>,
}

fn decode_whole(mut decoder: Decoder, stream: &[u8]) -> Reading {
    let mut input = BytesMut::from(stream);
    let mut packets = Vec::new();
    loop {
        let (before, left) = (decoder.clone(), input.len());
        match decoder.decode(&mut input) {
            Ok(Decoded::Packet(packet)) => {
                assert!(left - input.len() >= 2, "a packet has two bytes at least");
                check_said_again(before, decoder.version(), &packet);
                packets.push(packet);
            }
            Ok(Decoded::NeedMore(more)) => {
                assert!(more >= 1);
                assert_eq!(input.len(), left, "a wish for more takes nothing");
                return Reading { packets, error: None };
            }
            Err(error) => {
                assert!(error.reason().is_error());
                assert!(error.to_string().ends_with(&format!("[{}]", error.rule())));
                return Reading { packets, error: Some(error) };
            }
        }
    }
}

fn decode_pieces(mut decoder: Decoder, stream: &[u8], pieces: [u8; 4]) -> Reading {
    let mut input = BytesMut::new();
    let mut packets = Vec::new();
    let mut lengths = pieces.into_iter().map(|length| usize::from(length) + 1).cycle();
    let mut rest = stream;
    let mut wanted = 0;
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(lengths.next().expect("a cycle").min(rest.len()));
        rest = others;
        input.extend_from_slice(piece);
        let mut arrived = piece.len();
        loop {
            match decoder.decode(&mut input) {
                Ok(Decoded::Packet(packet)) => {
                    assert!(arrived >= wanted, "{wanted} more bytes were said to be needed, {arrived} came");
                    (arrived, wanted) = (usize::MAX, 0);
                    packets.push(packet);
                }
                Ok(Decoded::NeedMore(more)) => {
                    wanted = more;
                    break;
                }
                Err(error) => return Reading { packets, error: Some(error) },
            }
        }
    }
    Reading { packets, error: None }
}

fn check_said_again(mut decoder: Decoder, version: Option<ProtocolVersion>, packet: &Packet) {
    let mut out = WriteBuffer::new();
    packet.encode(version.expect("known with the first packet"), &mut out);
    // The peer's encoding may have been shorter than ours.
    decoder.set_maximum_packet_size(PACKET_SIZE_MAX);
    let mut again = BytesMut::from(&out.to_bytes()[..]);
    match decoder.decode(&mut again) {
        Ok(Decoded::Packet(same)) => assert_eq!(&same, packet),
        other => panic!("{other:?} where {packet:?} was said again"),
    }
    assert!(again.is_empty());
}
