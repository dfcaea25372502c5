//! Confirmed position of the log, in a file beside its segments.
//!
//! Damage to the last write looks like a write that a crash has torn. This file tells them apart.
//!
//! It is written after each confirmation, but never synced: it survives a killed process, and a power cut may leave an
//! older version. Its position never exceeds the confirmed data. A missing or damaged file gives no information.

use super::{
    disk::{Disk, DiskFile, write_all},
    names::Position,
};

pub(super) struct Confirmed(Option<Box<dyn DiskFile>>);

impl Confirmed {
    pub(super) fn of(disk: &dyn Disk) -> Self {
        Self(disk.open(FILE).or_else(|_| disk.create(FILE)).ok())
    }

    pub(super) fn write(&self, position: Position) {
        if let Some(file) = &self.0 {
            // Without the file, damage at the end looks like a torn write.
            let _ = write_all(&**file, &encode(position), 0);
        }
    }
}

/// Returns the position up to which everything was confirmed.
pub(super) fn read(disk: &dyn Disk) -> Option<Position> {
    let mut bytes = [0; BYTES];
    let length = disk.open(FILE).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
    let position = Position::from_bits(u64::from_le_bytes(*bytes.first_chunk()?));
    (length == BYTES && bytes == encode(position)).then_some(position)
}

fn encode(position: Position) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&position.bits().to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

const FILE: &str = "confirmed";
const BYTES: usize = 12;
