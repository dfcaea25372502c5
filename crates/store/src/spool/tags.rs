//! Tags that are stored apart from their message, in the record that moved it.

use std::{io, path::PathBuf};

use super::{
    disk::Disk,
    log::Log,
    names::{Place, Position},
    record::{self, Record, Spot},
    segment::log_name,
    window::{Found, Window},
};

/// Location of a tag, for an entry that the message's record does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagAt {
    /// In the message's record, for the entry from which it was moved.
    Message(Place),
    /// In the move's record. That is newer than the message, so it stays in the log as long.
    Move(Position),
}

/// A move's record in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveAt {
    pub(super) position: Position,
    seed: u32,
    /// End of the segment's records when this was created.
    end: u32,
}

impl MoveAt {
    pub(super) fn new(log: &Log, position: Position) -> Self {
        let segment = log.index.segments.get(position.segment());
        let (seed, end) = segment.map_or((0, 0), |segment| (segment.seed, segment.end));
        Self { position, seed, end }
    }
}

/// Returns the tag of a move that is still in memory.
pub(super) fn pending_tag(log: &Log, position: Position) -> Option<&[u8]> {
    let seed = log.index.segments.get(position.segment())?.seed;
    let bytes = log.pending.at(position)?;
    match record::parse(bytes.get(..record::length_at(bytes)?)?, Spot { seed, offset: position.offset() }) {
        Ok(Record::Move { tag, .. }) => tag,
        _ => None,
    }
}

/// Reads tags of moves from segment files.
pub(super) struct TagReader<'a> {
    disk: &'a dyn Disk,
    /// The segment of the last read.
    open: Option<(u32, Window)>,
}

/// Moves are often consecutive.
const AHEAD: usize = 4 << 10;

impl<'a> TagReader<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Self {
        Self { disk, open: None }
    }

    /// Returns the tag; `None` if the file has another record there.
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
