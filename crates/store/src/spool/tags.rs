//! Tags that are not with their message, because they were given when it was moved.

use std::{io, path::PathBuf};

use super::{
    disk::Disk,
    log::Log,
    names::{Place, Position},
    record::{self, Record, Spot},
    segment::log_name,
    window::{Found, Window},
};

/// Where the tag of a place is that its message does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagAt {
    /// In the message, with the place that it was moved from.
    Message(Place),
    /// In the move's own record, which is younger than the message and so in the log as long as that is.
    Move(Position),
}

/// A move's record in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveAt {
    pub(super) position: Position,
    seed: u32,
    /// Where the records of its segment ended when this was noted.
    end: u32,
}

impl MoveAt {
    pub(super) fn new(log: &Log, position: Position) -> Self {
        let segment = log.index.segments.get(position.segment());
        let (seed, end) = segment.map_or((0, 0), |segment| (segment.seed, segment.end));
        Self { position, seed, end }
    }
}

/// The tag of a move that is still in memory.
pub(super) fn pending_tag(log: &Log, position: Position) -> Option<&[u8]> {
    let seed = log.index.segments.get(position.segment())?.seed;
    let bytes = log.pending.at(position)?;
    match record::parse(bytes.get(..record::length_at(bytes)?)?, Spot { seed, offset: position.offset() }) {
        Ok(Record::Move { tag, .. }) => tag,
        _ => None,
    }
}

/// Reads the tags of moves from their files.
pub(super) struct TagReader<'a> {
    disk: &'a dyn Disk,
    /// The segment that was read from last.
    open: Option<(u32, Window)>,
}

/// Moves are often in a row.
const AHEAD: usize = 4 << 10;

impl<'a> TagReader<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Self {
        Self { disk, open: None }
    }

    /// None if this is not what is there.
    pub(super) fn tag(&mut self, at: MoveAt) -> io::Result<Option<&[u8]>> {
        let number = at.position.segment();
        if self.open.as_ref().is_none_or(|(segment, _)| *segment != number) {
            self.open = Some((number, Window::new(self.disk.open(&log_name(number))?, AHEAD)));
        }
        let Some((_, window)) = &mut self.open else { return Ok(None) };
        let found = window.record(Spot { seed: at.seed, offset: at.position.offset() }, at.end)?;
        Ok(if let Found::Record { record: Record::Move { tag, .. }, .. } = found { tag } else { None })
    }

    pub(super) fn path(&self, at: MoveAt) -> PathBuf {
        self.disk.path(&log_name(at.position.segment()))
    }
}
