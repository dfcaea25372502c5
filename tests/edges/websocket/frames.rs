//! Frames, legal and illegal.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use bytes::BytesMut;
use tenbin_codec::{
    Connect, Decoded, Decoder, PACKET_SIZE_MAX, Packet, PacketId, PacketType, ProtocolVersion, QoS, Subscribe,
};
use tenbin_websocket::{Mask, Opcode, append_frame};

use super::Served;
use crate::support::{PATIENCE, at_qos, encode, subscription, text};

/// A client's frame with any first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_frame(&mut bytes, Opcode::Binary, payload, Some(Mask([0x12, 0x34, 0x56, 0x78])));
    bytes[0] = first;
    bytes
}

/// A frame of data.
fn data(payload: &[u8]) -> Vec<u8> {
    frame(0x82, payload)
}

/// The next frame of the broker: its first byte and payload.
fn receive(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 2];
    stream.read_exact(&mut header).expect("a frame");
    let length = match header[1] {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length).expect("a length");
            u16::from_be_bytes(length).into()
        }
        length @ ..126 => usize::from(length),
        length => panic!("length {length} of a small unmasked frame"),
    };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).expect("a payload");
    (header[0], payload)
}

/// Asserts that nothing follows, but the end of the connection.
fn expect_end(mut stream: TcpStream) {
    let end = stream.read(&mut [0]);
    let is_reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
    assert!(end.as_ref().is_ok_and(|&read| read == 0) || end.as_ref().is_err_and(is_reset), "{end:?}");
}

fn connect(client_id: &str) -> Vec<u8> {
    let connect = Connect::new(ProtocolVersion::V5, text(client_id));
    encode(&Packet::Connect(Box::new(connect)), ProtocolVersion::V5).to_vec()
}

/// The next packets of the broker; pongs between them are ignored.
fn receive_packets(stream: &mut TcpStream, count: usize) -> Vec<Packet> {
    let (mut decoder, mut input) = (Decoder::client(ProtocolVersion::V5, PACKET_SIZE_MAX), BytesMut::new());
    let mut packets = Vec::new();
    while packets.len() < count {
        match decoder.decode(&mut input).expect("a legal packet") {
            Decoded::Packet(packet) => packets.push(packet),
            Decoded::NeedMore(_) => match receive(stream) {
                (0x82, payload) => input.extend_from_slice(&payload),
                (first, _) => assert_eq!(first, 0x8A),
            },
        }
    }
    packets
}

const PINGREQ: &[u8] = &[0xC0, 0];
const PINGRESP: &[u8] = &[0xD0, 0];

#[test]
fn mqtt_6_0_0_1_frames_other_than_binary_close() {
    let served = Served::start("");
    let text_frame = frame(0x81, b"hello");
    let unmasked = [0x82, 2, 0xC0, 0].to_vec();
    let huge = [&[0x82, 0xFF, 0x80][..], &[0; 11]].concat();
    for (bytes, code) in [
        (text_frame, 1003_u16),
        (unmasked, 1002),
        (frame(0xC2, b"x"), 1002),
        (frame(0x83, b"x"), 1002),
        (frame(0x09, b"x"), 1002),
        (frame(0x89, &[0; 126]), 1002),
        (frame(0x80, b"x"), 1002),
        ([frame(0x02, b""), data(b"x")].concat(), 1002),
        (huge, 1002),
    ] {
        for is_connected in [false, true] {
            let mut stream = served.open();
            if is_connected {
                stream.write_all(&data(&connect("c"))).expect("it reads");
                assert_eq!(receive(&mut stream).1[0], 0x20, "CONNACK");
            }
            stream.write_all(&bytes).expect("it reads");
            assert_eq!(receive(&mut stream), (0x88, code.to_be_bytes().to_vec()), "{bytes:?}");
            expect_end(stream);
        }
    }
    served.broker.log().wait_for(&["WebSocket: text frame"], PATIENCE);
}

