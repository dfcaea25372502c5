//! Feeds any bytes, in any pieces, to both sides of WebSocket.
//!
//! ```text
//!   part of the protocol | lengths of the pieces (4) | the bytes of the stream
//! ```
//!
//! The pieces make no difference to the stream, its end, and the judgement of an upgrade. Bytes behind the end count for
//! nothing. An answer is one HTTP head.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenbin_websocket::{CONTROL_MAX, ClientConnection, End, Incoming, Rules, Side, UPGRADE_MAX, UpgradeError, accept};

fuzz_target!(|data: &[u8]| {
    let Some((&[part, pieces @ ..], stream)) = data.split_first_chunk::<5>() else { return };
    let cuts = || pieces.into_iter().map(|length| usize::from(length) + 1).cycle();
    match part % 4 {
        0 => check_frames(Side::Server, stream, cuts()),
        1 => check_frames(Side::Client, stream, cuts()),
        2 => check_request(stream, cuts()),
        _ => check_client(stream, cuts()),
    }
});

fn check_frames(side: Side, stream: &[u8], pieces: impl Iterator<Item = usize>) {
    let whole = unpack(side, stream, std::iter::repeat(stream.len().max(1)));
    assert_eq!(unpack(side, stream, pieces), whole, "the pieces make a difference");
    assert!(whole.0.len() <= stream.len());
}

/// The bytes of the stream in frames, and its end.
fn unpack(side: Side, frames: &[u8], mut pieces: impl Iterator<Item = usize>) -> (Vec<u8>, Option<End>) {
    let (mut incoming, mut stream, mut rest) = (Incoming::new(side), Vec::new(), frames);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(pieces.next().expect("a cycle").min(rest.len()));
        rest = others;
        let mut piece = piece.to_vec();
        let has_ended = incoming.end().is_some();
        let length = incoming.unpack(&mut piece);
        assert!(!has_ended || length == 0, "bytes behind the end");
        stream.extend_from_slice(&piece[..length]);
        let owes_pong = incoming.owes_pong();
        let pong = incoming.take_pong();
        assert_eq!(pong.is_some(), owes_pong);
        assert!(pong.is_none_or(|payload| payload.len() <= CONTROL_MAX));
    }
    (stream, incoming.end())
}

fn check_request(request: &[u8], mut pieces: impl Iterator<Item = usize>) {
    let origins = ["https://a.example".to_owned()];
    let rules = Rules { path: "/mqtt", origins: &origins };
    let whole = accept(request, rules);
    let part = accept(&request[..pieces.next().expect("a cycle").min(request.len())], rules);
    match &whole {
        Ok(Some(accepted)) => {
            assert!(request.len() <= UPGRADE_MAX);
            assert!(accepted.answer.starts_with("HTTP/1.1 101 "));
            assert_one_head(&accepted.answer, true);
        }
        Ok(None) => assert!(request.len() < UPGRADE_MAX),
        Err(refusal) => {
            assert!(refusal.answer().starts_with("HTTP/1.1 4"));
            assert_one_head(&refusal.answer(), false);
        }
    }
    assert!(part.is_ok() || whole.is_err(), "a part is refused, the whole is not");
}

/// A line of the answer that began in a line of the request would be a second answer.
fn assert_one_head(answer: &str, is_all: bool) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.split("\r\n").all(|line| !line.contains(['\r', '\n'])), "{head:?}");
    assert_eq!(is_all, body.is_empty(), "{answer:?}");
}

/// A client reads an answer and frames of the server.
fn check_client(stream: &[u8], pieces: impl Iterator<Item = usize>) {
    let whole = receive(stream, std::iter::repeat(stream.len().max(1)));
    let parts = receive(stream, pieces);
    // Bytes of MQTT right behind the answer are refused, but a cut may separate them from it.
    if whole.as_ref().is_ok_and(|(stream, _)| stream.is_empty()) {
        assert_eq!(parts, whole, "the pieces make a difference");
    }
}

fn receive(received: &[u8], mut pieces: impl Iterator<Item = usize>) -> Result<(Vec<u8>, Option<End>), UpgradeError> {
    let mut client = ClientConnection::new("b:80", "/mqtt", 7);
    let answer = accept(client.output(), Rules { path: "/mqtt", origins: &[] });
    client.wrote(client.output().len());
    // An answer to this request, unless the input brings its own.
    if !received.starts_with(b"HTTP") {
        let mut answer = answer.expect("a usual request").expect("all of it").answer.into_bytes();
        client.receive(&mut answer)?;
    }
    let (mut stream, mut rest) = (Vec::new(), received);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(pieces.next().expect("a cycle").min(rest.len()));
        rest = others;
        let mut piece = piece.to_vec();
        let length = client.receive(&mut piece)?;
        stream.extend_from_slice(&piece[..length]);
        assert!(client.output().len() <= 2 * (CONTROL_MAX + 6), "a pong and Close at most");
        client.wrote(client.output().len());
    }
    Ok((stream, client.end()))
}
