//! Buffered reading of a file and its records.

use std::io;

use super::{
    disk::DiskFile,
    record::{self, Bad, Record, Spot},
};

/// A file with the part of it that is in memory. Reads are mostly sequential.
pub(super) struct Window {
    file: Box<dyn DiskFile>,
    offset: u64,
    bytes: Vec<u8>,
    /// Minimum bytes per read.
    ahead: usize,
}

/// Result of reading a record.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// A record, and the offset of the next one.
    Record {
        record: Record<'a>,
        next: u32,
    },
    Bad(Bad),
}

/// Up to this many bytes are read without checking the file's length.
const SMALL: usize = 4 << 10;

impl Window {
    pub(super) fn new(file: Box<dyn DiskFile>, ahead: usize) -> Self {
        Self { file, offset: 0, bytes: Vec::new(), ahead }
    }

    pub(super) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// Whether these bytes are in memory.
    pub(super) fn holds(&self, offset: u64, length: usize) -> bool {
        offset >= self.offset && offset + length as u64 <= self.offset + self.bytes.len() as u64
    }

    /// End of the part in memory.
    pub(super) fn end(&self) -> u32 {
        (self.offset + self.bytes.len() as u64).min(u64::from(u32::MAX)) as u32
    }

    /// Whether the record at this offset is in memory.
    pub(super) fn holds_record(&self, offset: u32) -> bool {
        let offset = u64::from(offset);
        if !self.holds(offset, 8) {
            return false;
        }
        let start = (offset - self.offset) as usize;
        record::length_at(&self.bytes[start..]).is_some_and(|length| self.holds(offset, length))
    }

    /// Sets the minimum bytes per read.
    pub(super) fn read_ahead(&mut self, bytes: usize) {
        self.ahead = bytes;
    }

    /// Returns these bytes; fewer only at the end of the file.
    ///
    /// Allocates no more than the file's length or the minimum read: `length` may come from bytes that are no record.
    pub(super) fn bytes(&mut self, offset: u64, mut length: usize) -> io::Result<&[u8]> {
        if !self.holds(offset, length) {
            if length > self.ahead.max(SMALL) {
                length = length.min(self.file.length()?.saturating_sub(offset).try_into().unwrap_or(usize::MAX));
            }
            self.offset = offset;
            self.bytes.resize(length.max(self.ahead), 0);
            // After a failed read the buffer is empty.
            let read = self.file.read_at(&mut self.bytes, offset);
            self.bytes.truncate(*read.as_ref().unwrap_or(&0));
            read?;
        }
        let start = (offset - self.offset) as usize;
        Ok(&self.bytes[start..self.bytes.len().min(start + length)])
    }

    /// Returns the record at this location, if it ends before `limit`.
    pub(super) fn record(&mut self, spot: Spot, limit: u32) -> io::Result<Found<'_>> {
        let offset = u64::from(spot.offset);
        let room = limit.saturating_sub(spot.offset) as usize;
        let Some(length) = record::length_at(self.bytes(offset, 8)?).filter(|&length| length <= room) else {
            return Ok(Found::Bad(Bad::Length));
        };
        let bytes = self.bytes(offset, length)?;
        if bytes.len() < length {
            return Ok(Found::Bad(Bad::Length));
        }
        Ok(match record::parse(bytes, spot) {
            Ok(record) => Found::Record { record, next: spot.offset + record::padded(length) as u32 },
            Err(bad) => Found::Bad(bad),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::{disk::Disk, tests::MemoryDisk};

    #[test]
    fn invalid_length_allocates_no_more_than_file_length() {
        let disk = MemoryDisk::default();
        // As a length, 512 MiB.
        disk.put("file", [0, 0, 0, 0x20].repeat(4_000));
        let mut window = Window::new(disk.open("file").unwrap(), 100);
        for offset in [0, 8, 15_992] {
            let found = window.record(Spot { seed: 1, offset }, u32::MAX).unwrap();
            assert!(matches!(found, Found::Bad(Bad::Length)), "{found:?}");
            assert!(window.bytes.capacity() <= 16_000, "{}", window.bytes.capacity());
        }
    }
}
