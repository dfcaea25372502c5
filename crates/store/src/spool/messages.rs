//! Messages that were read.

use std::ops::Range;

use super::names::Sequence;
use super::reference::RecordAt;

/// The next messages of a queue. The memory is reused from one read to the next.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    tags: Vec<u8>,
    entries: Vec<Stored>,
}

/// A message in [`Messages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence in the queue.
    pub sequence: Sequence,
    /// Its mark; 0 means none.
    pub mark: u32,
    /// Range of its body in [`Messages::bytes`]; `None` if the body was discarded.
    pub body: Option<Range<usize>>,
    /// Range of its tag in [`Messages::tags`]; empty if the body was discarded.
    pub tag: Range<usize>,
    /// Its record, if only the beginning of the body was read: see [`Spool::read_heads`](super::Spool::read_heads).
    pub record: Option<RecordAt>,
}

impl Messages {
    /// Returns the messages in queue order.
    pub fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.entries.iter()
    }

    /// All bodies, concatenated.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All tags, concatenated.
    pub fn tags(&self) -> &[u8] {
        &self.tags
    }

    /// Takes all bodies. The ranges of [`iter`](Self::iter) still refer to them.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.tags.clear();
        self.entries.clear();
    }

    pub(super) fn push(&mut self, sequence: u64, mark: u32, body: Option<&[u8]>, tag: &[u8]) {
        let body = body.map(|body| append(&mut self.bytes, body));
        let tag = append(&mut self.tags, tag);
        let sequence = Sequence(sequence);
        self.entries.push(Stored { sequence, mark, body, tag, record: None });
    }

    /// Notes that the last message is the beginning of this record alone.
    pub(super) fn is_beginning_of(&mut self, record: RecordAt) {
        self.entries.last_mut().into_iter().for_each(|stored| stored.record = Some(record));
    }

    pub(super) fn pop(&mut self) {
        let Some(Stored { body, tag, .. }) = self.entries.pop() else { return };
        self.bytes.truncate(body.map_or(self.bytes.len(), |body| body.start));
        self.tags.truncate(tag.start);
    }
}

/// Appends bytes, and returns their range.
pub(super) fn append(all: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(bytes);
    start..all.len()
}
