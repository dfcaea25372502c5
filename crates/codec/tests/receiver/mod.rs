//! Encoding of packets, and the decoders of their receivers.

#![allow(dead_code, reason = "each test file uses its own part of these")]

use bytes::{Bytes, BytesMut};
use tenbin_codec::{Connect, DecodeError, Decoded, Decoder, Packet, ProtocolVersion, Text, WriteBuffer};

/// Side that sends a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Server,
}

/// The decoder of the other side, once it knows the version.
pub(crate) fn receiver_of(sender: Sender, version: ProtocolVersion) -> Decoder {
    match sender {
        Sender::Server => Decoder::client(version, u32::MAX),
        Sender::Client => {
            let mut decoder = Decoder::server(u32::MAX);
            let mut connect = Connect::new(version, Text::EMPTY);
            // AUTH is legal only then. [MQTT-4.12.0-7]
            connect.properties.authentication_method = version.is_v5().then(|| Text::from_static("method"));
            let connect = Packet::Connect(Box::new(connect));
            let decoded = decoder.decode(&mut BytesMut::from(&encode(&connect, version)[..]));
            assert_eq!(decoded, Ok(Decoded::Packet(connect)));
            decoder
        }
    }
}

pub(crate) fn encode(packet: &Packet, version: ProtocolVersion) -> Bytes {
    let mut out = WriteBuffer::new();
    packet.encode(version, &mut out);
    out.to_bytes()
}

/// A packet with a body of at most 127 bytes.
pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 0x80);
    [&[first, body.len() as u8], body].concat()
}

/// Decodes a packet on the side that receives it.
pub(crate) fn decode(version: ProtocolVersion, bytes: &[u8]) -> Result<Packet, DecodeError> {
    let from_server = matches!(bytes[0] >> 4, 2 | 3 | 9 | 11 | 13);
    let sender = if from_server { Sender::Server } else { Sender::Client };
    receive(sender, version, bytes).map(|decoded| match decoded {
        Decoded::Packet(packet) => packet,
        Decoded::NeedMore(more) => panic!("{more} bytes missing of {bytes:?}"),
    })
}

pub(crate) fn receive(sender: Sender, version: ProtocolVersion, bytes: &[u8]) -> Result<Decoded, DecodeError> {
    receiver_of(sender, version).decode(&mut BytesMut::from(bytes))
}
