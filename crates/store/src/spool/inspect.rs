//! Inspection of a spool directory, without changes or locks.

use std::{collections::BTreeSet, io, path::Path, path::PathBuf};

use super::{
    disk::{Directory, Disk},
    names::Body,
    record::{self, Entry, Record, Spot},
    recovery::OpenError,
    runs::MarkRun,
    segment::{BadHeader, FIRST_RECORD, Header, VERSION, log_name, number_of},
    snapshot::Snapshot,
    window::{Found, Window},
};

/// Result of [`check`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Checked {
    /// All segments, from the oldest on, including those that are not needed.
    pub segments: Vec<CheckedSegment>,
    /// Content as an opening would find it, or the reason why it would fail.
    pub verdict: Result<Snapshot, OpenError>,
}

/// A segment's file.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedSegment {
    /// The file.
    pub path: PathBuf,
    /// Format version in the header, if there is a valid one.
    pub version: Option<u32>,
    /// Consecutive valid records from the beginning.
    pub records: u64,
    /// End of the last of these, in bytes. In the segment written last, the rest of the file may be old data.
    pub end: u32,
    /// Fault of the header, if there is one.
    pub problem: Option<String>,
    /// Invalid bytes from [`end`](Self::end) on, and the number of valid records behind them.
    ///
    /// That number is a minimum: the search skips some possible large records if there are very many.
    pub behind: Option<(u32, u64)>,
}

/// Reads and checks a whole directory. Reliable only if no process writes in it at the same time.
///
/// # Errors
/// The directory or a file in it cannot be read.
pub fn check(directory: &Path) -> io::Result<Checked> {
    let disk = Directory::to_read(directory);
    let mut segments = Vec::new();
    for number in numbers(&disk)? {
        let path = disk.path(&log_name(number));
        let mut checked =
            CheckedSegment { path, version: Some(VERSION), records: 0, end: 0, problem: None, behind: None };
        each_piece(&disk, number, |piece| match piece {
            Piece::NoHeader(version, problem) => (checked.version, checked.problem) = (version, Some(problem)),
            Piece::Record(offset, _) if checked.behind.is_none() => {
                checked.records += 1;
                checked.end = offset;
            }
            Piece::Record(..) => checked.behind = checked.behind.map(|(bytes, records)| (bytes, records + 1)),
            Piece::End(offset) if checked.behind.is_none() => checked.end = offset,
            Piece::Bad(start, end) if checked.behind.is_none() => {
                checked.end = start;
                checked.behind = Some((end - start, 0));
            }
            Piece::Bad(..) | Piece::End(_) => {}
        })?;
        checked.behind = checked.behind.filter(|&(_, records)| records > 0);
        segments.push(checked);
    }
    Ok(Checked { segments, verdict: Snapshot::open(directory) })
}

/// Writes one line for each record of a directory, and for each stretch without valid records.
///
/// # Errors
/// The directory or a file in it cannot be read, or `out` cannot be written.
pub fn dump(directory: &Path, out: &mut dyn io::Write) -> io::Result<()> {
    let disk = Directory::to_read(directory);
    for number in numbers(&disk)? {
        let name = log_name(number);
        let mut result = Ok(());
        each_piece(&disk, number, |piece| {
            if result.is_ok() {
                result = match piece {
                    Piece::NoHeader(_, problem) => writeln!(out, "{name} 0 {problem}"),
                    Piece::Record(offset, record) => {
                        write!(out, "{name} {offset} ").and_then(|()| describe(record, out))
                    }
                    Piece::Bad(start, end) => writeln!(out, "{name} {start} no records up to {end}"),
                    Piece::End(end) => writeln!(out, "{name} {end} end"),
                };
            }
        })?;
        result?;
    }
    Ok(())
}

/// A segment behind which another one has begun: nothing is written to it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealed {
    /// All of its records are valid, up to this end.
    Whole { end: u32 },
    /// There is no valid record at this offset.
    Damaged { offset: u32 },
}

/// Verifies the records of a segment; `None` if it is not sealed. `pace` hears of the bytes of each, and may wait.
pub(crate) fn sealed(disk: &dyn Disk, number: u32, mut pace: impl FnMut(u32)) -> io::Result<Option<Sealed>> {
    let Some(end) = end_by_next(disk, number)? else { return Ok(None) };
    let file = disk.open(&log_name(number))?;
    let Ok(header) = Header::read(&*file)? else { return Ok(Some(Sealed::Damaged { offset: 0 })) };
    let (mut window, mut offset) = (Window::new(file, 1 << 20), FIRST_RECORD);
    while offset < end {
        match window.record(Spot { seed: header.seed(), offset }, end)? {
            Found::Record { next, .. } => {
                pace(next - offset);
                offset = next;
            }
            Found::Bad(_) => return Ok(Some(Sealed::Damaged { offset })),
        }
    }
    Ok(Some(Sealed::Whole { end }))
}

/// End of a segment's records, which the next segment states.
fn end_by_next(disk: &dyn Disk, number: u32) -> io::Result<Option<u32>> {
    let file = match disk.open(&log_name(number + 1)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Its own damage is found when it is sealed.
    let Ok(header) = Header::read(&*file)? else { return Ok(None) };
    let first = Spot { seed: header.seed(), offset: FIRST_RECORD };
    Ok(match Window::new(file, 0).record(first, u32::MAX)? {
        Found::Record { record: Record::Begin { previous_end, .. }, .. } => Some(previous_end),
        _ => None,
    })
}

fn numbers(disk: &Directory) -> io::Result<BTreeSet<u32>> {
    Ok(disk.list()?.iter().filter_map(|name| number_of(name)).collect())
}

/// A part of a file.
enum Piece<'a> {
    /// No valid header: its version, if any, and the problem.
    NoHeader(Option<u32>, String),
    Record(u32, &'a Record<'a>),
    /// Start and end of a stretch without valid records.
    Bad(u32, u32),
    /// End of the file, or of its records.
    End(u32),
}

