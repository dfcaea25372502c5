//! Opening an existing spool directory: reads all of it.

use std::{cmp::Reverse, collections::BTreeSet, io, ops::Range, path::PathBuf};

use super::{
    confirmed,
    disk::{Disk, write_all},
    index::Index,
    names::Position,
    record::{self, Bad, Record, Spot},
    segment::{BadHeader, FIRST_RECORD, Header, Segments, is_spare, log_name, number_of},
    window::{Found, Window},
};

/// Why a spool cannot be opened. No record was changed, and no needed file was removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the directory.
    #[error("{0}: in use by another process")]
    InUse(PathBuf),
    /// The system reported an error.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Written by another version of this program.
    #[error("{path}: format version {version} is not known to this version")]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        version: u32,
    },
    /// Data that was durable is damaged.
    #[error("{path}: offset {offset}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Start of the damage, in bytes.
        offset: u32,
        /// Description of the damage.
        what: &'static str,
    },
    /// A segment between others is missing.
    #[error("{0}: is missing")]
    Missing(PathBuf),
}

/// Summary of an opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Segments that were read.
    pub segments: usize,
    /// Records in them.
    pub records: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Queues that have messages or hold Packet Identifiers.
    pub queues: usize,
    /// Queued messages; a message in several queues counts once for each.
    pub waiting: u64,
    /// The log was closed in order. If false, the process was killed, and the log may end with data that was never
    /// confirmed.
    pub was_closed: bool,
}

/// Result of reading a log.
pub(super) struct Examined {
    pub(super) index: Index,
    /// End of the last segment.
    pub(super) end: u32,
    /// The log itself records that everything before this position was confirmed.
    pub(super) confirmed: Position,
    pub(super) recovered: Recovered,
    /// Files that are not needed: of an interrupted reclaim, or made ahead.
    pub(super) left_over: Vec<String>,
}

impl Examined {
    /// Bytes of all segments' records.
    pub(super) fn bytes(&self) -> u64 {
        let segments = self.index.segments.iter().map(|segment| u64::from(segment.end));
        segments.sum()
    }
}

/// Number of a new directory's first segment.
const FIRST_NUMBER: u32 = 1;

/// Bytes per read of a file.
const AHEAD: usize = 1 << 20;

/// Reads a directory without changing it.
pub(super) fn examine(disk: &dyn Disk) -> Result<Examined, OpenError> {
    read(disk, true)
}

/// Verifies a directory as [`examine`] does, in the memory of a few records: keeps nothing of the messages.
pub(crate) fn verify(disk: &dyn Disk) -> Result<(), OpenError> {
    read(disk, false).map(drop)
}

/// Reads a directory. `is_indexed`: its messages are found by the index afterwards.
fn read(disk: &dyn Disk, is_indexed: bool) -> Result<Examined, OpenError> {
    let names = disk.list().map_err(|error| OpenError::Io { path: disk.path(""), error })?;
    let numbers: BTreeSet<u32> = names.iter().filter_map(|name| number_of(name)).collect();
    let mut left_over: Vec<String> = names.into_iter().filter(|name| is_spare(name)).collect();
    let mark = confirmed::read(disk).unwrap_or_default();
    let newest = newest(disk, &numbers, mark)?;
    if let Some(missing) =
        newest.as_ref().map_or(0, |newest| newest.number).checked_add(1).filter(|&next| next <= mark.segment())
    {
        return Err(OpenError::Missing(disk.path(&log_name(missing))));
    }
    let Some(Newest { number: newest, oldest, confirmed }) = newest else {
        left_over.extend(numbers.iter().map(|&number| log_name(number)));
        let index = Index::new(Segments::starting_at(FIRST_NUMBER));
        return Ok(Examined {
            index,
            end: 0,
            confirmed: Position::default(),
            recovered: Recovered::default(),
            left_over,
        });
    };
    let is_needed = |number: &u32| (oldest..=newest).contains(number);
    left_over.extend(numbers.iter().filter(|number| !is_needed(number)).map(|&number| log_name(number)));
    if let Some(missing) = (oldest..=newest).find(|number| !numbers.contains(number)) {
        return Err(OpenError::Missing(disk.path(&log_name(missing))));
    }
    let index = Index::new(Segments::starting_at(oldest));
    let mut reading = Reading { disk, index, is_indexed, recovered: Recovered::default(), confirmed };
    let mut end = 0;
    for number in oldest..=newest {
        end = reading.segment(number, number == newest)?;
    }
    let Reading { mut index, mut recovered, confirmed, .. } = reading;
    index.forget_empty_queues();
    (recovered.queues, recovered.waiting) = (index.queue_count(), index.references());
    Ok(Examined { index, end, confirmed, recovered, left_over })
}

