//! Operations between a leader and its copy, as bytes.
//!
//! ```text
//! 0        4      5
//! ┌────────┬──────┬────────┐    length counts kind and fields; numbers are little-endian; a text has its length before it,
//! │ length │ kind │ fields │    in two bytes; the last field of some kinds fills the rest
//! └────────┴──────┴────────┘
//! ```

use std::io::{self, Read};

use crate::state::{Batch, Table};

/// An operation. Those with a number are confirmed by [`Operation::Confirmed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    // From the leader to the copy of the log.
    /// A file that the leader has; [`Operation::EndOfFiles`] follows the last one.
    File {
        name: &'a str,
        length: u64,
    },
    EndOfFiles,
    Create {
        name: &'a str,
    },
    Rename {
        from: &'a str,
        to: &'a str,
    },
    Remove {
        name: &'a str,
    },
    SyncNames {
        number: u64,
    },
    Write {
        name: &'a str,
        offset: u64,
        bytes: &'a [u8],
    },
    Allocate {
        name: &'a str,
        length: u64,
    },
    Truncate {
        name: &'a str,
        length: u64,
    },
    Sync {
        number: u64,
        name: &'a str,
    },
    /// Confirm that everything before is performed.
    Settle {
        number: u64,
    },
    /// Sync all files that were written since the connection began.
    SyncAll {
        number: u64,
    },
    /// Replace a small file of the data directory.
    Replace {
        number: u64,
        path: &'a str,
        bytes: &'a [u8],
    },
    /// Write a part of a small file, and create the file if it is missing.
    WriteSmall {
        path: &'a str,
        offset: u64,
        bytes: &'a [u8],
    },
    /// Remove all small files: the leader's follow.
    ClearSmall,
    /// Compare a segment up to `end`: the hashes of its pieces at the leader.
    Same {
        name: &'a str,
        end: u64,
        hashes: &'a [u8],
    },
    // From the leader to the copy of the state.
    /// Begin with an empty state.
    Clear,
    /// Part of the leader's state when the connection began; [`Operation::EndOfEntries`] follows the last one. Keys that a
    /// [`Operation::Apply`] has changed before stay.
    Entries {
        changes: &'a [u8],
    },
    EndOfEntries {
        number: u64,
    },
    Apply {
        number: u64,
        changes: &'a [u8],
    },
    SyncState {
        number: u64,
    },
    /// Compare the state at the last [`Operation::Moment`] 0: the hash of the leader's.
    SameState {
        hash: &'a [u8],
    },
    // To both.
    /// A moment at which the leader performs nothing. 0: for a comparison.
    Moment {
        number: u64,
    },
    // In a backup.
    /// Everything is in the backup.
    EndOfBackup,
    // From the copy to the leader.
    /// A file of the copy, and the hash of each piece of it; [`Operation::EndOfInventory`] follows the last one.
    Has {
        name: &'a str,
        hashes: &'a [u8],
    },
    EndOfInventory,
    /// Everything up to `number` is done. `free` and `size`: bytes of the file system, 0 if unknown.
    Confirmed {
        number: u64,
        free: u64,
        size: u64,
    },
    /// An operation failed: the copy stops.
    Failed {
        error: &'a str,
    },
}

use Operation as O;

