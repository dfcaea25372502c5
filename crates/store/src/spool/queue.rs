//! Locations of one queue's messages.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{marks::Marks, names::Position};

/// References of a queue in sequence order.
///
/// Neighbours in the same segment take 8 bytes each. Only the few references that were marked, moved or copied are
/// often in another segment.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Never empty, except for an only chunk, which keeps its memory.
    chunks: VecDeque<Chunk>,
    len: usize,
    /// Held Packet Identifiers, each with the segment of its record.
    held: Option<Box<FxHashMap<u16, u32>>>,
    /// Marks of living references; `None` if there are none.
    marks: Option<Box<Marks>>,
}

/// An entry's sequence, and the position of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) sequence: u64,
    pub(super) position: Position,
    pub(super) kind: Kind,
}

/// Kind of the record behind a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message that names this entry.
    Message,
    /// A message that names another entry, from which it was moved.
    Moved,
    /// A mark record for an entry whose body is not needed.
    Mark,
}

/// References to one segment. The first and the last of them live.
#[derive(Debug)]
struct Chunk {
    base: u64,
    segment: u32,
    gone: u32,
    /// Total body size of the living references.
    ///
    /// A removed reference counts as the average, so this is approximate unless all bodies are of one size. Exact again
    /// once all are gone.
    bytes: u64,
    entries: VecDeque<QueueEntry>,
}

/// Sequence relative to the chunk's base, and offset with the kind in its lowest three bits.
#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    delta: u32,
    offset_and_kind: u32,
}

/// Most entries of a chunk: the unit in which memory is freed.
const CHUNK_MAX: usize = 1024;
/// An empty chunk keeps memory for this many entries.
const KEPT_MAX: usize = 32;

/// Lists of up to this length grow by little. Many queues are short, and their messages far apart.
const EXACT_MAX: usize = 16;

