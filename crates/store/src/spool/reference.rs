//! References to messages that are on disk, for a reader of another copy of the log.

use super::{
    disk::DiskFile,
    record::{self, HEADER, Spot},
};
use std::{io, sync::Arc};

/// Where a stored message's payload is, in any copy of the log: its last bytes, behind a head that the sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    segment: u32,
    offset: u32,
    seed: u32,
    /// Bytes of the record.
    length: u32,
    /// Bytes of the record before the payload.
    payload_at: u32,
    /// Checksum of these bytes as the sender has read them.
    head_crc: u32,
    /// Oldest segment of the log when the sender read them.
    oldest: u32,
}

/// A message's record, of which only the beginning was read. Nothing of it is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    segment: u32,
    /// Oldest segment of the log when it was read.
    oldest: u32,
    spot: Spot,
    length: u32,
    body_at: u32,
    /// Checksum of the bytes before the body.
    crc: u32,
}

impl RecordAt {
    /// `segments`: the one of the record, and the oldest one of the log.
    pub(super) fn new((segment, oldest): (u32, u32), spot: Spot, length: u32, before_body: &[u8]) -> Self {
        Self { segment, oldest, spot, length, body_at: before_body.len() as u32, crc: crc32c::crc32c(before_body) }
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> usize {
        self.length.saturating_sub(self.body_at) as usize
    }

    /// A reference to the rest of the body behind `head`, which was read from it.
    pub fn behind(&self, head: &[u8]) -> Reference {
        let Self { segment, oldest, spot, length, body_at, crc } = *self;
        Reference {
            segment,
            offset: spot.offset,
            seed: spot.seed,
            length,
            payload_at: body_at + head.len() as u32,
            head_crc: crc32c::crc32c_append(crc, head),
            oldest,
        }
    }
}

impl Reference {
    /// Encoded size in bytes.
    pub const BYTES: usize = 28;

    /// Encodes the reference.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = [self.segment, self.offset, self.seed, self.length, self.payload_at, self.head_crc, self.oldest];
        for (out, field) in bytes.as_chunks_mut().0.iter_mut().zip(fields) {
            *out = field.to_be_bytes();
        }
        bytes
    }

    /// Decodes a reference. Any bytes are one; reading the payload verifies it.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut fields = bytes.as_chunks().0.iter().map(|field| u32::from_be_bytes(*field));
        let mut next = || fields.next().expect("28 bytes are seven fields");
        Self {
            segment: next(),
            offset: next(),
            seed: next(),
            length: next(),
            payload_at: next(),
            head_crc: next(),
            oldest: next(),
        }
    }

    /// Bytes of the payload.
    pub fn payload_len(&self) -> u32 {
        self.length.saturating_sub(self.payload_at)
    }

    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// The oldest segment that this and later references of the same receiver can be about.
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest
    }
}

/// Why a payload cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPayload {
    /// The segment cannot be read. It may have been removed.
    #[error("segment {0}: {1}")]
    Io(u32, io::Error),
    /// The record differs from the one that the sender means.
    #[error("segment {0}: offset {1}: the message differs from the leader's")]
    Differs(u32, u32),
}

/// The payload of a message in a segment, found to be the one that the sender means.
pub struct Payload {
    file: Arc<dyn DiskFile>,
    reference: Reference,
    /// Checksums of the pieces: the file may change before they are read again.
    sums: Vec<u32>,
    /// The payload, if it has one piece.
    only: Option<Vec<u8>>,
}

/// Bytes of a piece. Memory holds one piece of a message at a time.
const PIECE: usize = 64 << 10;
/// Most bytes of a record before its payload.
const HEAD_MAX: u32 = 64 << 10;

impl Payload {
    /// Reads and verifies the record of a reference.
    pub(crate) fn find(file: Arc<dyn DiskFile>, reference: Reference) -> Result<Self, NoPayload> {
        let Reference { segment, offset, seed, length, payload_at, head_crc, .. } = reference;
        let differs = || NoPayload::Differs(segment, offset);
        if !(HEADER as u32..=length.min(HEAD_MAX)).contains(&payload_at) {
            return Err(differs());
        }
        let mut head = vec![0; payload_at as usize];
        let io = |error| NoPayload::Io(segment, error);
        let read = file.read_at(&mut head, offset.into()).map_err(io)?;
        let is_same = read == head.len()
            && crc32c::crc32c(&head) == head_crc
            && record::length_at(&head) == Some(length as usize);
        if !is_same {
            return Err(differs());
        }
        let mut payload = Self { file, reference, sums: Vec::new(), only: None };
        let mut sum = record::Checksum::begin(Spot { seed, offset }, length, &head);
        for number in 0..payload.pieces() {
            let piece = payload.read(number).map_err(io)?;
            sum.add(&piece);
            payload.sums.push(crc32c::crc32c(&piece));
            payload.only = Some(piece);
        }
        if !sum.is_right(&head) {
            return Err(differs());
        }
        payload.only.take_if(|_| payload.sums.len() > 1);
        Ok(payload)
    }

    /// Number of pieces in which it is read.
    pub fn pieces(&self) -> usize {
        (self.reference.payload_len() as usize).div_ceil(PIECE)
    }

    /// Reads a piece, and verifies it again.
    ///
    /// # Errors
    /// The piece cannot be read, or has changed since it was found.
    pub fn piece(&mut self, number: usize) -> Result<Vec<u8>, NoPayload> {
        if let Some(only) = self.only.take_if(|_| number == 0) {
            return Ok(only);
        }
        let Reference { segment, offset, .. } = self.reference;
        let piece = self.read(number).map_err(|error| NoPayload::Io(segment, error))?;
        if self.sums.get(number) == Some(&crc32c::crc32c(&piece)) {
            Ok(piece)
        } else {
            Err(NoPayload::Differs(segment, offset))
        }
    }

    fn read(&self, number: usize) -> io::Result<Vec<u8>> {
        let Reference { offset, length, payload_at, .. } = self.reference;
        let (begin, end) = (payload_at as usize + number * PIECE, length as usize);
        let mut piece = vec![0; end.saturating_sub(begin).min(PIECE)];
        let read = self.file.read_at(&mut piece, u64::from(offset) + begin as u64)?;
        if read == piece.len() { Ok(piece) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payload").field("reference", &self.reference).finish_non_exhaustive()
    }
}
