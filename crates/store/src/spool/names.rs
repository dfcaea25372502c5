//! Identifiers of the caller, and positions in the log.

use std::fmt;

/// Number of a queue. The caller chooses it and never reuses it for another queue, not even after [`drop_queue`].
///
/// [`drop_queue`]: super::Batch::drop_queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u64);

/// Number of an entry in its queue, chosen by the caller; normally larger than all earlier ones. Gaps are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// An entry: one message in one queue. The caller may store a tag with it, up to 255 bytes that only it interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The queue.
    pub queue: QueueId,
    /// The number in the queue.
    pub sequence: Sequence,
}

/// Whether a marked entry keeps its message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The body stays until the message is acknowledged.
    Kept,
    /// Body and tag are not needed any more; only the entry and its mark stay.
    Done,
}

/// An entry with a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The entry's number in its queue.
    pub sequence: Sequence,
    /// The caller's number; not 0.
    pub mark: u32,
    /// Whether the body exists.
    pub has_body: bool,
}

/// Publisher and Packet Identifier of a QoS 2 message, held until [`release`](super::Batch::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The publisher's session. It may equal the number of that session's queue.
    pub queue: QueueId,
    /// The Packet Identifier that the publisher chose.
    pub identifier: u16,
}

/// A position in the log: segment number and offset. Later positions are greater.
///
/// Everything before it is durable once [`Spool::durable`](super::Spool::durable) has reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Before all records.
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

    pub(crate) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The smallest greater position.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.offset())
    }
}