impl Operation<'_> {
    /// Appends the operation to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[0; 4]);
        out.push(self.kind());
        match *self {
            O::EndOfFiles | O::ClearSmall | O::Clear | O::EndOfBackup | O::EndOfInventory => {}
            O::File { name, length } | O::Allocate { name, length } | O::Truncate { name, length } => {
                out.extend_from_slice(&length.to_le_bytes());
                text(out, name);
            }
            O::Create { name } | O::Remove { name } => text(out, name),
            O::Rename { from, to } => {
                text(out, from);
                text(out, to);
            }
            O::SyncNames { number }
            | O::Settle { number }
            | O::SyncAll { number }
            | O::EndOfEntries { number }
            | O::SyncState { number }
            | O::Moment { number } => out.extend_from_slice(&number.to_le_bytes()),
            O::Write { name, offset, bytes } => {
                out.extend_from_slice(&offset.to_le_bytes());
                text(out, name);
                out.extend_from_slice(bytes);
            }
            O::Sync { number, name } => {
                out.extend_from_slice(&number.to_le_bytes());
                text(out, name);
            }
            O::Replace { number, path, bytes } => {
                out.extend_from_slice(&number.to_le_bytes());
                text(out, path);
                out.extend_from_slice(bytes);
            }
            O::WriteSmall { path, offset, bytes } => {
                out.extend_from_slice(&offset.to_le_bytes());
                text(out, path);
                out.extend_from_slice(bytes);
            }
            O::Entries { changes: bytes } | O::SameState { hash: bytes } => out.extend_from_slice(bytes),
            O::Same { name, end, hashes } => {
                out.extend_from_slice(&end.to_le_bytes());
                text(out, name);
                out.extend_from_slice(hashes);
            }
            O::Apply { number, changes } => {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(changes);
            }
            O::Has { name, hashes } => {
                text(out, name);
                out.extend_from_slice(hashes);
            }
            O::Confirmed { number, free, size } => {
                [number, free, size].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            O::Failed { error } => out.extend_from_slice(error.as_bytes()),
        }
        let length = (out.len() - begin - 4) as u32;
        out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            O::File { .. } => 1,
            O::EndOfFiles => 2,
            O::Create { .. } => 3,
            O::Rename { .. } => 4,
            O::Remove { .. } => 5,
            O::SyncNames { .. } => 6,
            O::Write { .. } => 7,
            O::Allocate { .. } => 8,
            O::Truncate { .. } => 9,
            O::Sync { .. } => 10,
            O::Settle { .. } => 11,
            O::SyncAll { .. } => 12,
            O::Replace { .. } => 13,
            O::WriteSmall { .. } => 14,
            O::ClearSmall => 15,
            O::Same { .. } => 16,
            O::Clear => 20,
            O::Entries { .. } => 21,
            O::EndOfEntries { .. } => 22,
            O::Apply { .. } => 23,
            O::SyncState { .. } => 24,
            O::EndOfBackup => 25,
            O::SameState { .. } => 26,
            O::Moment { .. } => 27,
            O::Has { .. } => 30,
            O::EndOfInventory => 31,
            O::Confirmed { .. } => 32,
            O::Failed { .. } => 33,
        }
    }

    /// Reads an operation without its length.
    pub(super) fn decode(frame: &[u8]) -> io::Result<Operation<'_>> {
        let (&kind, fields) = frame.split_first().ok_or_else(cut)?;
        let mut fields = Fields(fields);
        let operation = match kind {
            1 | 8 | 9 => {
                let (length, name) = (fields.number()?, fields.name()?);
                match kind {
                    1 => O::File { name, length },
                    8 => O::Allocate { name, length },
                    _ => O::Truncate { name, length },
                }
            }
            2 => O::EndOfFiles,
            3 => O::Create { name: fields.name()? },
            4 => O::Rename { from: fields.name()?, to: fields.name()? },
            5 => O::Remove { name: fields.name()? },
            6 => O::SyncNames { number: fields.number()? },
            7 => O::Write { offset: fields.number()?, name: fields.name()?, bytes: fields.rest() },
            10 => O::Sync { number: fields.number()?, name: fields.name()? },
            11 => O::Settle { number: fields.number()? },
            12 => O::SyncAll { number: fields.number()? },
            13 => O::Replace { number: fields.number()?, path: fields.path()?, bytes: fields.rest() },
            14 => O::WriteSmall { offset: fields.number()?, path: fields.path()?, bytes: fields.rest() },
            15 => O::ClearSmall,
            16 => O::Same { end: fields.number()?, name: fields.name()?, hashes: fields.rest() },
            20 => O::Clear,
            21 => O::Entries { changes: fields.rest() },
            22 => O::EndOfEntries { number: fields.number()? },
            23 => O::Apply { number: fields.number()?, changes: fields.rest() },
            24 => O::SyncState { number: fields.number()? },
            25 => O::EndOfBackup,
            26 => O::SameState { hash: fields.rest() },
            27 => O::Moment { number: fields.number()? },
            30 => O::Has { name: fields.name()?, hashes: fields.rest() },
            31 => O::EndOfInventory,
            32 => O::Confirmed { number: fields.number()?, free: fields.number()?, size: fields.number()? },
            33 => {
                O::Failed { error: std::str::from_utf8(fields.rest()).map_err(|_| wrong("an error that is no text"))? }
            }
            kind => return Err(wrong(format!("unknown operation {kind}: the other node has another version"))),
        };
        fields.0.is_empty().then_some(operation).ok_or_else(|| wrong("an operation with more bytes than its fields"))
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn wrong(text: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn cut() -> io::Error {
    wrong("an operation is cut")
}

/// Fields that are still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> io::Result<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("it has eight bytes")))
    }

    fn text(&mut self) -> io::Result<&'a str> {
        let length = self.take(2)?;
        let text = self.take(usize::from(u16::from_le_bytes([length[0], length[1]])))?;
        std::str::from_utf8(text).map_err(|_| wrong("a name that is no text"))
    }

    /// Name of a file in one directory.
    fn name(&mut self) -> io::Result<&'a str> {
        let name = self.text()?;
        let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        is_plain.then_some(name).ok_or_else(|| wrong(format!("{name:?} is no name of a file")))
    }

    /// Path of a file below the data directory.
    fn path(&mut self) -> io::Result<&'a str> {
        let path = self.text()?;
        let is_plain = path.split('/').all(|name| !name.is_empty() && !name.starts_with('.') && !name.contains('\0'));
        is_plain.then_some(path).ok_or_else(|| wrong(format!("{path:?} is no path of a file")))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Reads the next frame into `frame`, without its length. False: the connection has ended between two frames.
