//! Compares the crate with tungstenite.

use std::io::{self, Cursor, Read, Write};

use proptest::collection::vec;
use proptest::prelude::*;
use tenbin_websocket::{CloseCode, End, Incoming, Mask, Opcode, Outgoing, Side, append_frame};
use tungstenite::protocol::{Role, WebSocket};
use tungstenite::{Error, Message};

/// Bytes to read; written bytes are ignored.
struct Input(Cursor<Vec<u8>>);

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// End of a model's input.
#[derive(Debug, PartialEq, Eq)]
enum ModelEnd {
    None,
    Close(Option<u16>),
    Violation,
}

/// Payloads of whole messages, and pings, that the model reads.
fn model(role: Role, bytes: Vec<u8>) -> (Vec<u8>, Vec<Vec<u8>>, ModelEnd) {
    let (mut stream, mut pings) = (Vec::new(), Vec::new());
    let mut socket = WebSocket::from_raw_socket(Input(Cursor::new(bytes)), role, None);
    loop {
        match socket.read() {
            Ok(Message::Binary(payload)) => stream.extend_from_slice(&payload),
            Ok(Message::Ping(payload)) => pings.push(payload.to_vec()),
            Ok(Message::Close(close)) => {
                return (stream, pings, ModelEnd::Close(close.map(|close| close.code.into())));
            }
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return (stream, pings, ModelEnd::None);
            }
            Err(_) => return (stream, pings, ModelEnd::Violation),
        }
    }
}

/// A frame with any header that its fields can express.
#[derive(Debug, Clone)]
struct Frame {
    first: u8,
    payload: Vec<u8>,
    mask: Option<[u8; 4]>,
}

impl Frame {
    fn append(&self, out: &mut Vec<u8>) {
        let at = out.len();
        append_frame(out, Opcode::Binary, &self.payload, self.mask.map(Mask));
        out[at] = self.first;
    }
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![5 => 0usize..8, 3 => 120usize..130, 1 => 65_530usize..65_540];
    (length, any::<u8>()).prop_map(|(length, seed)| (0..length).map(|at| (at as u8).wrapping_add(seed)).collect())
}

/// Frames of legal data and pings in messages of up to three fragments.
fn legal() -> impl Strategy<Value = Vec<Frame>> {
    let control = (prop_oneof![Just(0x89u8), Just(0x8A)], vec(any::<u8>(), 0..=125));
    let message = (vec((payload(), proptest::option::of(control)), 1..4), any::<[u8; 4]>());
    let frames = message.prop_map(|(fragments, mask)| {
        let (last, mask) = (fragments.len() - 1, Some(mask));
        let mut frames = Vec::new();
        for (at, (payload, control)) in fragments.into_iter().enumerate() {
            let opcode = if at == 0 { 2 } else { 0 };
            frames.push(Frame { first: opcode | if at == last { 0x80 } else { 0 }, payload, mask });
            frames.extend(control.map(|(first, payload)| Frame { first, payload, mask }));
        }
        frames
    });
    vec(frames, 0..5).prop_map(|frames| frames.concat())
}

/// Any frame, most of them illegal somewhere.
fn wild() -> impl Strategy<Value = Frame> {
    let first = prop_oneof![Just(0x82u8), Just(0x02), Just(0x80), Just(0x00), Just(0x88), Just(0x89), any::<u8>()];
    let mask = prop_oneof![9 => any::<[u8; 4]>().prop_map(Some), 1 => Just(None)];
    (first, payload(), mask).prop_map(|(first, payload, mask)| Frame { first, payload, mask })
}