#[test]
fn mqtt_6_0_0_2_frames_and_packets_do_not_line_up() {
    let served = Served::start("");
    let mut publish = at_qos("t", "payload", QoS::AtMostOnce);
    publish.payload = vec![7; 200].into();
    let subscribe = Subscribe {
        packet_id: PacketId::new(1).expect("not 0"),
        subscription_identifier: None,
        user_properties: Vec::new(),
        subscriptions: vec![subscription("t", QoS::AtMostOnce)],
    };
    let packets = [
        connect("split"),
        encode(&Packet::Subscribe(subscribe), ProtocolVersion::V5).to_vec(),
        encode(&Packet::Publish(publish), ProtocolVersion::V5).to_vec(),
        PINGREQ.to_vec(),
    ]
    .concat();
    for cut in 0..packets.len() {
        let (head, tail) = packets.split_at(cut);
        let messages = [data(head), frame(0x89, b"!"), data(tail)].concat();
        let fragments = [frame(0x02, head), frame(0x8A, b""), frame(0x00, b""), frame(0x80, tail)].concat();
        for bytes in [messages, fragments] {
            let mut stream = served.open();
            stream.write_all(&bytes).expect("it reads");
            let mut types = receive_packets(&mut stream, 4).iter().map(Packet::packet_type).collect::<Vec<_>>();
            types.sort_by_key(|packet_type| *packet_type as u8);
            assert_eq!(types, [PacketType::ConnAck, PacketType::Publish, PacketType::SubAck, PacketType::PingResp]);
        }
    }
}

#[test]
fn close_is_answered_and_follows_disconnect() {
    let served = Served::start("");
    let mut stream = served.open();
    stream.write_all(&data(&connect("peer"))).expect("it reads");
    receive(&mut stream);
    stream.write_all(&frame(0x88, &[0x03, 0xE9])).expect("it reads");
    assert_eq!(receive(&mut stream), (0x88, vec![0x03, 0xE9]));
    expect_end(stream);

    let mut stream = served.open();
    stream.write_all(&data(&connect("same"))).expect("it reads");
    receive(&mut stream);
    let _other = served.connect("same");
    let (first, disconnect) = receive(&mut stream);
    assert_eq!((first, disconnect[0], disconnect[2]), (0x82, 0xE0, 0x8E), "Session taken over");
    assert_eq!(receive(&mut stream), (0x88, vec![0x03, 0xE8]));
    expect_end(stream);

    let mut stream = served.open();
    stream.write_all(&data(&connect("leaves"))).expect("it reads");
    receive(&mut stream);
    stream.write_all(&data(&[0xE0, 0])).expect("it reads");
    assert_eq!(receive(&mut stream), (0x88, vec![0x03, 0xE8]));
    expect_end(stream);
}

#[test]
fn ping_is_answered_with_its_payload() {
    let served = Served::start("");
    let mut stream = served.open();
    for payload in [&b""[..], b"x", &[9; 125]] {
        stream.write_all(&frame(0x89, payload)).expect("it reads");
        assert_eq!(receive(&mut stream), (0x8A, payload.to_vec()));
    }
}

#[test]
fn floods_of_pings_and_empty_fragments_are_bounded() {
    let served = Served::start("");
    let mut canary = served.connect("canary");
    let before = served.broker.resident_bytes();
    for first in [0x89, 0x00, 0x82] {
        let mut stream = served.open();
        stream.write_all(&data(&connect("flood"))).expect("it reads");
        receive(&mut stream);
        if first == 0x00 {
            stream.write_all(&frame(0x02, b"")).expect("it reads");
        }
        let many = frame(first, if first == 0x89 { b"ping" } else { b"" }).repeat(10_000);
        for _ in 0..100 {
            stream.write_all(&many).expect("it reads");
        }
        // A legal end: the last fragment, or another message.
        stream.write_all(&frame(if first == 0x00 { 0x80 } else { 0x82 }, PINGREQ)).expect("it reads");
        loop {
            match receive(&mut stream) {
                (0x82, payload) => break assert_eq!(payload, PINGRESP),
                pong => assert_eq!(pong, (0x8A, b"ping".to_vec())),
            }
        }
        canary.settle();
    }
    let growth = served.broker.resident_bytes().saturating_sub(before);
    assert!(growth < 16 << 20, "{growth} bytes more");
}

#[test]
fn frame_of_almost_2_63_bytes_streams_through() {
    let served = Served::start("");
    let mut stream = served.open();
    let header = [&[0x82, 0xFF, 0x7F][..], &[0xFF; 7], &[0; 4]].concat();
    stream.write_all(&header).expect("it reads");
    stream.write_all(&connect("huge")).expect("it reads");
    assert_eq!(receive(&mut stream).1[0], 0x20, "CONNACK");
    for _ in 0..3 {
        stream.write_all(PINGREQ).expect("it reads");
        assert_eq!(receive(&mut stream), (0x82, PINGRESP.to_vec()));
    }
}