/// Makes the recovered log durable, then removes unneeded files. Returns spare segments of `segment_bytes` each.
///
/// The order matters: the record that a segment is not needed, and the copies of its living records, may be among the
/// unconfirmed data. A full disk could not provide the space of the spares again.
pub(super) fn settle(disk: &dyn Disk, found: &Examined, segment_bytes: u32) -> Result<Vec<String>, OpenError> {
    if found.index.segments.len() > 0 {
        let name = log_name(found.index.segments.newest());
        let settled = disk.open(&name).and_then(|file| write_again(&mut Window::new(file, 0), found));
        settled.map_err(|error| OpenError::Io { path: disk.path(&name), error })?;
        disk.sync_names().map_err(|error| OpenError::Io { path: disk.path(""), error })?;
    }
    let mut spares: Vec<&str> = found.left_over.iter().rev().map(String::as_str).collect();
    spares.retain(|name| is_spare_of(disk, name, segment_bytes));
    spares.truncate(KEPT_SPARES.len());
    let mut left: Vec<&str> = found.left_over.iter().map(String::as_str).collect();
    left.retain(|name| !(spares.contains(name) && KEPT_SPARES.contains(name)));
    // Spare files first, since others may get their names. Then from the highest number down: no segment may remain
    // above a missing one.
    left.sort_by_key(|name| (number_of(name).is_some(), Reverse(*name)));
    let names: Vec<&str> = KEPT_SPARES.into_iter().filter(|name| !spares.contains(name)).collect();
    let mut names = names.into_iter();
    for name in left {
        let moved = match spares.iter_mut().find(|spare| **spare == name) {
            Some(spare) => names.next().map_or(Ok(()), |new| disk.rename(name, new).map(|()| *spare = new)),
            None => disk.remove(name),
        };
        moved.map_err(|error| OpenError::Io { path: disk.path(name), error })?;
    }
    disk.sync_names().map_err(|error| OpenError::Io { path: disk.path(""), error })?;
    Ok(spares.into_iter().map(str::to_owned).collect())
}

/// Names for spare segments; no segment and no other spare has them.
const KEPT_SPARES: [&str; 2] = ["kept-1.spare", "kept-2.spare"];

/// Whether a file has the length of a segment of `segment_bytes`.
pub(super) fn is_spare_of(disk: &dyn Disk, name: &str, segment_bytes: u32) -> bool {
    let length = disk.open(name).and_then(|file| file.length());
    length.is_ok_and(|length| length == u64::from(segment_bytes))
}

/// Writes unconfirmed data again. It may have been read from the page cache and not be on the disk; after a failed
/// `fdatasync` not even another one would write it.
fn write_again(window: &mut Window, found: &Examined) -> io::Result<()> {
    let is_confirmed = found.confirmed.segment() == found.index.segments.newest();
    let from = if is_confirmed { found.confirmed.offset() } else { FIRST_RECORD };
    copy_in_place(window, from..found.end)
}

/// Rewrites a stretch of a file with its own content, and syncs it.
pub(super) fn copy_in_place(window: &mut Window, stretch: Range<u32>) -> io::Result<()> {
    let (mut offset, end) = (u64::from(stretch.start), u64::from(stretch.end));
    while offset < end {
        let length = AHEAD.min((end - offset) as usize);
        let bytes = window.bytes(offset, length)?.to_vec();
        if bytes.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all(window.file(), &bytes, offset)?;
        offset += length as u64;
    }
    window.file().sync()
}

