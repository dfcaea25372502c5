//! Records that are appended but not on the disk.

use std::{collections::VecDeque, mem, sync::Arc};

use super::{
    names::Position,
    record::{self, Record, SYNCED_BYTES, Spot},
};

/// Bytes of one write, within one segment.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) segment: u32,
    pub(super) offset: u32,
    pub(super) seed: u32,
    /// Required length of the segment's file.
    pub(super) file_bytes: u32,
    /// Whether the first record is a `Synced`; otherwise it is the segment's `Begin`.
    pub(super) begins_with_synced: bool,
    /// Whether it has messages of callers: those must not take the last space.
    pub(super) has_messages: bool,
    pub(super) bytes: Vec<u8>,
}

impl Part {
    pub(super) fn end(&self) -> Position {
        Position::new(self.segment, self.offset + self.bytes.len() as u32)
    }

    /// Fills in the confirmed position, which is known only when the part is written.
    fn say_synced(&mut self, synced: Position, scratch: &mut Vec<u8>) {
        if self.begins_with_synced {
            scratch.clear();
            let spot = Spot { seed: self.seed, offset: self.offset };
            record::write_plain(scratch, spot, &Record::Synced(synced));
            self.bytes[..SYNCED_BYTES as usize].copy_from_slice(scratch);
        }
    }

    /// Returns the bytes from a position to the end of the part.
    fn at(&self, position: Position) -> Option<&[u8]> {
        let offset = position.offset().checked_sub(self.offset).filter(|_| position.segment() == self.segment)?;
        self.bytes.get(offset as usize..).filter(|bytes| !bytes.is_empty())
    }
}

/// Parts in log order: first those that the committer took, then new ones.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Being written, or written but not yet confirmed.
    taken: VecDeque<Arc<Part>>,
    collected: VecDeque<Part>,
    /// Buffer pool.
    buffers: Vec<Vec<u8>>,
    scratch: Vec<u8>,
    unwritten: usize,
}

/// Larger buffers, which only large messages need, are not pooled.
const KEPT_BUFFER_MAX: usize = 4 << 20;
const KEPT_BUFFERS: usize = 4;
/// Most parts of one commit.
const TAKEN_PARTS_MAX: usize = 4;

impl Pending {
    /// The part that takes new records.
    pub(super) fn open_part(&mut self) -> Option<&mut Part> {
        self.collected.back_mut()
    }

    pub(super) fn begin_part(&mut self, part: Part) -> &mut Part {
        self.collected.push_back(part);
        self.collected.back_mut().expect("it was just put there")
    }

    /// Returns an empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.collected.is_empty()
    }

    /// Bytes that are not written, or not confirmed if they must be.
    pub(super) fn bytes(&self) -> usize {
        self.unwritten + self.collected.iter().map(|part| part.bytes.len()).sum::<usize>()
    }

    /// Takes parts to write.
    pub(super) fn take(&mut self, synced: Position) -> Vec<Arc<Part>> {
        let count = self.collected.len().min(TAKEN_PARTS_MAX);
        let mut scratch = mem::take(&mut self.scratch);
        let parts = self.collected.drain(..count).map(|mut part| {
            part.say_synced(synced, &mut scratch);
            Arc::new(part)
        });
        let parts: Vec<_> = parts.collect();
        self.scratch = scratch;
        self.taken.extend(parts.iter().cloned());
        self.unwritten += parts.iter().map(|part| part.bytes.len()).sum::<usize>();
        parts
    }

    /// Returns all taken but unconfirmed parts, for another attempt.
    pub(super) fn taken(&self) -> Vec<Arc<Part>> {
        self.taken.iter().cloned().collect()
    }

    /// Forgets parts up to a position. The committer must have dropped its references.
    pub(super) fn forget(&mut self, until: Position) {
        while self.taken.front().is_some_and(|part| part.end() <= until) {
            let Some(part) = self.taken.pop_front() else { return };
            self.unwritten -= part.bytes.len();
            let Some(mut bytes) = Arc::into_inner(part).map(|part| part.bytes) else { continue };
            if bytes.capacity() <= KEPT_BUFFER_MAX && self.buffers.len() < KEPT_BUFFERS {
                bytes.clear();
                self.buffers.push(bytes);
            }
        }
    }

    /// Returns the bytes from a position on, if they are in memory.
    pub(super) fn at(&self, position: Position) -> Option<&[u8]> {
        let taken = self.taken.iter().map(|part| &**part);
        taken.chain(&self.collected).find_map(|part| part.at(position))
    }
}
