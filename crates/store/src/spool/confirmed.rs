//! How far the log was confirmed, in a file beside its segments.
//!
//! A last write that damage has hit looks like one that a crash has torn. This file tells them apart. It is written after each
//! confirmation and never confirmed itself: the process may be killed, and a power cut may leave an older one. It never says
//! more than the disk has. One that is missing or damaged says nothing.

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
            // Without it a damaged end looks torn.
            let _ = write_all(&**file, &encode(position), 0);
        }
    }
}

/// All before this was confirmed.
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
