//! Headers of frames (RFC 6455 §5.2).

use crate::Mask;

/// Maximum payload of a control frame, in bytes.
pub const CONTROL_MAX: usize = 125;

/// One side of a connection. A client masks its frames; a server does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Accepts connections.
    Server,
    /// Opens connections.
    Client,
}

/// Kind of a frame that this crate sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// Bytes of the stream.
    Binary = 0x2,
    /// End of the stream.
    Close = 0x8,
    /// Question whether the peer is there.
    Ping = 0x9,
    /// Answer to a ping.
    Pong = 0xA,
}

/// Encoded header of an unfragmented frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; HEADER_MAX],
    len: u8,
}

impl Header {
    pub(crate) fn new(opcode: Opcode, payload_len: u64, mask: Option<Mask>) -> Self {
        let mut header = Self { bytes: [0; HEADER_MAX], len: 0 };
        let masked = if mask.is_some() { MASKED } else { 0 };
        header.put(&[FIN | opcode as u8]);
        match payload_len {
            0..=125 => header.put(&[masked | payload_len as u8]),
            126..=0xFFFF => {
                header.put(&[masked | LENGTH_16]);
                header.put(&(payload_len as u16).to_be_bytes());
            }
            _ => {
                header.put(&[masked | LENGTH_64]);
                header.put(&payload_len.to_be_bytes());
            }
        }
        if let Some(Mask(mask)) = mask {
            header.put(&mask);
        }
        header
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Appends an unfragmented frame to `out`. Clients pass a `mask`, servers none.
pub fn append_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: Option<Mask>) {
    out.extend_from_slice(Header::new(opcode, payload.len() as u64, mask).bytes());
    let at = out.len();
    out.extend_from_slice(payload);
    if let Some(mut mask) = mask {
        mask.apply(&mut out[at..]);
    }
}

/// Bits of a header's first byte.
pub(crate) const FIN: u8 = 0x80;
pub(crate) const RESERVED: u8 = 0x70;
/// Bit of the second byte, and its lengths that mean a field of 16 or 64 bits.
pub(crate) const MASKED: u8 = 0x80;
pub(crate) const LENGTH_16: u8 = 126;
pub(crate) const LENGTH_64: u8 = 127;
const HEADER_MAX: usize = 14;