/// Feeds `bytes` in pieces; returns the stream and all pings.
fn unpack(incoming: &mut Incoming, bytes: &[u8], mut piece: impl FnMut() -> usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut stream, mut pings, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let end = (at + piece().max(1)).min(bytes.len());
        let mut part = bytes[at..end].to_vec();
        let length = incoming.unpack(&mut part);
        stream.extend_from_slice(&part[..length]);
        pings.extend(incoming.take_pong());
        at = end;
    }
    (stream, pings)
}

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.append(&mut bytes));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn legal_frames_carry_the_same_stream(frames in legal(), pieces in vec(1usize..40_000, 1..20)) {
        let bytes = encoded(&frames);
        let (expected, pings, end) = model(Role::Server, bytes.clone());
        prop_assert_eq!(end, ModelEnd::None);
        let mut incoming = Incoming::new(Side::Server);
        let mut pieces = pieces.into_iter().cycle();
        let (stream, answered) = unpack(&mut incoming, &bytes, || pieces.next().unwrap());
        prop_assert_eq!(incoming.end(), None);
        prop_assert!(stream == expected);
        prop_assert!(answered.len() <= pings.len() && answered.last() == pings.last());
        prop_assert!(answered.iter().all(|answer| pings.contains(answer)));
    }

    #[test]
    fn illegal_frames_end_the_stream_alike(frames in vec(wild(), 1..4), pieces in vec(1usize..300, 1..9)) {
        // The model reads text, and checks the text of a Close frame.
        let frames: Vec<_> = frames.into_iter().filter(|frame| !matches!(frame.first & 0x0F, 0x1 | 0x8)).collect();
        let bytes = encoded(&frames);
        let (expected, _, end) = model(Role::Server, bytes.clone());
        let mut incoming = Incoming::new(Side::Server);
        let mut pieces = pieces.into_iter().cycle();
        let (stream, _) = unpack(&mut incoming, &bytes, || pieces.next().unwrap());
        prop_assert_eq!(matches!(incoming.end(), Some(End::Violation(_))), end == ModelEnd::Violation);
        prop_assert!(stream.starts_with(&expected));
    }

    #[test]
    fn any_bytes_are_judged_alike(bytes in vec(any::<u8>(), 0..200)) {
        let mut whole = bytes.clone();
        let mut at_once = Incoming::new(Side::Server);
        let length = at_once.unpack(&mut whole);
        let mut bytewise = Incoming::new(Side::Server);
        let (stream, _) = unpack(&mut bytewise, &bytes, || 1);
        prop_assert_eq!(at_once.end(), bytewise.end());
        prop_assert_eq!(&whole[..length], &stream[..]);
    }

    #[test]
    fn model_reads_the_stream_from_outgoing_frames(
        payloads in vec(payload(), 1..5),
        takes in vec(1usize..3000, 1..9),
        ping in vec(any::<u8>(), 0..=125),
    ) {
        let (mut outgoing, mut wire, mut stream) = (Outgoing::default(), Vec::new(), Vec::new());
        let mut takes = takes.into_iter().cycle();
        let all = payloads.concat();
        let mut offered = payloads.iter().map(Vec::len).filter(|&length| length > 0).cycle();
        let mut pings = Vec::new();
        while stream.len() < all.len() {
            if !outgoing.is_within_frame() && !outgoing.is_within_control() {
                outgoing.begin_control(Opcode::Ping, &ping);
                pings.push(ping.clone());
            }
            while let Some(bytes) = outgoing.control() {
                let take = takes.next().unwrap().min(bytes.len());
                wire.extend_from_slice(&bytes[..take]);
                outgoing.control_sent(take);
            }
            let rest = &all[stream.len()..];
            let (header, left) = outgoing.header(offered.next().unwrap().min(rest.len()));
            let next = [header, &rest[..left]].concat();
            let take = takes.next().unwrap().min(next.len());
            wire.extend_from_slice(&next[..take]);
            let sent = outgoing.sent(take);
            stream.extend_from_slice(&rest[..sent]);
        }
        prop_assert!(!outgoing.is_within_frame());
        outgoing.begin_close(Some(CloseCode::NORMAL));
        wire.extend_from_slice(outgoing.control().unwrap());
        prop_assert!(model(Role::Client, wire.clone()) == (all.clone(), pings.clone(), ModelEnd::Close(Some(1000))));
        let mut incoming = Incoming::new(Side::Client);
        let (stream, _) = unpack(&mut incoming, &wire, || takes.next().unwrap());
        prop_assert!(stream == all);
        prop_assert_eq!(incoming.end(), Some(End::Close(Some(CloseCode::NORMAL))));
    }
}

