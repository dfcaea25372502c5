//! Client's side of a connection.

use std::io::IoSlice;

use crate::frame::Header;
use crate::incoming::{End, Incoming};
use crate::upgrade::client::{ClientUpgrade, UpgradeError};
use crate::{CloseCode, Mask, Opcode, Side, append_frame};

/// Client's side of a connection: the upgrade, then frames in both directions, with a buffer of bytes to write.
#[derive(Debug)]
pub struct ClientConnection {
    stage: Stage,
    incoming: Incoming,
    out: Vec<u8>,
    /// Bytes of `out` that are written.
    written: usize,
    masks: Masks,
}

#[derive(Debug)]
enum Stage {
    /// The request is sent; bytes of the answer so far.
    Upgrading(ClientUpgrade, Vec<u8>),
    Open,
    /// Close was sent, or put into the buffer.
    Closed,
}

/// Random numbers for masks. A mask protects against scripts that choose the bytes of a frame (RFC 6455 §10.3), and here
/// none does. So a generator that is hard to predict is enough.
#[derive(Debug)]
struct Masks(u64);

impl ClientConnection {
    /// Begins a connection to `path` of `host` ("host:port"). `seed` is random.
    pub fn new(host: &str, path: &str, seed: u64) -> Self {
        let mut masks = Masks(seed);
        let upgrade = ClientUpgrade::new((u128::from(masks.next()) << 64 | u128::from(masks.next())).to_be_bytes());
        let out = upgrade.request(host, path).into_bytes();
        let stage = Stage::Upgrading(upgrade, Vec::new());
        Self { stage, incoming: Incoming::new(Side::Client), out, written: 0, masks }
    }

    /// Whether the server still has to answer the request.
    pub fn is_upgrading(&self) -> bool {
        matches!(self.stage, Stage::Upgrading(..))
    }

    /// Bytes to write.
    pub fn output(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Counts written bytes.
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            self.out.shrink_to(OUT_KEPT);
            self.answer_ping();
        }
    }

    /// Takes bytes of the stream, and returns how many: none during the upgrade, behind Close, and while earlier output
    /// is not written.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        self.send_vectored(&[IoSlice::new(bytes)])
    }

    /// As [`ClientConnection::send`], from several slices into one frame.
    pub fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(FRAME_MAX);
        if length == 0 || !matches!(self.stage, Stage::Open) || !self.out.is_empty() {
            return 0;
        }
        let mut mask = self.masks.mask();
        self.out.extend_from_slice(Header::new(Opcode::Binary, length as u64, Some(mask)).bytes());
        let payload = self.out.len();
        for slice in slices {
            let room = payload + length - self.out.len();
            self.out.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        mask.apply(&mut self.out[payload..]);
        length
    }

    /// Moves the bytes of the stream in the received `bytes` to their beginning, and returns how many there are.
    ///
    /// # Errors
    /// The server refuses the upgrade, or sends bytes of the stream right behind its answer: an MQTT server speaks second.
    pub fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, UpgradeError> {
        let mut frames = bytes;
        let is_first = self.is_upgrading();
        if let Stage::Upgrading(upgrade, answer) = &mut self.stage {
            let before = answer.len();
            answer.extend_from_slice(frames);
            let Some(length) = upgrade.judge(answer)? else { return Ok(0) };
            frames = &mut frames[length - before..];
            self.stage = Stage::Open;
        }
        let length = self.incoming.unpack(frames);
        if is_first && length > 0 {
            return Err(UpgradeError::Answer("bytes of MQTT follow it at once"));
        }
        self.answer_ping();
        match self.incoming.end() {
            Some(End::Close(code)) => self.close(code),
            Some(End::Violation(violation)) => self.close(Some(violation.code())),
            None => {}
        }
        Ok(length)
    }

    /// End of the stream, once all bytes before it are received.
    pub fn end(&self) -> Option<End> {
        self.incoming.end()
    }

    /// Puts Close into the output, once.
    pub fn close(&mut self, code: Option<CloseCode>) {
        if !matches!(self.stage, Stage::Open) {
            return;
        }
        self.stage = Stage::Closed;
        let code = code.map(|CloseCode(code)| code.to_be_bytes());
        let payload = code.as_ref().map_or(&[][..], |code| code);
        append_frame(&mut self.out, Opcode::Close, payload, Some(self.masks.mask()));
    }

    /// Only with empty output, so that a server that reads nothing cannot fill it with pongs.
    fn answer_ping(&mut self) {
        if matches!(self.stage, Stage::Open)
            && self.out.is_empty()
            && let Some(payload) = self.incoming.take_pong()
        {
            append_frame(&mut self.out, Opcode::Pong, &payload, Some(self.masks.mask()));
        }
    }
}

