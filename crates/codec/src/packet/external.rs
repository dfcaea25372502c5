//! Messages whose payload a relay puts in: a reference to the payload travels in its place.
//!
//! ```text
//!   0 | length of the rest | PUBLISH packet, whose payload is: length of the real payload (4) | reference
//! ```
//!
//! Packet type 0 is forbidden in MQTT, so that no client takes such a packet for another one. An [`ExternalScanner`] finds
//! the packets in a stream, and an [`ExternalPublish`] is the content of one.

use bytes::{Buf as _, Bytes};

use super::PublishTemplate;
use crate::varint::{peek_any_varint, write_varint};
use crate::{PacketType, VARINT_MAX, WriteBuffer};

/// Bytes of a reference, whose meaning is the caller's.
pub const REFERENCE_BYTES: usize = 28;
/// Bytes in place of a payload.
const STAND_IN_BYTES: usize = 4 + REFERENCE_BYTES;
/// Longest content of an external packet: topic, properties, and Subscription Identifiers are far shorter.
const CONTENT_MAX: usize = 128 * 1024;

/// The external packet without content, by which a sender begins a stream with external packets.
pub const EXTERNAL_GREETING: [u8; 2] = [0, 0];

impl PublishTemplate {
    /// A message without its payload of `payload_len` bytes. `head`: its stored form up to the payload, as
    /// [`PublishTemplate::restore`] takes it. `None` for invalid bytes.
    ///
    /// It is encoded with the reference in place of the payload: [`write_external`] has to follow.
    pub fn external(
        properties_len: u32,
        head: Bytes,
        payload_len: u32,
        reference: [u8; REFERENCE_BYTES],
    ) -> Option<Self> {
        let mut stand_in = [0; STAND_IN_BYTES];
        stand_in[..4].copy_from_slice(&payload_len.to_be_bytes());
        stand_in[4..].copy_from_slice(&reference);
        let template = Self::restore(properties_len, head).filter(|template| template.payload().is_empty())?;
        Some(template.with_stand_in(Bytes::copy_from_slice(&stand_in)))
    }

    /// Bytes of the message with its real payload.
    #[inline]
    pub fn whole_len(&self) -> usize {
        if self.is_external() { self.external_len() } else { self.len() }
    }

    #[cold]
    fn external_len(&self) -> usize {
        let real = self.payload().first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        self.len() - STAND_IN_BYTES + real as usize
    }
}

/// Appends an encoded PUBLISH of an external template as an external packet.
pub fn write_external(mut publish: WriteBuffer, out: &mut WriteBuffer) {
    let mut packet = vec![0];
    write_varint(&mut packet, publish.len() as u32);
    packet.extend_from_slice(&publish.copy_to_bytes(publish.remaining()));
    out.append_packets(&packet);
}

/// Content of an external packet.
#[derive(Debug, PartialEq, Eq)]
pub struct ExternalPublish {
    /// The PUBLISH packet up to its payload, with the length of the real payload in its header.
    pub head: Vec<u8>,
    /// Bytes of the real payload.
    pub payload_len: u32,
    /// The reference to it.
    pub reference: [u8; REFERENCE_BYTES],
}

impl ExternalPublish {
    /// Takes the content of an external packet apart. `None` for invalid bytes.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let (&first, rest) = content.split_first()?;
        let (remaining, width) = peek_any_varint(rest).ok()??;
        let body = &rest[width..];
        if first >> 4 != PacketType::Publish as u8 || body.len() != remaining as usize {
            return None;
        }
        let (before, stand_in) = body.split_at_checked(body.len().checked_sub(STAND_IN_BYTES)?)?;
        let (length, reference) = stand_in.split_first_chunk()?;
        let payload_len = u32::from_be_bytes(*length);
        let remaining = payload_len.checked_add(before.len() as u32).filter(|&remaining| remaining <= VARINT_MAX)?;
        let mut head = vec![first];
        write_varint(&mut head, remaining);
        head.extend_from_slice(before);
        Some(Self { head, payload_len, reference: reference.try_into().ok()? })
    }
}

/// Finds external packets in a stream of MQTT packets, which may be cut anywhere.
#[derive(Debug, Default)]
pub struct ExternalScanner {
    at: At,
}

/// Place in a stream.
#[derive(Debug, Default)]
enum At {
    /// Before a packet.
    #[default]
    Start,
    /// In the length of a packet.
    Length { is_external: bool, value: u32, width: u8 },
    /// In an ordinary packet of which this many bytes are to come.
    Ordinary(usize),
    /// In an external packet: its content so far, and the number of bytes to come.
    External(Vec<u8>, usize),
}

/// A piece that an [`ExternalScanner`] has found at the begin of its input.
#[derive(Debug, PartialEq, Eq)]
pub enum Scanned {
    /// This many bytes of ordinary packets.
    Ordinary(usize),
    /// This many bytes of an external packet that is not complete.
    Part(usize),
    /// This many bytes, which complete an external packet with this content.
    External(usize, Vec<u8>),
}

/// A stream that is no sequence of MQTT packets, or has a too large external packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadStream;

impl ExternalScanner {
    /// Whether this byte, if it is the next one, belongs to an external packet.
    pub fn is_external(&self, next: u8) -> bool {
        match self.at {
            At::Start => next >> 4 == 0,
            At::Length { is_external, .. } => is_external,
            At::Ordinary(_) => false,
            At::External(..) => true,
        }
    }

    /// Scans the next bytes of the stream that belong together. Scan the remaining bytes next. `input` is not empty.
    ///
    /// # Errors
    /// The stream is invalid. It cannot be scanned any more.
    pub fn scan(&mut self, input: &[u8]) -> Result<Scanned, BadStream> {
        let mut used = 0;
        while let Some(&byte) = input.get(used) {
            match &mut self.at {
                At::Start if byte >> 4 == 0 && used > 0 => break,
                At::Start => {
                    self.at = At::Length { is_external: byte >> 4 == 0, value: 0, width: 0 };
                    used += 1;
                }
                At::Length { is_external, value, width } => {
                    *value |= u32::from(byte & 0x7F) << (7 * *width);
                    *width += 1;
                    used += 1;
                    let (is_external, length) = (*is_external, *value as usize);
                    match (byte & 0x80 != 0, is_external) {
                        (true, _) if *width == 4 => return Err(BadStream),
                        (true, _) => {}
                        (false, true) if length > CONTENT_MAX => return Err(BadStream),
                        (false, true) => self.at = At::External(Vec::new(), length),
                        (false, false) => self.at = if length == 0 { At::Start } else { At::Ordinary(length) },
                    }
                    if let At::External(_, 0) = self.at {
                        self.at = At::Start;
                        return Ok(Scanned::External(used, Vec::new()));
                    }
                }
                At::Ordinary(left) => {
                    let step = (*left).min(input.len() - used);
                    used += step;
                    *left -= step;
                    if *left == 0 {
                        self.at = At::Start;
                    }
                }
                At::External(content, left) => {
                    let step = (*left).min(input.len() - used);
                    content.extend_from_slice(&input[used..used + step]);
                    used += step;
                    *left -= step;
                    if *left == 0 {
                        let content = std::mem::take(content);
                        self.at = At::Start;
                        return Ok(Scanned::External(used, content));
                    }
                }
            }
        }
        let is_external = matches!(self.at, At::External(..) | At::Length { is_external: true, .. });
        Ok(if is_external { Scanned::Part(used) } else { Scanned::Ordinary(used) })
    }
}