#[test]
fn frames_may_be_split_at_every_byte() {
    let mask = Some([9, 8, 7, 6]);
    let frame = |first, payload: &[u8]| Frame { first, payload: payload.to_vec(), mask };
    let frames = [frame(0x02, &[1; 126]), frame(0x89, b"ping"), frame(0x80, &[2; 3]), frame(0x82, &[3; 9])];
    let bytes = encoded(&frames);
    let (expected, pings, _) = model(Role::Server, bytes.clone());
    for split in 0..bytes.len() {
        let mut incoming = Incoming::new(Side::Server);
        let mut first = Some(split);
        let (stream, answered) = unpack(&mut incoming, &bytes, || first.take().unwrap_or(usize::MAX / 2));
        assert_eq!((&stream, &answered), (&expected, &pings), "{split}");
    }
}

#[test]
fn close_codes_are_checked() {
    for (payload, end) in [
        (&[][..], End::Close(None)),
        (&[3, 0xE8], End::Close(Some(CloseCode(1000)))),
        (&[3, 0xE9, b'x'], End::Close(Some(CloseCode(1001)))),
    ] {
        let mut bytes = Vec::new();
        append_frame(&mut bytes, Opcode::Binary, b"before", Some(Mask([1; 4])));
        append_frame(&mut bytes, Opcode::Close, payload, Some(Mask([1; 4])));
        append_frame(&mut bytes, Opcode::Binary, b"behind", Some(Mask([1; 4])));
        let mut incoming = Incoming::new(Side::Server);
        let length = incoming.unpack(&mut bytes);
        assert_eq!((&bytes[..length], incoming.end()), (&b"before"[..], Some(end)));
    }
    for payload in [&[3][..], &[3, 0xED], &[0, 0]] {
        let mut bytes = Vec::new();
        append_frame(&mut bytes, Opcode::Close, payload, Some(Mask([1; 4])));
        let mut incoming = Incoming::new(Side::Server);
        incoming.unpack(&mut bytes);
        assert!(matches!(incoming.end(), Some(End::Violation(_))), "{payload:?}");
    }
}

#[test]
fn lengths_up_to_2_63_stream_through() {
    for (first, is_legal) in [(0x7F, true), (0x80, false)] {
        let mut bytes = vec![0x82, 0xFF, first, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 1, 2, 3];
        let mut incoming = Incoming::new(Side::Server);
        let length = incoming.unpack(&mut bytes);
        if is_legal {
            assert_eq!((&bytes[..length], incoming.end()), (&[1, 2, 3][..], None));
        } else {
            assert!(matches!(incoming.end(), Some(End::Violation(_))));
        }
    }
    assert!(size_of::<Incoming>() <= 40, "{}", size_of::<Incoming>());
}

#[test]
fn a_million_pings_owe_one_pong() {
    let mut flood = Vec::new();
    (0..1_000_000).for_each(|_| append_frame(&mut flood, Opcode::Ping, b"?", Some(Mask([1; 4]))));
    (0..1_000_000).for_each(|_| append_frame(&mut flood, Opcode::Binary, b"", Some(Mask([1; 4]))));
    append_frame(&mut flood, Opcode::Ping, b"last", Some(Mask([1; 4])));
    let mut incoming = Incoming::new(Side::Server);
    assert_eq!(incoming.unpack(&mut flood), 0);
    assert_eq!(incoming.take_pong().as_deref(), Some(&b"last"[..]));
    assert_eq!((incoming.take_pong(), incoming.end()), (None, None));
}