pub(super) fn read_frame(from: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match from.read(&mut length)? {
        0 => return Ok(false),
        count => from.read_exact(&mut length[count..])?,
    }
    let length = u32::from_le_bytes(length);
    frame.clear();
    // Memory grows with the received bytes, not with the announced ones.
    let received = from.take(u64::from(length)).read_to_end(frame)?;
    if received < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if frame.capacity() > KEPT_BYTES && received <= KEPT_BYTES {
        frame.shrink_to(KEPT_BYTES);
    }
    Ok(true)
}

/// Buffer that stays after a large frame.
const KEPT_BYTES: usize = 4 << 20;

/// Appends a change of a batch: table, length of the key, key, length of the value + 1 or 0, value.
pub(super) fn encode_change(out: &mut Vec<u8>, table: Table, key: &[u8], value: Option<&[u8]>) {
    out.push(table as u8);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&value.map_or(0, |value| value.len() as u32 + 1).to_le_bytes());
    out.extend_from_slice(value.unwrap_or_default());
}

/// Appends all changes of a batch.
pub(super) fn encode_batch(out: &mut Vec<u8>, batch: &Batch) {
    batch.iter().for_each(|(table, key, value)| encode_change(out, table, key, value));
}

/// A change of a batch.
pub(super) type Change<'a> = (Table, &'a [u8], Option<&'a [u8]>);

/// Reads changes in their order.
pub(super) fn changes(bytes: &[u8]) -> impl Iterator<Item = io::Result<Change<'_>>> {
    let mut fields = Fields(bytes);
    std::iter::from_fn(move || {
        if fields.0.is_empty() {
            return None;
        }
        let change = next_change(&mut fields);
        if change.is_err() {
            fields.0 = &[];
        }
        Some(change)
    })
}

