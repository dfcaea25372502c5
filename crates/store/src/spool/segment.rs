//! Segments: consecutively numbered files of the log.

use std::{collections::VecDeque, io};

use super::{
    disk::{Disk, DiskFile, write_all},
    record,
};

/// Where the first record of a segment begins.
pub(crate) const FIRST_RECORD: u32 = 64;

const MAGIC: &[u8; 8] = b"TBSPOOL\n";
/// Version of the log's files.
pub const VERSION: u32 = 1;

/// Header of a segment file. It is on disk before the file gets its segment name.
///
/// ```text
/// 0        8         12       16     24       28       32      64
/// ┌────────┬─────────┬────────┬──────┬────────┬────────┬───────┐
/// │ magic  │ version │ number │ salt │ length │ crc32c │ zeros │
/// └────────┴─────────┴────────┴──────┴────────┴────────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: u32,
    /// Random for each opening of the spool, since a number may be reused after a crash.
    pub(super) salt: u64,
    /// Minimum length of the file, in bytes. The file is truncated to its records once the next segment has begun.
    pub(super) file_bytes: u32,
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// The magic is right, but the version is another.
    Version(u32),
    Damaged,
}

impl Header {
    pub(super) fn seed(self) -> u32 {
        record::seed_of(self.number, self.salt)
    }

    pub(super) fn encode(self) -> [u8; FIRST_RECORD as usize] {
        let mut bytes = [0; FIRST_RECORD as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.file_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FIRST_RECORD as usize]) -> Result<Self, BadHeader> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if &bytes[..8] != MAGIC {
            return Err(BadHeader::Damaged);
        }
        if number(8) != VERSION {
            return Err(BadHeader::Version(number(8)));
        }
        let salt = u64::from(number(20)) << 32 | u64::from(number(16));
        let header = Self { number: number(12), salt, file_bytes: number(24) };
        if &header.encode() == bytes { Ok(header) } else { Err(BadHeader::Damaged) }
    }

    pub(super) fn read(file: &dyn DiskFile) -> io::Result<Result<Self, BadHeader>> {
        let mut bytes = [0; FIRST_RECORD as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(Self::decode(&bytes))
    }
}

/// Name of a segment's file.
pub(crate) fn log_name(number: u32) -> String {
    format!("{number:010}.log")
}

/// Name of a file that is not, or not yet, a segment.
pub(super) fn spare_name(number: u32) -> String {
    format!("{number:010}.spare")
}

/// Returns the segment number of a file name. The first segment is 1.
pub(crate) fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log").filter(|digits| digits.len() == 10)?.parse().ok()?;
    (number > 0 && log_name(number) == name).then_some(number)
}

pub(super) fn is_spare(name: &str) -> bool {
    name.ends_with(".spare")
}

/// Makes a segment file with all its space allocated, from a spare segment or a new file.
///
/// It gets its final name only after header and space are on disk.
pub(super) fn prepare(disk: &dyn Disk, header: Header, spare: Option<&str>) -> io::Result<Box<dyn DiskFile>> {
    let fresh = spare_name(header.number);
    let name = spare.unwrap_or(&fresh);
    let file = match spare {
        // Overwriting in place is cheaper for a file system than allocating.
        Some(name) => disk.open(name)?,
        None => disk.create(name)?,
    };
    let made = file
        .allocate(u64::from(header.file_bytes))
        .and_then(|()| write_all(&*file, &header.encode(), 0))
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(name, &log_name(header.number)))
        .and_then(|()| disk.sync_names());
    if let Err(error) = made {
        // On a full disk others may need its space. The next opening removes a file that remains.
        let _ = disk.remove(name);
        return Err(error);
    }
    Ok(file)
}

/// All needed segments, from the oldest to the one being written.
#[derive(Debug, Default)]
pub(super) struct Segments {
    oldest: u32,
    all: VecDeque<Segment>,
    /// A segment between the oldest and the newest became half or completely dead since the last check.
    pub(super) has_thinned: bool,
}

/// Bookkeeping of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) seed: u32,
    /// End of its last record so far.
    pub(super) end: u32,
    /// References that its records created, and those of them that live.
    pub(super) born: u32,
    pub(super) live: u32,
}

impl Segment {
    /// Estimated living bytes, if all references are of one size.
    pub(super) fn live_bytes(&self) -> u64 {
        u64::from(self.end) * u64::from(self.live) / u64::from(self.born.max(1))
    }
}

impl Segments {
    pub(super) fn starting_at(oldest: u32) -> Self {
        Self { oldest, ..Self::default() }
    }

    /// Adds the next segment, and returns its number.
    pub(super) fn push(&mut self, seed: u32) -> u32 {
        self.all.push_back(Segment { seed, end: FIRST_RECORD, born: 0, live: 0 });
        self.newest()
    }

    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(super) fn newest(&self) -> u32 {
        self.oldest + (self.all.len() as u32).saturating_sub(1)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&Segment> {
        self.all.get(number.checked_sub(self.oldest)? as usize)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Segment> {
        self.all.get_mut(number.checked_sub(self.oldest)? as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.all.iter()
    }

    pub(super) fn born(&mut self, number: u32) {
        if let Some(segment) = self.get_mut(number) {
            segment.born += 1;
            segment.live += 1;
        }
    }

    pub(super) fn died(&mut self, number: u32) {
        let is_between = self.oldest < number && number < self.newest();
        if let Some(segment) = self.get_mut(number) {
            debug_assert!(segment.live > 0, "more references of segment {number} died than lived");
            segment.live = segment.live.saturating_sub(1);
            let is_thin = segment.live == 0 || segment.live == segment.born / 2;
            self.has_thinned |= is_between && is_thin;
        }
    }

    /// Number of oldest segments in which nothing lives; never includes the one being written.
    pub(super) fn dead_count(&self) -> u32 {
        let newest = self.all.len().saturating_sub(1);
        self.all.iter().take(newest).take_while(|segment| segment.live == 0).count() as u32
    }

    pub(super) fn forget_below(&mut self, oldest: u32) {
        while self.oldest < oldest && self.all.pop_front().is_some() {
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_every_flipped_bit_is_detected() {
        let header = Header { number: 12, salt: 0x0123_4567_89AB_CDEF, file_bytes: 4096 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        for bit in 0..header.encode().len() * 8 {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn unknown_version_differs_from_damage() {
        let mut bytes = Header { number: 1, salt: 2, file_bytes: 3 }.encode();
        bytes[8] = 9;
        assert_eq!(Header::decode(&bytes), Err(BadHeader::Version(9)));
    }

    #[test]
    fn only_complete_names_are_segments() {
        assert_eq!(number_of("0000000012.log"), Some(12));
        for name in ["12.log", "0000000012.spare", "+000000012.log", "9999999999.log", "0000000000.log", "lock"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}
