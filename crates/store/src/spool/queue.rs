//! Where the messages of one queue are.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{marks::Marks, names::Position};

/// The references of a queue in order of their sequences: 8 bytes each where neighbours are in the same segment, which
/// they are but for the few that were marked, moved or copied forward.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// None of them is empty, but for the only one, which keeps its memory.
    chunks: VecDeque<Chunk>,
    len: usize,
    /// Packet Identifiers that its session holds, each with the segment that says so.
    held: Option<Box<FxHashMap<u16, u32>>>,
    /// Of those that are there; nothing if none has one.
    marks: Option<Box<Marks>>,
}

/// A place in a queue, and where what it stands for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) sequence: u64,
    pub(super) position: Position,
    pub(super) kind: Kind,
}

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message that names this place.
    Message,
    /// A message that names another place, from which it was moved here.
    Moved,
    /// A mark that says that the body is not needed.
    Mark,
}

/// References in one segment. The first and the last of them live.
#[derive(Debug)]
struct Chunk {
    base: u64,
    segment: u32,
    gone: u32,
    /// Of the bodies of those that live. What is taken counts as the average of these, so this is right again when all of
    /// them are gone; it is right all the time where bodies are of one size.
    bytes: u64,
    entries: VecDeque<Entry>,
}

/// Sequence less the chunk's base; and offset, of which the lowest three bits are free.
#[derive(Clone, Copy, Debug)]
struct Entry {
    delta: u32,
    offset_and_kind: u32,
}

/// Their memory is given back in such pieces.
const CHUNK_MAX: usize = 1024;
/// A chunk without entries keeps space for that many.
const KEPT_MAX: usize = 32;

/// Many queues are short, and their messages far apart: so long lists get no more memory than they need soon.
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

    /// Of the bodies of all, about.
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

    /// Packet Identifiers that are held, in no order.
    pub(super) fn held(&self) -> impl Iterator<Item = (u16, u32)> {
        self.held.iter().flat_map(|held| held.iter().map(|(&identifier, &segment)| (identifier, segment)))
    }

    /// The segment that says that this identifier is held.
    pub(super) fn holds(&self, identifier: u16) -> Option<u32> {
        self.held.as_ref()?.get(&identifier).copied()
    }

    /// What it was before.
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

    /// Adds a reference to a body of so many bytes, usually the last one, without a mark. What was at this place before.
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

    /// A reference, and about how many bytes its body has.
    pub(super) fn take(&mut self, sequence: u64) -> Option<(Reference, u64)> {
        let (chunk, index) = self.find(sequence)?;
        let taken = self.chunks[chunk].reference(index);
        let bytes = self.chunks[chunk].forget(index);
        self.tidy(chunk);
        self.len -= 1;
        self.remove_marks(sequence, sequence);
        Some((taken, bytes))
    }

    /// 0 if it has none.
    pub(super) fn mark_of(&self, sequence: u64) -> u32 {
        self.marks.as_ref().map_or(0, |marks| marks.get(sequence))
    }

    /// All of them, in the order of the queue.
    pub(super) fn marks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.marks.iter().flat_map(|marks| marks.iter())
    }

    /// Gives a reference another mark, if it is there.
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

    /// Takes all from one sequence to another, both included.
    pub(super) fn take_range(&mut self, from: u64, to: u64, mut taken: impl FnMut(Reference)) {
        if self.len == 0 {
            return;
        }
        self.remove_marks(from, to);
        // The head, for which nothing has to be searched, is what is taken most often.
        let is_head = self.chunks[0].last() >= from;
        let mut at = if is_head { 0 } else { self.chunks.partition_point(|chunk| chunk.last() < from) };
        while at < self.chunks.len() && self.len > 0 && self.chunks[at].first() <= to {
            let before = self.chunks.len();
            self.len -= self.chunks[at].take_range(from, to, &mut taken);
            self.tidy(at);
            at += usize::from(self.chunks.len() == before);
        }
    }

    /// References from a sequence on.
    pub(super) fn from(&self, sequence: u64) -> impl Iterator<Item = Reference> {
        let chunks = if self.len == 0 { 0..0 } else { 0..self.chunks.len() };
        let first = self.chunks.partition_point(|chunk| !chunk.entries.is_empty() && chunk.last() < sequence);
        self.chunks.range(first.min(chunks.end)..chunks.end).flat_map(move |chunk| {
            let start = chunk.lower_bound(sequence);
            (start..chunk.entries.len()).filter(|&index| !chunk.is_gone(index)).map(|index| chunk.reference(index))
        })
    }

    /// Chunk and index of a sequence that lives.
    fn find(&self, sequence: u64) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let at = self.chunks.partition_point(|chunk| chunk.last() < sequence);
        let chunk = self.chunks.get(at).filter(|chunk| chunk.first() <= sequence)?;
        let index = chunk.lower_bound(sequence);
        (chunk.sequence(index) == sequence && !chunk.is_gone(index)).then_some((at, index))
    }

    /// Behind all others.
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

    /// Anywhere. The sequence is not there.
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
        // In the middle: what is behind it becomes a chunk of its own.
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

    /// After entries of a chunk are gone.
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

    fn entry(&self, reference: &Reference) -> Entry {
        let kind = match reference.kind {
            Kind::Message => MESSAGE,
            Kind::Moved => MOVED,
            Kind::Mark => MARK,
        };
        debug_assert_eq!(reference.position.offset() & KIND_BITS, 0, "records begin at multiples of 8");
        let delta = (reference.sequence - self.base) as u32;
        Entry { delta, offset_and_kind: reference.position.offset() | kind }
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

    /// The first entry, gone or not, that is not below a sequence.
    fn lower_bound(&self, sequence: u64) -> usize {
        match sequence.checked_sub(self.base) {
            None | Some(0) => 0,
            Some(delta) => self.entries.partition_point(|entry| u64::from(entry.delta) < delta),
        }
    }

    /// About how many bytes its body has.
    fn forget(&mut self, index: usize) -> u64 {
        let bytes = share(self.bytes, 1, self.live());
        self.bytes -= bytes;
        self.entries[index].offset_and_kind |= GONE;
        self.gone += 1;
        self.trim();
        bytes
    }

    /// How many were taken.
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

    /// What is gone at the ends leaves; in the middle when it is most of the chunk.
    fn trim(&mut self) {
        let is_gone = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.offset_and_kind & GONE != 0);
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

    /// After it was split.
    fn recount(&mut self) {
        self.gone = self.entries.iter().filter(|entry| entry.offset_and_kind & GONE != 0).count() as u32;
        self.trim();
    }
}

/// So many of all; all of it for all of them.
fn share(bytes: u64, count: usize, of: usize) -> u64 {
    (u128::from(bytes) * count as u128 / of.max(1) as u128) as u64
}

#[cfg(test)]
mod tests;