fn next_change<'a>(fields: &mut Fields<'a>) -> io::Result<Change<'a>> {
    let table = fields.take(1)?[0];
    let table = Table::ALL.into_iter().find(|known| *known as u8 == table);
    let table = table.ok_or_else(|| wrong("a table that this version does not know"))?;
    let length = fields.take(2)?;
    let key = fields.take(usize::from(u16::from_le_bytes([length[0], length[1]])))?;
    let length = u32::from_le_bytes(fields.take(4)?.try_into().expect("it has four bytes"));
    let value = match length {
        0 => None,
        length => Some(fields.take(length as usize - 1)?),
    };
    Ok((table, key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_round_trips() {
        let all = [
            O::File { name: "a", length: 7 },
            O::EndOfFiles,
            O::Create { name: "0000000001.log" },
            O::Rename { from: "a", to: "b" },
            O::Remove { name: "a" },
            O::SyncNames { number: 1 },
            O::Write { name: "a", offset: 1 << 40, bytes: b"bytes" },
            O::Allocate { name: "a", length: u64::MAX },
            O::Truncate { name: "a", length: 0 },
            O::Sync { number: 2, name: "a" },
            O::Settle { number: 3 },
            O::SyncAll { number: 4 },
            O::Replace { number: 5, path: "sn/topics", bytes: b"" },
            O::WriteSmall { path: "sn/topics", offset: 1 << 33, bytes: b"more" },
            O::ClearSmall,
            O::Clear,
            O::Entries { changes: b"x" },
            O::EndOfEntries { number: 6 },
            O::Apply { number: 7, changes: b"" },
            O::SyncState { number: 8 },
            O::EndOfBackup,
            O::Same { name: "0000000001.log", end: 64, hashes: &[1; 32] },
            O::SameState { hash: &[2; 16] },
            O::Moment { number: 12 },
            O::Has { name: "a", hashes: &[1; 16] },
            O::EndOfInventory,
            O::Confirmed { number: 9, free: 10, size: 11 },
            O::Failed { error: "no space" },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|operation| operation.encode(&mut bytes));
        let (mut from, mut frame) = (&bytes[..], Vec::new());
        for operation in &all {
            assert!(read_frame(&mut from, &mut frame).unwrap());
            assert_eq!(&Operation::decode(&frame).unwrap(), operation);
        }
        assert!(!read_frame(&mut from, &mut frame).unwrap());
    }

    #[test]
    fn names_outside_of_the_directory_are_refused() {
        for name in ["", ".", "..", "../a", "a/b", ".hidden", "a\0"] {
            let mut bytes = Vec::new();
            O::Remove { name }.encode(&mut bytes);
            assert!(Operation::decode(&bytes[4..]).is_err(), "{name:?}");
        }
        for path in ["", "/etc/passwd", "a/../b", "a//b"] {
            let mut bytes = Vec::new();
            O::Replace { number: 1, path, bytes: b"" }.encode(&mut bytes);
            assert!(Operation::decode(&bytes[4..]).is_err(), "{path:?}");
        }
    }

    #[test]
    fn every_cut_and_every_unknown_kind_is_an_error() {
        let mut bytes = Vec::new();
        O::Confirmed { number: 9, free: 10, size: 11 }.encode(&mut bytes);
        for length in 4..bytes.len() {
            assert!(Operation::decode(&bytes[4..length]).is_err(), "{length}");
            assert!(length == 4 || read_frame(&mut &bytes[..length], &mut Vec::new()).is_err(), "{length}");
        }
        assert!(Operation::decode(&[99]).is_err());
        let mut more = bytes[4..].to_vec();
        more.push(0);
        assert!(Operation::decode(&more).is_err());
    }

    #[test]
    fn changes_round_trip_and_cut_ones_are_errors() {
        let mut bytes = Vec::new();
        encode_change(&mut bytes, Table::Meta, b"key", Some(b"value"));
        encode_change(&mut bytes, Table::Meta, b"", Some(b""));
        encode_change(&mut bytes, Table::Meta, b"gone", None);
        let read: Vec<_> = changes(&bytes).map(Result::unwrap).collect();
        let wanted: [Change<'_>; 3] =
            [(Table::Meta, b"key", Some(b"value")), (Table::Meta, b"", Some(b"")), (Table::Meta, b"gone", None)];
        assert_eq!(read, wanted);
        assert!(changes(&bytes[..bytes.len() - 1]).any(|change| change.is_err()));
    }
}
