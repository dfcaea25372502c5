use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenbin_codec::PacketId;
use tenbin_store::spool::{Origin, Place, QueueId, Sequence};

/// Who holds which Packet Identifier of a QoS 2 message, until PUBREL.
pub(crate) type PublisherId = Origin;

/// The queue on disk of one session, or of one share group.
///
/// A message of a session is in the session's queue; one of a share group in the group's, whichever member has it, until it
/// is done; but one of QoS 2 goes over to the queue of the member that it is sent to, with whom it stays `[MQTT-4.8.2-4]`.
#[derive(Debug)]
pub(crate) struct StoredQueue {
    id: QueueId,
    /// The place of the next message. Raised under the log's lock, so that places rise in the order of the log; relaxed.
    next: AtomicU64,
    /// Nothing may come in any more. Written and read under the log's lock; relaxed.
    is_over: AtomicBool,
    /// A group's: where a delivery is stored is told with this in mind.
    is_of_group: bool,
}

/// Places of a queue for messages that came before it was used.
#[derive(Debug, Clone)]
pub(crate) struct Reserved(Range<u64>);

/// The place of a delivery that is stored, as [`Delivery::stored`] says it: that in its group's queue is marked.
///
/// [`Delivery::stored`]: tenbin_session::Delivery::stored
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// In the session's own queue.
    InOwn(Sequence),
    /// In the queue of the share group that the delivery is for.
    InGroup(Sequence),
}

impl StoredQueue {
    /// A session's, whose places begin with `first`: higher than all that it ever had.
    pub(super) fn of_session(id: NonZeroU64, first: u64) -> Arc<Self> {
        Arc::new(Self::new(id, first, false))
    }

    /// A share group's.
    pub(super) fn of_group(id: NonZeroU64, first: u64) -> Arc<Self> {
        Arc::new(Self::new(id, first, true))
    }

    /// A session's that is on no disk.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Arc<Self> {
        Self::of_session(NonZeroU64::MIN, 1)
    }

    fn new(id: NonZeroU64, first: u64, is_of_group: bool) -> Self {
        let next = AtomicU64::new(first.max(1));
        Self { id: QueueId(id.get()), next, is_over: AtomicBool::new(false), is_of_group }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// The session publishes a QoS 2 message by this Packet Identifier.
    pub(crate) fn publishes(&self, packet_id: PacketId) -> PublisherId {
        Origin { queue: self.id, identifier: packet_id.get() }
    }

    pub(super) fn is_of_group(&self) -> bool {
        self.is_of_group
    }

    /// Where the next message goes, and what its delivery says of it; `None`: nowhere any more. Under the log's lock.
    pub(super) fn next(&self) -> Option<(Place, NonZeroU64)> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let sequence = Sequence(self.next.fetch_add(1, Ordering::Relaxed));
        Some((Place { queue: self.id, sequence }, Stored::new(sequence, self.is_of_group).to_number()))
    }

    /// Places before all that are given from now on. Under the log's lock.
    pub(super) fn reserve(&self, count: usize) -> Reserved {
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        Reserved(first..first + count as u64)
    }

    /// Under the log's lock, before the queue is dropped.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether nothing comes in any more; a hint.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The place of the next message.
    pub(super) fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

impl Stored {
    pub(crate) fn new(sequence: Sequence, is_in_group: bool) -> Self {
        if is_in_group { Self::InGroup(sequence) } else { Self::InOwn(sequence) }
    }

    pub(crate) fn of(number: NonZeroU64) -> Self {
        let sequence = Sequence(number.get() & !IN_GROUP);
        Self::new(sequence, number.get() & IN_GROUP != 0)
    }

    pub(crate) fn to_number(self) -> NonZeroU64 {
        let number = match self {
            Self::InOwn(Sequence(sequence)) => sequence,
            Self::InGroup(Sequence(sequence)) => sequence | IN_GROUP,
        };
        NonZeroU64::new(number).expect("places begin with 1")
    }

    pub(crate) fn sequence(self) -> Sequence {
        let (Self::InOwn(sequence) | Self::InGroup(sequence)) = self;
        sequence
    }
}

impl Reserved {
    /// None at all.
    pub(crate) const NONE: Self = Self(0..0);

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.0.end - self.0.start).unwrap_or(usize::MAX)
    }
}

/// In order.
impl Iterator for Reserved {
    type Item = Sequence;

    fn next(&mut self) -> Option<Sequence> {
        self.0.next().map(Sequence)
    }
}

const IN_GROUP: u64 = 1 << 63;