/// The last written segment.
struct Newest {
    number: u32,
    /// The oldest segment that it needs.
    oldest: u32,
    /// Confirmed position according to later segments: before the first write to one, everything earlier is confirmed.
    confirmed: Position,
}

/// Finds the newest segment that has records, from the highest number down.
///
/// Later ones were made ahead, or their first write was never confirmed.
fn newest(disk: &dyn Disk, numbers: &BTreeSet<u32>, mark: Position) -> Result<Option<Newest>, OpenError> {
    let mut confirmed = mark;
    let mut above = None;
    for &number in numbers.iter().rev() {
        // Segments are made in order, so none can exist above a missing one.
        if above.is_some_and(|above| above != number + 1) {
            return Err(OpenError::Missing(disk.path(&log_name(number + 1))));
        }
        let (mut window, header) = open(disk, number)?;
        let seed = header.seed();
        let io = |error| OpenError::Io { path: disk.path(&log_name(number)), error };
        let first = window.record(Spot { seed, offset: FIRST_RECORD }, u32::MAX).map_err(io)?;
        if let Found::Record { record: Record::Begin { oldest, .. }, .. } = first {
            let mut oldest = oldest;
            let path = || disk.path(&log_name(number));
            walk(&mut window, seed, u32::MAX, |_, record| {
                if let Record::Reclaimed { oldest: later } = record {
                    oldest = *later;
                }
            })
            .map_err(|error| OpenError::Io { path: path(), error })?;
            if oldest > number {
                return Err(OpenError::Damaged { path: path(), offset: FIRST_RECORD, what: "segments in no order" });
            }
            return Ok(Some(Newest { number, oldest, confirmed }));
        }
        refuse_if_short(disk, &window, &header)?;
        confirmed = confirmed.max(confirmed_by(&mut window, seed, FIRST_RECORD).map_err(io)?);
        if confirmed > Position::new(number, FIRST_RECORD) {
            let path = disk.path(&log_name(number));
            return Err(OpenError::Damaged {
                path,
                offset: FIRST_RECORD,
                what: "no record here, but records after it",
            });
        }
        above = Some(number);
    }
    match above {
        Some(above) if above != FIRST_NUMBER => Err(OpenError::Missing(disk.path(&log_name(above - 1)))),
        _ => Ok(None),
    }
}

/// Opens a segment and reads its header.
pub(super) fn open(disk: &dyn Disk, number: u32) -> Result<(Window, Header), OpenError> {
    let path = || disk.path(&log_name(number));
    let io = |error| OpenError::Io { path: path(), error };
    let file = disk.open(&log_name(number)).map_err(io)?;
    match Header::read(&*file).map_err(io)? {
        Ok(header) if header.number == number => Ok((Window::new(file, AHEAD), header)),
        Err(BadHeader::Version(version)) => Err(OpenError::UnknownVersion { path: path(), version }),
        Ok(_) => Err(OpenError::Damaged { path: path(), offset: 0, what: "the header of another segment" }),
        Err(BadHeader::Damaged) => Err(OpenError::Damaged { path: path(), offset: 0, what: "no header of a segment" }),
    }
}

/// Refuses a segment that is shorter than its header says. It must keep its length until the next one begins.
fn refuse_if_short(disk: &dyn Disk, window: &Window, header: &Header) -> Result<(), OpenError> {
    let path = || disk.path(&log_name(header.number));
    let length = window.file().length().map_err(|error| OpenError::Io { path: path(), error })?;
    if length < u64::from(header.file_bytes) {
        return Err(OpenError::Damaged { path: path(), offset: length as u32, what: "the rest was cut off" });
    }
    Ok(())
}

/// End of a walk through a segment, and why it ended before the limit.
pub(super) struct WalkEnd {
    pub(super) offset: u32,
    pub(super) bad: Option<Bad>,
    pub(super) records: u64,
}

