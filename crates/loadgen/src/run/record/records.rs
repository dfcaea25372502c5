//! Binary rows for records of single messages that agents send.
//!
//! A million arrivals take 32 MB. As JSON they would take 120 MB, and as much longer to write and to read.

use crate::run::{MessageRecord, PublishRecord};

/// A record of a fixed number of bytes.
pub(super) trait Row: Copy {
    const LEN: usize;

    fn write(&self, bytes: &mut Vec<u8>);

    /// Reads a row from [`Row::LEN`] bytes.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// Appends `rows` to `bytes`.
pub(super) fn write<R: Row>(rows: &[R], bytes: &mut Vec<u8>) {
    bytes.reserve(rows.len() * R::LEN);
    rows.iter().for_each(|row| row.write(bytes));
}

/// Parses bytes that consist of whole rows; `None` for any others.
pub(super) fn read<R: Row>(bytes: &[u8]) -> Option<Vec<R>> {
    bytes.chunks(R::LEN).map(R::read).collect()
}

impl Row for MessageRecord {
    const LEN: usize = 32;

    fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.stream, self.sequence, self.receiver, self.late_us] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&self.due_ns.to_be_bytes());
        bytes.extend_from_slice(&self.received_ns.to_be_bytes());
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            stream: u32::from_be_bytes(next(&mut bytes)?),
            sequence: u32::from_be_bytes(next(&mut bytes)?),
            receiver: u32::from_be_bytes(next(&mut bytes)?),
            late_us: u32::from_be_bytes(next(&mut bytes)?),
            due_ns: u64::from_be_bytes(next(&mut bytes)?),
            received_ns: u64::from_be_bytes(next(&mut bytes)?),
        })
    }
}

impl Row for PublishRecord {
    const LEN: usize = 16;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&self.published_ns.to_be_bytes());
    }

    fn read(mut bytes: &[u8]) -> Option<Self> {
        Some(Self {
            stream: u32::from_be_bytes(next(&mut bytes)?),
            sequence: u32::from_be_bytes(next(&mut bytes)?),
            published_ns: u64::from_be_bytes(next(&mut bytes)?),
        })
    }
}

/// Removes and returns the first `N` bytes.
pub(super) fn next<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}