const KIND_BITS: u32 = 7;
const MESSAGE: u32 = 0;
const MOVED: u32 = 1;
const MARK: u32 = 2;
const GONE: u32 = 4;

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Approximate total size of all bodies.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.held.as_ref().is_none_or(|held| held.is_empty())
    }

    pub(super) fn first(&self) -> Option<u64> {
        (self.len > 0).then(|| self.chunks[0].first())
    }

    pub(super) fn last(&self) -> Option<u64> {
        (self.len > 0).then(|| self.chunks[self.chunks.len() - 1].last())
    }

    /// Held Packet Identifiers and the segments of their records, in no order.
    pub(super) fn held(&self) -> impl Iterator<Item = (u16, u32)> {
        self.held.iter().flat_map(|held| held.iter().map(|(&identifier, &segment)| (identifier, segment)))
    }

    /// Returns the segment of the record that holds this identifier.
    pub(super) fn holds(&self, identifier: u16) -> Option<u32> {
        self.held.as_ref()?.get(&identifier).copied()
    }

    /// Holds an identifier, and returns the segment that held it before.
    pub(super) fn hold(&mut self, identifier: u16, segment: u32) -> Option<u32> {
        self.held.get_or_insert_default().insert(identifier, segment)
    }

    pub(super) fn release(&mut self, identifier: u16) -> Option<u32> {
        self.held.as_mut()?.remove(&identifier)
    }

    pub(super) fn get(&self, sequence: u64) -> Option<Reference> {
        let (chunk, index) = self.find(sequence)?;
        Some(self.chunks[chunk].reference(index))
    }

    /// Adds a reference, usually at the end, without a mark. `bytes` is its body size. Returns the replaced reference.
    pub(super) fn put(&mut self, reference: Reference, bytes: u64) -> Option<Reference> {
        let replaced = match self.last() {
            Some(last) if last >= reference.sequence => {
                let replaced = self.take(reference.sequence).map(|(replaced, _)| replaced);
                self.insert(reference, bytes);
                replaced
            }
            _ => {
                self.append(reference, bytes);
                None
            }
        };
        self.len += 1;
        replaced
    }

    /// Removes a reference. Returns it with its approximate body size.
    pub(super) fn take(&mut self, sequence: u64) -> Option<(Reference, u64)> {
        let (chunk, index) = self.find(sequence)?;
        let taken = self.chunks[chunk].reference(index);
        let bytes = self.chunks[chunk].forget(index);
        self.tidy(chunk);
        self.len -= 1;
        self.remove_marks(sequence, sequence);
        Some((taken, bytes))
    }

    /// Returns the mark of an entry; 0 if it has none.
    pub(super) fn mark_of(&self, sequence: u64) -> u32 {
        self.marks.as_ref().map_or(0, |marks| marks.get(sequence))
    }

    /// Returns all marks, in sequence order.
    pub(super) fn marks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.marks.iter().flat_map(|marks| marks.iter())
    }

    /// Sets the mark of a reference, if it exists.
    pub(super) fn mark(&mut self, sequence: u64, mark: u32) {
        if (mark != 0 || self.marks.is_some()) && self.find(sequence).is_some() {
            self.marks.get_or_insert_default().set(sequence, mark);
            self.tidy_marks();
        }
    }

    fn remove_marks(&mut self, from: u64, to: u64) {
        if let Some(marks) = &mut self.marks {
            marks.remove(from, to);
            self.tidy_marks();
        }
    }

    fn tidy_marks(&mut self) {
        self.marks.take_if(|marks| marks.is_empty());
    }

    /// Removes all references of an inclusive range.
    pub(super) fn take_range(&mut self, from: u64, to: u64, mut taken: impl FnMut(Reference)) {
        if self.len == 0 {
            return;
        }
        self.remove_marks(from, to);
        // Most ranges start at the head, which needs no search.
        let is_head = self.chunks[0].last() >= from;
        let mut at = if is_head { 0 } else { self.chunks.partition_point(|chunk| chunk.last() < from) };
        while at < self.chunks.len() && self.len > 0 && self.chunks[at].first() <= to {
            let before = self.chunks.len();
            self.len -= self.chunks[at].take_range(from, to, &mut taken);
            self.tidy(at);
            at += usize::from(self.chunks.len() == before);
        }
    }

    /// Returns the references from a sequence on.
    pub(super) fn from(&self, sequence: u64) -> impl Iterator<Item = Reference> {
        let chunks = if self.len == 0 { 0..0 } else { 0..self.chunks.len() };
        let first = self.chunks.partition_point(|chunk| !chunk.entries.is_empty() && chunk.last() < sequence);
        self.chunks.range(first.min(chunks.end)..chunks.end).flat_map(move |chunk| {
            let start = chunk.lower_bound(sequence);
            (start..chunk.entries.len()).filter(|&index| !chunk.is_gone(index)).map(|index| chunk.reference(index))
        })
    }

    /// Returns chunk and index of a living reference.
    fn find(&self, sequence: u64) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let at = self.chunks.partition_point(|chunk| chunk.last() < sequence);
        let chunk = self.chunks.get(at).filter(|chunk| chunk.first() <= sequence)?;
        let index = chunk.lower_bound(sequence);
        (chunk.sequence(index) == sequence && !chunk.is_gone(index)).then_some((at, index))
    }

    /// Adds a reference at the end.
    fn append(&mut self, reference: Reference, bytes: u64) {
        match self.chunks.back_mut() {
            Some(only) if only.entries.is_empty() => only.begin(reference, bytes),
            Some(last) if last.has_room_behind(&reference) => last.push(&reference, bytes),
            last => {
                if let Some(last) = last {
                    last.entries.shrink_to_fit();
                }
                if self.chunks.len() == self.chunks.capacity() && self.chunks.len() < EXACT_MAX {
                    self.chunks.reserve_exact(2);
                }
                self.chunks.push_back(Chunk::with(reference, bytes));
            }
        }
    }

    /// Inserts a reference anywhere. Its sequence must be unused.
    fn insert(&mut self, reference: Reference, bytes: u64) {
        if self.len == 0 || self.chunks.is_empty() || self.chunks[0].entries.is_empty() {
            return self.append(reference, bytes);
        }
        let at = self.chunks.partition_point(|chunk| chunk.first() <= reference.sequence);
        let Some(before) = at.checked_sub(1).map(|index| &mut self.chunks[index]) else {
            return self.chunks.push_front(Chunk::with(reference, bytes));
        };
        if before.last() < reference.sequence {
            if before.has_room_behind(&reference) {
                before.push(&reference, bytes);
            } else {
                self.chunks.insert(at, Chunk::with(reference, bytes));
            }
            return;
        }
        // Insertion in the middle: the rest becomes a separate chunk.
        let index = before.lower_bound(reference.sequence);
        let entries = before.entries.split_off(index);
        let mut behind = Chunk { base: before.base, segment: before.segment, gone: 0, bytes: 0, entries };
        before.recount();
        behind.recount();
        behind.bytes = share(before.bytes, behind.live(), before.live() + behind.live());
        before.bytes -= behind.bytes;
        self.chunks.insert(at, behind);
        self.chunks.insert(at, Chunk::with(reference, bytes));
    }

    /// Frees memory after entries of a chunk were removed.
    fn tidy(&mut self, at: usize) {
        let is_empty = self.chunks[at].entries.is_empty();
        if is_empty && self.chunks.len() > 1 {
            self.chunks.remove(at);
        } else if is_empty && self.chunks[at].entries.capacity() > KEPT_MAX {
            self.chunks[at].entries = VecDeque::new();
        }
        if self.chunks.capacity() > KEPT_MAX && self.chunks.len() * 4 < self.chunks.capacity() {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }
}

