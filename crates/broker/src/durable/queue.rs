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
    /// The place of the next message. For what is kept it is raised under the log's lock, so that places rise in the order of the
    /// log; not for what passes. Relaxed.
    next: AtomicU64,
    /// Nothing may come in any more. Written and read under the log's lock; relaxed.
    is_over: AtomicBool,
    /// A group's: where a delivery is stored is told with this in mind.
    is_of_group: bool,
    /// Of a session that ends with its connection: nothing of it is wanted after that.
    is_temporary: bool,
    /// Messages that are here only while they are not in memory may have places from this one on: see `outbox::passing`.
    /// [`NOTHING_PASSES`]: none are given to them. Written under the outbox's lock; relaxed, for who reads it elsewhere reads
    /// a hint.
    passes_from: AtomicU64,
}

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

    /// That of a session that ends with its connection.
    pub(super) fn temporary(id: NonZeroU64, first: u64) -> Arc<Self> {
        Arc::new(Self { is_temporary: true, ..Self::new(id, first, false) })
    }

    /// A share group's.
    pub(super) fn of_group(id: NonZeroU64, first: u64) -> Arc<Self> {
        Arc::new(Self::new(id, first, true))
    }

    /// A session's that is on no disk.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Arc<Self> {
        Self::numbered(1)
    }

    /// One of a session that has this number.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Arc<Self> {
        Self::of_session(NonZeroU64::new(number).unwrap(), 1)
    }

    fn new(id: NonZeroU64, first: u64, is_of_group: bool) -> Self {
        let next = AtomicU64::new(first.max(1));
        let (is_over, passes_from) = (AtomicBool::new(false), AtomicU64::new(NOTHING_PASSES));
        Self { id: QueueId(id.get()), next, is_over, is_of_group, is_temporary: false, passes_from }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// The session publishes a QoS 2 message by this Packet Identifier.
    pub(crate) fn publishes(&self, packet_id: PacketId) -> PublisherId {
        Origin { queue: self.id, identifier: packet_id.get() }
    }

    /// That of the identifiers of the session's messages that were refused in part.
    pub(super) fn refused_id(&self) -> QueueId {
        refused_by(self.id)
    }

    pub(super) fn is_of_group(&self) -> bool {
        self.is_of_group
    }

    /// Whether it goes with its session's connection.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// From now on messages may pass through here, at places that were not given before. Under the outbox's lock.
    pub(crate) fn begin_passing(&self) {
        self.passes_from.store(self.next.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// What has got a place for that, and has not come yet, is not to be left here. Under the outbox's lock.
    pub(crate) fn end_passing(&self) {
        self.passes_from.store(NOTHING_PASSES, Ordering::Relaxed);
    }

    /// Whether messages pass through here now; a hint.
    #[inline]
    pub(crate) fn is_passing(&self) -> bool {
        self.passes_from.load(Ordering::Relaxed) != NOTHING_PASSES
    }

    /// Whether a message that passes may be left at this place. Under the outbox's lock.
    pub(crate) fn may_pass_at(&self, Sequence(sequence): Sequence) -> bool {
        sequence >= self.passes_from.load(Ordering::Relaxed)
    }

    /// A place for a message that comes into the queue now, above all that were given before; `None`: there is none any more.
    /// Not under the log's lock: others may be written before it is there, which the spool minds.
    pub(crate) fn next_sequence(&self) -> Option<Sequence> {
        self.next().map(|(place, _)| place.sequence)
    }

    /// As [`StoredQueue::next_sequence`], for so many messages that may need one later.
    pub(crate) fn leave_room(&self, messages: usize) -> Range<u64> {
        let first = self.next.fetch_add(messages as u64, Ordering::Relaxed);
        first..first + messages as u64
    }

    /// Where the next message goes, and what its delivery says of it; `None`: nowhere any more. Under the log's lock, or under
    /// that of an outbox whose connection is there: then it is not over.
    pub(super) fn next(&self) -> Option<(Place, NonZeroU64)> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let sequence = Sequence(self.next.fetch_add(1, Ordering::Relaxed));
        Some((Place { queue: self.id, sequence }, Stored::new(sequence, self.is_of_group).to_number()))
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

/// The queue that holds identifiers of messages that were refused in part, for the publisher's `queue`.
pub(super) fn refused_by(queue: QueueId) -> QueueId {
    QueueId(queue.0 | OF_REFUSED)
}

/// The publisher's queue, of its own or of that of its refused messages.
pub(super) fn publishers(queue: QueueId) -> QueueId {
    QueueId(queue.0 & !OF_REFUSED)
}

/// By what the log knows that a message was refused in part.
pub(crate) fn as_refused(origin: PublisherId) -> PublisherId {
    Origin { queue: refused_by(origin.queue), ..origin }
}

/// Numbers of sessions and groups are below it.
const OF_REFUSED: u64 = 1 << 63;
/// No place is so high.
const NOTHING_PASSES: u64 = u64::MAX;
const IN_GROUP: u64 = 1 << 63;