/// Visits all parts of a file, also behind damage.
fn each_piece(disk: &Directory, number: u32, mut each: impl FnMut(Piece<'_>)) -> io::Result<()> {
    let file = disk.open(&log_name(number))?;
    let header = match Header::read(&*file)? {
        Ok(header) => header,
        Err(BadHeader::Version(version)) => {
            each(Piece::NoHeader(Some(version), format!("format version {version} is not known to this version")));
            return Ok(());
        }
        Err(BadHeader::Damaged) => {
            each(Piece::NoHeader(None, "no header of a segment".to_owned()));
            return Ok(());
        }
    };
    let length = file.length()?.min(u64::from(u32::MAX)) as u32;
    let mut window = Window::new(file, 1 << 20);
    let (mut offset, mut bad_from) = (FIRST_RECORD, None);
    let mut tries = Tries { left: TRIED_TIMES * length as usize };
    while offset < length {
        if bad_from.is_some() {
            let bytes = window.bytes(u64::from(offset), 16)?;
            // The directory is open in another process, which has truncated the file.
            if bytes.is_empty() {
                break;
            }
            // Most bytes behind damage are no record. A cheap test avoids reading them to their supposed length.
            if !record::may_be_record(bytes) || !tries.may_try(bytes) {
                offset += 8;
                continue;
            }
        }
        match window.record(Spot { seed: header.seed(), offset }, length)? {
            Found::Record { record, next } => {
                if let Some(start) = bad_from.take() {
                    each(Piece::Bad(start, offset));
                }
                each(Piece::Record(offset, &record));
                offset = next;
            }
            Found::Bad(_) => {
                bad_from.get_or_insert(offset);
                offset += 8;
            }
        }
    }
    each(Piece::End(bad_from.unwrap_or(offset)));
    Ok(())
}

/// Bounds the reading of bytes that only look like the start of a large record.
///
/// Bodies behind the records of a reused file may contain many of those. Small records are always tried.
struct Tries {
    /// Bytes left to try.
    left: usize,
}

const TRIED_TIMES: usize = 8;
const ALWAYS_TRIED: usize = 256;

impl Tries {
    fn may_try(&mut self, bytes: &[u8]) -> bool {
        let length = record::length_at(bytes).unwrap_or(0);
        let left = self.left.checked_sub(length);
        self.left = left.unwrap_or(self.left);
        left.is_some() || length <= ALWAYS_TRIED
    }
}

fn describe(record: &Record<'_>, out: &mut dyn io::Write) -> io::Result<()> {
    match record {
        Record::Begin { oldest, previous_end } => {
            writeln!(out, "begin: oldest segment {oldest}, the one before ends at {previous_end}")
        }
        Record::Synced(position) => writeln!(out, "synced up to {position}"),
        Record::Message(message) => {
            write!(out, "message of {} bytes for", message.body.len())?;
            for Entry { place, tag, mark } in message.entries() {
                write!(out, " {}/{}", place.queue.0, place.sequence.0)?;
                write_tag(tag, out)?;
                if mark != 0 {
                    write!(out, " marked {mark}")?;
                }
            }
            match message.origin {
                Some(origin) => writeln!(out, ", from {} with identifier {}", origin.queue.0, origin.identifier),
                None => writeln!(out),
            }
        }
        Record::Acknowledge { queue, from, to } => writeln!(out, "acknowledge {}/{} to {}", queue.0, from.0, to.0),
        Record::Mark(MarkRun { queue, from, to, first, body }) => {
            let body = if *body == Body::Done { ", without bodies" } else { "" };
            writeln!(out, "mark {}/{} to {} with {first} and up{body}", queue.0, from.0, to.0)
        }
        Record::Hold(origin) => writeln!(out, "hold {} of {}", origin.identifier, origin.queue.0),
        Record::Release(origin) => writeln!(out, "release {} of {}", origin.identifier, origin.queue.0),
        Record::Move { from, to, tag } => {
            write!(out, "move {}/{} to {}/{}", from.queue.0, from.sequence.0, to.queue.0, to.sequence.0)?;
            match tag {
                Some([]) => writeln!(out, " without a tag"),
                tag => write_tag(tag.unwrap_or_default(), out).and_then(|()| writeln!(out)),
            }
        }
        Record::DropQueue(queue) => writeln!(out, "drop queue {}", queue.0),
        Record::Closed => writeln!(out, "closed"),
        Record::Reclaimed { oldest } => writeln!(out, "reclaimed below segment {oldest}"),
    }
}

fn write_tag(tag: &[u8], out: &mut dyn io::Write) -> io::Result<()> {
    if !tag.is_empty() {
        out.write_all(b" tagged ")?;
    }
    tag.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_for_large_records_are_bounded() {
        let large = |bytes: u32| bytes.to_le_bytes();
        let mut tries = Tries { left: TRIED_TIMES * 1_000 };
        assert_eq!((0..100).filter(|_| tries.may_try(&large(1_000))).count(), TRIED_TIMES);
        assert!(tries.may_try(&large(200)) && !tries.may_try(&large(1_000)) && !tries.may_try(&large(1 << 29)));
    }
}
