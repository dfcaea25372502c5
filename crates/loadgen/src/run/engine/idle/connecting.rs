//! A connection on its way to CONNACK.

use std::io::{self, Read, Write};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use tenbin_codec::{ConnAck, Decoded, Decoder, Packet, ProtocolVersion};
use tenbin_websocket::UpgradeError;

use super::socket::Socket;
use crate::run::engine::tls::{explained, is_rejection};

/// State of a connection until CONNACK.
pub(super) struct Connecting {
    /// When the connection was due.
    pub(super) due: Instant,
    /// When to give up the attempt.
    pub(super) give_up: Instant,
    /// Whether this is the client's first connection.
    pub(super) is_first: bool,
    /// Unwritten rest of CONNECT.
    out: Bytes,
    input: BytesMut,
}

/// Result of an attempt so far.
pub(super) enum Answer {
    None,
    Accepted(Box<ConnAck>),
    Refused,
    /// No connection is possible: the TLS handshake or the upgrade to WebSocket was rejected.
    Impossible(io::Error),
}

impl Connecting {
    pub(super) fn new(due: Instant, give_up: Instant, is_first: bool, connect: Bytes) -> Self {
        Self { due, give_up, is_first, out: connect, input: BytesMut::new() }
    }

    /// Writes and reads as far as the socket allows.
    pub(super) fn advance(&mut self, socket: &mut Socket, version: ProtocolVersion) -> Answer {
        match self.exchange(socket, version) {
            Ok(answer) => answer,
            Err(error) if is_not_yet(&error) => Answer::None,
            Err(error) if is_rejection(&error) => Answer::Impossible(explained(error)),
            Err(error) if is_no_websocket(&error) => Answer::Impossible(error),
            Err(_) => Answer::Refused,
        }
    }

    fn exchange(&mut self, socket: &mut Socket, version: ProtocolVersion) -> io::Result<Answer> {
        while self.out.has_remaining() {
            let written = socket.write(&self.out)?;
            self.out.advance(written);
        }
        loop {
            let mut chunk = [0; 256];
            let count = socket.read(&mut chunk)?;
            if count == 0 {
                return Ok(Answer::Refused);
            }
            self.input.extend_from_slice(&chunk[..count]);
            match Decoder::client(version, u32::MAX).decode(&mut self.input) {
                Ok(Decoded::NeedMore(_)) => {}
                Ok(Decoded::Packet(Packet::ConnAck(connack))) if !connack.reason.is_error() => {
                    return Ok(Answer::Accepted(connack));
                }
                _ => return Ok(Answer::Refused),
            }
        }
    }
}

/// Whether the broker refused the upgrade to WebSocket.
fn is_no_websocket(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<UpgradeError>())
}

/// Whether the socket has no data, or is not connected yet.
fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected | io::ErrorKind::Interrupted)
}
