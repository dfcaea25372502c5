//! What callers name things by, and where something stands in the log.

use std::fmt;

/// A queue. The caller chooses the number and never uses it for another queue, not even after [`drop_queue`].
///
/// [`drop_queue`]: super::Batch::drop_queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

/// A message's place in its queue, given by the caller: larger than those of all messages that were appended to this
/// queue before. There may be gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// A message in a queue. With each one the caller may store a tag: up to 255 bytes that only it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The queue.
    pub queue: QueueId,
    /// Where in it.
    pub sequence: Sequence,
}

/// What becomes of a message's body when its place is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// It stays until the message is acknowledged.
    Kept,
    /// It is not needed any more, and its tag neither: only place and mark are kept.
    Done,
}

/// A place that is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Which place of the queue.
    pub sequence: Sequence,
    /// The caller's number; not 0.
    pub mark: u32,
    /// The body is there.
    pub has_body: bool,
}

/// Where a QoS 2 message came from: who holds which Packet Identifier until [`release`](super::Batch::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The publisher's session. It may be the same number as that of its queue.
    pub queue: QueueId,
    /// The Packet Identifier that the publisher chose.
    pub identifier: u16,
}

/// A point in the log: a segment's number and an offset in it. Later points are larger, so it is also what a caller
/// waits for: all before it is safe once [`Spool::durable`](super::Spool::durable) has come to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Before all that is appended.
    pub const START: Self = Self(0);

    pub(super) fn new(segment: u32, offset: u32) -> Self {
        Self(u64::from(segment) << 32 | u64::from(offset))
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The next one of all.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.offset())
    }
}