/// Visits the records of a segment up to `limit` or the first invalid one.
pub(super) fn walk(
    window: &mut Window,
    seed: u32,
    limit: u32,
    mut each: impl FnMut(u32, &Record<'_>),
) -> io::Result<WalkEnd> {
    let mut end = WalkEnd { offset: FIRST_RECORD, bad: None, records: 0 };
    while end.offset < limit {
        match window.record(Spot { seed, offset: end.offset }, limit)? {
            Found::Record { record, next } => {
                each(end.offset, &record);
                end.offset = next;
                end.records += 1;
            }
            Found::Bad(bad) => {
                end.bad = Some(bad);
                break;
            }
        }
    }
    Ok(end)
}

/// Returns the largest position that records from here on state as confirmed.
pub(super) fn confirmed_by(window: &mut Window, seed: u32, from: u32) -> io::Result<Position> {
    let mut confirmed = Position::default();
    let length = window.file().length()?.min(u64::from(u32::MAX)) as u32;
    let mut offset = from;
    while offset < length {
        let bytes = window.bytes(u64::from(offset), record::SYNCED_BYTES as usize)?;
        let spot = Spot { seed, offset };
        if record::may_be_synced(bytes)
            && let Ok(Record::Synced(position)) = record::parse(bytes, spot)
        {
            confirmed = confirmed.max(position);
        }
        offset += 8;
    }
    Ok(confirmed)
}

struct Reading<'a> {
    disk: &'a dyn Disk,
    index: Index,
    is_indexed: bool,
    recovered: Recovered,
    confirmed: Position,
}

impl Reading<'_> {
    /// Reads a segment, and returns its end.
    fn segment(&mut self, number: u32, is_newest: bool) -> Result<u32, OpenError> {
        let path = || self.disk.path(&log_name(number));
        let io = |error| OpenError::Io { path: path(), error };
        let limit = if is_newest { u32::MAX } else { self.end_of(number)? };
        let (mut window, header) = open(self.disk, number)?;
        let seed = header.seed();
        if is_newest {
            refuse_if_short(self.disk, &window, &header)?;
        }
        self.index.segments.push(seed);
        let Self { index, is_indexed, recovered, confirmed, .. } = self;
        let end = walk(&mut window, seed, limit, |offset, record| {
            recovered.was_closed = *record == Record::Closed;
            if let Record::Synced(position) = record {
                *confirmed = (*confirmed).max(*position);
            }
            if *is_indexed {
                index.apply(record, Position::new(number, offset));
            }
        });
        let end = end.map_err(io)?;
        if let Some(bad) = end.bad {
            // The last segment ends before unwritten space or an unconfirmed write. A later confirmation rules out
            // both.
            let behind = confirmed_by(&mut window, seed, end.offset).map_err(io)?;
            let is_hole =
                !is_newest || bad == Bad::Unknown || behind.max(*confirmed) > Position::new(number, end.offset);
            if is_hole {
                return Err(OpenError::Damaged { path: path(), offset: end.offset, what: bad.text() });
            }
        }
        if let Some(segment) = self.index.segments.get_mut(number) {
            segment.end = end.offset;
        }
        self.recovered.segments += 1;
        self.recovered.records += end.records;
        self.recovered.bytes += u64::from(end.offset);
        Ok(end.offset)
    }

    /// Returns the end of a segment, which the next segment records.
    fn end_of(&self, number: u32) -> Result<u32, OpenError> {
        let next = number + 1;
        let path = || self.disk.path(&log_name(next));
        let (mut window, header) = open(self.disk, next)?;
        window.read_ahead(64);
        match window.record(Spot { seed: header.seed(), offset: FIRST_RECORD }, u32::MAX) {
            Ok(Found::Record { record: Record::Begin { previous_end, .. }, .. }) => Ok(previous_end),
            Ok(_) => Err(OpenError::Damaged { path: path(), offset: FIRST_RECORD, what: "no first record" }),
            Err(error) => Err(OpenError::Io { path: path(), error }),
        }
    }
}