impl Chunk {
    fn with(reference: Reference, bytes: u64) -> Self {
        let mut chunk = Self { base: 0, segment: 0, gone: 0, bytes: 0, entries: VecDeque::new() };
        chunk.begin(reference, bytes);
        chunk
    }

    fn begin(&mut self, reference: Reference, bytes: u64) {
        (self.base, self.segment, self.gone) = (reference.sequence, reference.position.segment(), 0);
        self.bytes = 0;
        self.push(&reference, bytes);
    }

    fn live(&self) -> usize {
        self.entries.len() - self.gone as usize
    }

    fn has_room_behind(&self, reference: &Reference) -> bool {
        self.segment == reference.position.segment()
            && self.entries.len() < CHUNK_MAX
            && reference.sequence - self.base <= u64::from(u32::MAX)
    }

    fn push(&mut self, reference: &Reference, bytes: u64) {
        self.bytes += bytes;
        if self.entries.len() == self.entries.capacity() && self.entries.len() < EXACT_MAX {
            self.entries.reserve_exact(2);
        }
        self.entries.push_back(self.entry(reference));
    }

    fn entry(&self, reference: &Reference) -> QueueEntry {
        let kind = match reference.kind {
            Kind::Message => MESSAGE,
            Kind::Moved => MOVED,
            Kind::Mark => MARK,
        };
        debug_assert_eq!(reference.position.offset() & KIND_BITS, 0, "records begin at multiples of 8");
        let delta = (reference.sequence - self.base) as u32;
        QueueEntry { delta, offset_and_kind: reference.position.offset() | kind }
    }

    fn reference(&self, index: usize) -> Reference {
        let bits = self.entries[index].offset_and_kind;
        let kind = match bits & KIND_BITS {
            MOVED => Kind::Moved,
            MARK => Kind::Mark,
            _ => Kind::Message,
        };
        let position = Position::new(self.segment, bits & !KIND_BITS);
        Reference { sequence: self.sequence(index), position, kind }
    }

    fn sequence(&self, index: usize) -> u64 {
        self.base + u64::from(self.entries[index].delta)
    }

    fn first(&self) -> u64 {
        self.sequence(0)
    }

    fn last(&self) -> u64 {
        self.sequence(self.entries.len() - 1)
    }

    fn is_gone(&self, index: usize) -> bool {
        self.entries[index].offset_and_kind & GONE != 0
    }

    /// Index of the first entry, living or gone, at or above a sequence.
    fn lower_bound(&self, sequence: u64) -> usize {
        match sequence.checked_sub(self.base) {
            None | Some(0) => 0,
            Some(delta) => self.entries.partition_point(|entry| u64::from(entry.delta) < delta),
        }
    }

    /// Removes an entry. Returns its approximate body size.
    fn forget(&mut self, index: usize) -> u64 {
        let bytes = share(self.bytes, 1, self.live());
        self.bytes -= bytes;
        self.entries[index].offset_and_kind |= GONE;
        self.gone += 1;
        self.trim();
        bytes
    }

    /// Removes a range, and returns the number of removed entries.
    fn take_range(&mut self, from: u64, to: u64, taken: &mut impl FnMut(Reference)) -> usize {
        let mut count = 0;
        for index in self.lower_bound(from)..self.entries.len() {
            if self.sequence(index) > to {
                break;
            }
            if !self.is_gone(index) {
                taken(self.reference(index));
                self.entries[index].offset_and_kind |= GONE;
                count += 1;
            }
        }
        self.bytes -= share(self.bytes, count as usize, self.live());
        self.gone += count;
        self.trim();
        count as usize
    }

    /// Drops removed entries at both ends; in the middle too, once they are most of the chunk.
    fn trim(&mut self) {
        let is_gone = |entry: Option<&QueueEntry>| entry.is_some_and(|entry| entry.offset_and_kind & GONE != 0);
        while self.gone > 0 && is_gone(self.entries.front()) {
            self.entries.pop_front();
            self.gone -= 1;
        }
        while self.gone > 0 && is_gone(self.entries.back()) {
            self.entries.pop_back();
            self.gone -= 1;
        }
        if self.gone as usize > self.entries.len() / 2 && self.entries.len() > KEPT_MAX {
            self.entries.retain(|entry| entry.offset_and_kind & GONE == 0);
            self.gone = 0;
            self.entries.shrink_to_fit();
        }
    }

    /// Restores the counts after a split.
    fn recount(&mut self) {
        self.gone = self.entries.iter().filter(|entry| entry.offset_and_kind & GONE != 0).count() as u32;
        self.trim();
    }
}

/// Returns the proportional share of `count` out of `of`; all bytes if they are equal.
fn share(bytes: u64, count: usize, of: usize) -> u64 {
    (u128::from(bytes) * count as u128 / of.max(1) as u128) as u64
}

#[cfg(test)]
mod tests;
