use std::fmt;
use std::ops::Range;
use std::time::Instant;

use tenbin_codec::WriteBuffer;
use tenbin_sn_codec::v1_2::Message;

/// Arguments of a peer's methods: the time, and where its output goes.
#[derive(Debug)]
pub struct Io<'a> {
    /// Current time.
    pub now: Instant,
    /// Bytes for the broker, on the peer's own upstream.
    pub upstream: &'a mut WriteBuffer,
    /// Datagrams for the client, and counts of dropped messages.
    pub output: &'a mut Output,
}

/// Output of the peers of a thread.
#[derive(Debug, Default)]
pub struct Output {
    /// Datagrams for the client whose peer was called last.
    pub datagrams: Datagrams,
    /// Messages dropped so far.
    pub drops: Drops,
    /// Topics of clients that made room for others so far.
    pub topics_freed: u64,
}

/// Datagrams in one block of memory, which is reused.
#[derive(Debug, Default)]
pub struct Datagrams {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Output {
    /// Appends a message within `budget`, the bytes that may be sent. False if it does not fit.
    pub(crate) fn push_within(&mut self, message: &Message<'_>, budget: &mut usize) -> bool {
        let size = self.datagrams.push(message);
        match budget.checked_sub(size) {
            Some(rest) => {
                *budget = rest; // [SN-ADDRESS-1]
                true
            }
            None => {
                self.datagrams.pop();
                self.drops.note(DropCause::Unproven);
                false
            }
        }
    }
}

impl Datagrams {
    /// The datagrams in sending order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|index| &self.bytes[self.range(index)])
    }

    /// Number of datagrams.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all datagrams, once they are sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a message and returns its size. A message too large for any datagram appends nothing.
    pub fn push(&mut self, message: &Message<'_>) -> usize {
        let start = self.bytes.len();
        message.encode(&mut self.bytes);
        self.end(start)
    }

    /// Appends an encoded message.
    pub(crate) fn push_bytes(&mut self, datagram: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.end(start);
    }

    /// Takes the last datagram back.
    pub(crate) fn pop(&mut self) {
        if self.ends.pop().is_some() {
            self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        }
    }

    pub(crate) fn last(&self) -> &[u8] {
        self.ends.len().checked_sub(1).map_or(&[], |index| &self.bytes[self.range(index)])
    }

    fn end(&mut self, start: usize) -> usize {
        let size = self.bytes.len() - start;
        if size > 0 {
            self.ends.push(self.bytes.len());
        }
        size
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[index]
    }
}

/// Reason why a peer drops a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropCause {
    /// A message that does not fit the client's state, or that only a gateway sends.
    Unexpected,
    /// A PUBLISH on an id that has no topic.
    UnknownTopic,
    /// QoS −1, which is off, or on a registered id.
    QoSMinusOne,
    /// A MsgId in flight came with another message.
    MessageIdInUse,
    /// A client's message while its upstream is not open.
    NoUpstream,
    /// A message to a client that refused its topic.
    TopicRefused,
    /// A message to a client that refused the message itself.
    MessageRefused,
    /// A topic for which a client has no room: of a REGISTER, a SUBSCRIBE, or a message to it.
    TopicTableFull,
    /// A QoS 0 message to a client that sleeps or is slow, the oldest.
    BufferFull,
    /// A message larger than a datagram.
    TooLarge,
    /// An answer beyond the bound of an unproven address.
    Unproven,
}

impl DropCause {
    /// All causes.
    pub const ALL: [Self; 11] = [
        Self::Unexpected,
        Self::UnknownTopic,
        Self::QoSMinusOne,
        Self::MessageIdInUse,
        Self::NoUpstream,
        Self::TopicRefused,
        Self::MessageRefused,
        Self::TopicTableFull,
        Self::BufferFull,
        Self::TooLarge,
        Self::Unproven,
    ];
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unexpected => "unexpected",
            Self::UnknownTopic => "unknown_topic",
            Self::QoSMinusOne => "qos_minus_one",
            Self::MessageIdInUse => "message_id_in_use",
            Self::NoUpstream => "no_upstream",
            Self::TopicRefused => "topic_refused",
            Self::MessageRefused => "message_refused",
            Self::TopicTableFull => "topic_table_full",
            Self::BufferFull => "buffer_full",
            Self::TooLarge => "too_large",
            Self::Unproven => "unproven",
        })
    }
}

/// Dropped messages by cause.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Drops([u64; DropCause::ALL.len()]);

impl Drops {
    /// Messages dropped for this cause.
    pub fn get(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// All causes with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> {
        DropCause::ALL.into_iter().map(|cause| (cause, self.get(cause)))
    }

    /// Counts a dropped message.
    pub fn note(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }
}
