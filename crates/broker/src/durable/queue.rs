use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenbin_codec::{PacketId, QoS};
use tenbin_session::{Location, Stored};
use tenbin_store::spool::{Origin, Place, QueueId, Sequence};

/// Identifies a QoS 2 message by its publisher's queue and Packet Identifier, until PUBREL.
pub(crate) type PublisherId = Origin;

/// The queue on disk of one session, or of one share group.
///
/// A message of a session is in the session's queue. A message of a share group stays in the group's queue until it is
/// done, whichever member has it. A QoS 2 message moves to the queue of the member that it is sent to `[MQTT-4.8.2-4]`.
#[derive(Debug)]
pub(crate) struct StoredQueue {
    id: QueueId,
    /// Offset of the next message. Relaxed. A stored message raises it under the log's lock, so that offsets rise in
    /// the order of the log. A message in transient spill raises it without that lock.
    next: AtomicU64,
    /// No message may enter any more. Written and read under the log's lock; relaxed.
    is_over: AtomicBool,
    kind: QueueKind,
    /// First offset at which a message in transient spill may stay; [`NOTHING_PASSES`]: at none. See `outbox::spill`.
    /// Written under the outbox's lock. Relaxed: readers elsewhere take it as a hint.
    passes_from: AtomicU64,
}

/// Owner of a queue on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// A session that outlives its connection.
    Session,
    /// A session that ends with its connection, and the queue with it.
    Temporary,
    /// A share group.
    Group,
}

impl QueueKind {
    /// Location of a message at this offset of such a queue.
    pub(crate) fn locate(self, Sequence(sequence): Sequence, qos: QoS) -> Location {
        match self {
            Self::Group => Location::Group(sequence),
            Self::Session if qos.is_acknowledged() => Location::Own(sequence),
            Self::Session | Self::Temporary => Location::Transient(sequence),
        }
    }
}

impl StoredQueue {
    /// A queue whose offsets begin with `first`: above all that its owner ever had.
    pub(super) fn new(kind: QueueKind, id: NonZeroU64, first: u64) -> Arc<Self> {
        let next = AtomicU64::new(first.max(1));
        let (is_over, passes_from) = (AtomicBool::new(false), AtomicU64::new(NOTHING_PASSES));
        Arc::new(Self { id: QueueId(id.get()), next, is_over, kind, passes_from })
    }

    /// The queue of the session with this number.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Arc<Self> {
        Self::new(QueueKind::Session, NonZeroU64::new(number).unwrap(), 1)
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    /// Identifies the QoS 2 message that the session publishes with this Packet Identifier.
    pub(crate) fn publishes(&self, packet_id: PacketId) -> PublisherId {
        Origin { queue: self.id, identifier: packet_id.get() }
    }

    /// The position of its entry with this offset.
    pub(crate) fn at(&self, sequence: Sequence) -> Place {
        Place { queue: self.id, sequence }
    }

    /// The position of a stored message; `None`: it is in another kind of queue.
    pub(crate) fn place_of(&self, stored: impl Into<Option<Stored>>) -> Option<Place> {
        match (stored.into()?.location(), self.kind) {
            (Location::Group(sequence), QueueKind::Group)
            | (Location::Own(sequence), QueueKind::Session | QueueKind::Temporary) => Some(self.at(Sequence(sequence))),
            _ => None,
        }
    }

    /// The queue of the Packet Identifiers of the session's partly refused messages.
    pub(super) fn refused_id(&self) -> QueueId {
        refused_by(self.id)
    }

    pub(crate) fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Whether the queue ends with its session's connection.
    pub(crate) fn is_temporary(&self) -> bool {
        self.kind == QueueKind::Temporary
    }

    /// Begins transient spill anew, at offsets above all that were given before, or ends it. Messages that arrive later
    /// with another offset for it must not stay there. Under the outbox's lock.
    pub(crate) fn set_passing(&self, passes: bool) {
        let from = if passes { self.next.load(Ordering::Relaxed) } else { NOTHING_PASSES };
        self.passes_from.store(from, Ordering::Relaxed);
    }

    /// Whether transient spill is on; a hint.
    #[inline]
    pub(crate) fn is_passing(&self) -> bool {
        self.passes_from.load(Ordering::Relaxed) != NOTHING_PASSES
    }

    /// Whether a message in transient spill may stay at this offset. Under the outbox's lock.
    pub(crate) fn may_pass_at(&self, Sequence(sequence): Sequence) -> bool {
        sequence >= self.passes_from.load(Ordering::Relaxed)
    }

    /// Reserves offsets for messages that may need one later: see [`StoredQueue::next`].
    pub(crate) fn leave_room(&self, messages: usize) -> Range<u64> {
        let first = self.next.fetch_add(messages as u64, Ordering::Relaxed);
        first..first + messages as u64
    }

    /// Returns a position for a message that enters the queue now, above all earlier ones. `None`: the queue has ended.
    ///
    /// Call it under the log's lock, under the lock of an outbox with a connection, or as holder of the session's lease, so
    /// that the queue does not end during the call. The log accepts entries with higher offsets before this one.
    pub(crate) fn next(&self) -> Option<Place> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.at(Sequence(self.next.fetch_add(1, Ordering::Relaxed))))
    }

    /// Ends the queue. Under the log's lock, before the log drops it.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether the queue has ended, so that no message may enter; a hint.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// An offset above the offsets of all messages so far.
    pub(crate) fn end(&self) -> Sequence {
        Sequence(self.peek())
    }

    /// Offset of the next message.
    pub(super) fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// The queue of Packet Identifiers of partly refused messages from the publisher with this `queue`.
pub(super) fn refused_by(queue: QueueId) -> QueueId {
    QueueId(queue.0 | OF_REFUSED)
}

/// The publisher's own queue, given the same queue or the queue of its partly refused messages.
pub(super) fn publishers(queue: QueueId) -> QueueId {
    QueueId(queue.0 & !OF_REFUSED)
}

/// The key under which the log records that a message was partly refused.
pub(crate) fn as_refused(origin: PublisherId) -> PublisherId {
    Origin { queue: refused_by(origin.queue), ..origin }
}

/// Flag of queues of partly refused messages: numbers of sessions and groups are below it.
const OF_REFUSED: u64 = 1 << 63;
/// Above every offset.
const NOTHING_PASSES: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_sessions_and_groups_have_persistent_messages() {
        let locate = |kind: QueueKind, qos| kind.locate(Sequence(3), qos);
        assert_eq!(locate(QueueKind::Session, QoS::ExactlyOnce), Location::Own(3));
        assert_eq!(locate(QueueKind::Session, QoS::AtMostOnce), Location::Transient(3));
        assert_eq!(locate(QueueKind::Temporary, QoS::ExactlyOnce), Location::Transient(3));
        assert_eq!(locate(QueueKind::Group, QoS::AtLeastOnce), Location::Group(3));
    }
}