impl Masks {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn mask(&mut self) -> Mask {
        Mask((self.next() as u32).to_ne_bytes())
    }
}

/// Maximum payload of a frame, in bytes: it is copied to be masked.
const FRAME_MAX: usize = 64 * 1024;
/// Memory of the output that an idle connection keeps, in bytes.
const OUT_KEPT: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outgoing, Rules, accept};

    /// A connection whose upgrade is done, by an answer in two parts.
    fn open() -> ClientConnection {
        let mut client = ClientConnection::new("b:80", "/mqtt", 7);
        assert_eq!(client.send(b"early"), 0);
        let accepted = accept(client.output(), Rules { path: "/mqtt", origins: &[] }).unwrap().unwrap();
        client.wrote(client.output().len());
        let mut answer = accepted.answer.into_bytes();
        let (head, tail) = answer.split_at_mut(20);
        assert_eq!((client.receive(head), client.is_upgrading()), (Ok(0), true));
        assert_eq!((client.receive(tail), client.is_upgrading()), (Ok(0), false));
        client
    }

    #[test]
    fn server_reads_the_clients_bytes() {
        let mut client = open();
        let mut server = Incoming::new(Side::Server);
        let bytes: Vec<_> = (0..200_000_u32).map(|at| at as u8).collect();
        let mut read = Vec::new();
        while read.len() < bytes.len() {
            assert!(client.send(&bytes[read.len()..]) > 0);
            assert_eq!(client.send(b"more"), 0, "one frame at a time");
            let mut wire = client.output().to_vec();
            client.wrote(wire.len());
            let length = server.unpack(&mut wire);
            read.extend_from_slice(&wire[..length]);
        }
        assert!(read == bytes);
        client.close(Some(CloseCode::NORMAL));
        client.close(Some(CloseCode::NORMAL));
        assert_eq!(server.unpack(&mut client.output().to_vec()), 0);
        assert_eq!((server.end(), client.output().len()), (Some(End::Close(Some(CloseCode::NORMAL))), 8));
    }

    #[test]
    fn last_ping_is_answered_after_earlier_output() {
        let mut client = open();
        client.send(b"data");
        for payload in [b"1", b"2"] {
            let mut ping = Outgoing::default();
            ping.begin_control(Opcode::Ping, payload);
            assert_eq!(client.receive(&mut ping.control().unwrap().to_vec()), Ok(0));
        }
        let data = client.output().len();
        assert_eq!(data, 10);
        client.wrote(data);
        let pong = client.output();
        assert_eq!((pong[0], pong.len(), pong[6] ^ pong[2]), (0x8A, 7, b'2'));
    }

    #[test]
    fn close_is_answered_with_its_code() {
        let mut client = open();
        let mut close = Outgoing::default();
        close.begin_close(Some(CloseCode(1001)));
        assert_eq!(client.receive(&mut close.control().unwrap().to_vec()), Ok(0));
        assert_eq!(client.end(), Some(End::Close(Some(CloseCode(1001)))));
        assert_eq!((client.output()[0], client.output().len(), client.send(b"x")), (0x88, 8, 0));
    }
}
