//! Appends stored messages and their delivery updates to the log.

use tenbin_codec::{PacketId, PublishTemplate};
use tenbin_session::{Delivery, Location, SentId};
use tenbin_store::spool::{Batch, Body, Origin, Place, Room, Sequence};

use super::ended::{Ended, EndedEntries};
use super::message::{self, Head};
use super::message_expiry::MessageClock;
use super::queue::{PublisherId, QueueKind, StoredQueue, as_refused};
use super::{CommitPoint, Durable};

/// A batch that is being appended. While it exists, no other thread appends to the log or reads from it.
#[derive(Debug)]
pub(crate) struct Appending<'a> {
    log: Batch<'a>,
    clock: MessageClock,
    /// Entries of the current message, with their tags.
    places: Vec<(Place, Vec<u8>)>,
    /// Body of the current message, the same for all entries, and the room booked for it.
    body: Option<(Head, PublishTemplate, &'a Room)>,
}

impl<'a> Appending<'a> {
    /// Adds an entry of the current message to `queue`, and tells the delivery its offset.
    ///
    /// All entries share one body until [`Appending::close`]. `room` is booked for the message.
    pub(crate) fn place(&mut self, queue: &StoredQueue, delivery: &mut Delivery, room: &'a Room) {
        let Some(place) = queue.next() else { return };
        delivery.stored = Some(queue.kind().locate(place.sequence, delivery.qos).to_stored());
        self.put(queue, place, delivery, room);
    }

    fn put(&mut self, queue: &StoredQueue, place: Place, delivery: &Delivery, room: &'a Room) {
        let tag = match queue.kind() {
            QueueKind::Session | QueueKind::Temporary => message::tag(delivery),
            QueueKind::Group => message::group_tag(delivery, self.clock),
        };
        self.places.push((place, tag));
        if self.body.is_none() {
            self.body = Some((message::head(delivery, self.clock), delivery.template.clone(), room));
        }
    }

    /// Appends the current message. `origin`: its QoS 2 Packet Identifier, held until PUBREL, even without an entry.
    pub(crate) fn close(&mut self, origin: Option<Origin>) {
        if let Some(origin) = origin {
            self.log.release(as_refused(origin)); // this message has the identifier now
        }
        let Some((head, template, room)) = self.body.take() else {
            return origin.into_iter().for_each(|origin| self.log.hold(origin));
        };
        let [first, second] = template.to_store().1;
        let appended = self.log.message(room, &self.places, origin, &[head.as_bytes(), first, second]);
        debug_assert!(appended.is_ok(), "no tag and no message of MQTT is too large");
        self.places.clear();
    }

    /// Tells the log that no acknowledgement waits for this batch.
    pub(crate) fn without_hurry(&mut self) {
        self.log.without_hurry();
    }

    /// Commit point of the batch.
    pub(crate) fn commit_point(&self) -> CommitPoint {
        CommitPoint::of_messages(self.log.end())
    }
}

/// Delivery updates of one connection, to be appended together.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Entries that have ended: see [`Outcomes::end`].
    pub(crate) ended: EndedEntries,
    /// Entries that move for good to a member's own queue: from, to, and the new tag.
    pub(crate) moved: Vec<(Place, Place, Vec<u8>)>,
    /// Entries that were sent, with their Packet Identifiers.
    pub(crate) sent: Vec<(Place, SentId)>,
    /// Entries for which PUBREC was received.
    pub(crate) received: Vec<(Place, SentId)>,
    /// Packet Identifiers of publishers for which PUBREL was received.
    pub(crate) released: Vec<Origin>,
    /// Refused messages that some of their receivers have got.
    pub(crate) refused: Vec<PublisherId>,
    /// Partly refused messages whose publisher knows of the refusal.
    pub(crate) refused_no_more: Vec<PublisherId>,
    /// An acknowledgement waits for these updates.
    pub(crate) are_waited_for: bool,
}

impl Outcomes {
    /// Adds an entry that has ended.
    #[inline]
    pub(crate) fn end(&mut self, cause: Ended, place: Place) {
        self.ended.push(cause, place);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Self { ended, moved, sent, received, released, refused, refused_no_more, are_waited_for: _ } = self;
        let is_said = released.is_empty() && refused.is_empty() && refused_no_more.is_empty();
        ended.is_empty() && moved.is_empty() && sent.is_empty() && received.is_empty() && is_said
    }
}

/// In-flight marker of an entry: Packet Identifier, its round, and whether PUBREC was received.
///
/// Bits 0–15 are the identifier, 16 says that there is one, 17 that PUBREC was received, and 18–31 are the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) id: SentId,
    pub(crate) is_received: bool,
}

impl Mark {
    pub(super) fn of(mark: u32) -> Option<Self> {
        let packet_id = PacketId::new(mark as u16).filter(|_| mark & SENT != 0)?;
        let id = SentId { packet_id, round: (mark >> ROUND_SHIFT) as u16 };
        Some(Self { id, is_received: mark & RECEIVED != 0 })
    }

    fn to_number(self) -> u32 {
        let received = if self.is_received { RECEIVED } else { 0 };
        u32::from(self.id.packet_id.get()) | SENT | received | u32::from(self.id.round) << ROUND_SHIFT
    }
}

impl Durable {
    /// Begins a batch.
    pub(crate) fn append(&self) -> Appending<'_> {
        Appending { log: self.spool.begin(), clock: self.clock.now(), places: Vec::new(), body: None }
    }

    /// Appends messages in transient spill that have their offsets already: see [`StoredQueue::next`].
    /// `room` is booked for all of them.
    pub(crate) fn append_placed(&self, queue: &StoredQueue, deliveries: &[Delivery], room: &Room) {
        // No acknowledgement waits for messages that end with their receiver's connection.
        let begin = || {
            let mut log = self.append();
            log.without_hurry();
            log
        };
        let mut log = begin();
        let mut bytes = 0;
        for delivery in deliveries {
            if bytes > BYTES_AT_ONCE {
                bytes = 0;
                drop(log); // lets waiting publishers append
                log = begin();
            }
            bytes += delivery.template.len();
            if let Some(Location::Transient(sequence)) = delivery.location()
                && !queue.is_over()
            {
                log.put(queue, queue.at(Sequence(sequence)), delivery, room);
                log.close(None);
            }
        }
    }

    /// Blocks until all messages are on disk.
    #[cfg(test)]
    pub(crate) fn wait_for_messages(&self) {
        self.spool.wait(self.all_messages().spool).expect("nothing fails");
    }

    /// Commit point of everything that was appended so far.
    pub(crate) fn all_messages(&self) -> CommitPoint {
        CommitPoint::of_messages(self.spool.begin().end())
    }

    /// Appends delivery updates, and empties the lists. Returns their commit point.
    pub(crate) fn settle(&self, outcomes: &mut Outcomes) -> CommitPoint {
        let mut log = self.spool.begin();
        if !outcomes.are_waited_for {
            log.without_hurry();
        }
        outcomes.are_waited_for = false;
        for (from, to, tag) in outcomes.moved.drain(..) {
            let moved = log.move_message(from, to, Some(&tag));
            debug_assert!(moved.is_ok(), "its tag is not too large");
        }
        for (place, id) in outcomes.sent.drain(..) {
            log.mark(place, Mark { id, is_received: false }.to_number(), Body::Kept);
        }
        for (place, id) in outcomes.received.drain(..) {
            log.mark(place, Mark { id, is_received: true }.to_number(), Body::Done);
        }
        for Place { queue, sequence } in outcomes.ended.take(&self.ended) {
            log.acknowledge(queue, sequence..=sequence);
        }
        for origin in outcomes.released.drain(..) {
            log.release(origin);
        }
        for origin in outcomes.refused_no_more.drain(..) {
            log.release(as_refused(origin));
        }
        for origin in outcomes.refused.drain(..).map(as_refused) {
            if !log.holds(origin) {
                log.hold(origin);
            }
        }
        CommitPoint::of_messages(log.end())
    }

    /// As [`Durable::settle`], for entries that have ended. No acknowledgement waits for that.
    pub(crate) fn end(&self, cause: Ended, places: impl IntoIterator<Item = Place>) -> CommitPoint {
        let mut outcomes = Outcomes::default();
        places.into_iter().for_each(|place| outcomes.end(cause, place));
        if outcomes.is_empty() { CommitPoint::NOW } else { self.settle(&mut outcomes) }
    }

    /// Makes an entry in a member's own queue for a message of its share group, and tells the delivery.
    ///
    /// Returns the entry's position and tag; `None`: the queue has ended.
    pub(crate) fn own_place(&self, own: &StoredQueue, delivery: &mut Delivery) -> Option<(Place, Vec<u8>)> {
        let place = own.next()?;
        delivery.stored = Some(own.kind().locate(place.sequence, delivery.qos).to_stored());
        Some((place, message::tag(delivery)))
    }

    /// Moves an entry behind all others of its queue, and returns its new offset. `None`: it stays, as the queue has
    /// ended or the entry has no message.
    pub(crate) fn move_to_end(&self, queue: &StoredQueue, from: Sequence) -> Option<Sequence> {
        let mut log = self.spool.begin();
        let to = queue.next()?;
        let moved = log.move_message(queue.at(from), to, None);
        moved.is_ok_and(|is_moved| is_moved).then_some(to.sequence)
    }

    /// Moves an entry behind all others of a group's queue, with the present deliveries and due time of its message.
    /// `from`: in that queue, or in the queue of the member that got the message. Returns its offset; `None` if the queue
    /// has ended, or the entry has no message.
    pub(crate) fn take_back(&self, queue: &StoredQueue, from: Place, delivery: &Delivery) -> Option<Sequence> {
        let tag = message::group_tag(delivery, self.clock.now());
        let mut log = self.spool.begin();
        log.without_hurry();
        let to = queue.next()?;
        let moved = log.move_message(from, to, Some(&tag));
        moved.is_ok_and(|is_moved| is_moved).then_some(to.sequence)
    }

    /// Ends a queue: drops its messages, and lets no message enter.
    pub(crate) fn end_queue(&self, cause: Ended, queue: &StoredQueue) {
        self.ended.add(cause, self.spool.queue(queue.id()).map_or(0, |content| content.waiting));
        let mut log = self.spool.begin();
        queue.close();
        log.drop_queue(queue.id());
        log.drop_queue(queue.refused_id());
    }

    /// Whether to take in messages more slowly than they come: the disk is behind, or fails.
    pub(crate) fn is_behind(&self) -> bool {
        self.spool.is_congested()
    }

    /// Books room for a message of this size in bytes; `None`: it has to be refused. See [`Spool::take_room`].
    ///
    /// [`Spool::take_room`]: tenbin_store::spool::Spool::take_room
    #[inline]
    pub(crate) fn take_room(&self, bytes: usize, must: bool) -> Option<Room> {
        self.spool.take_room(bytes as u64, must)
    }

    /// Gives back the room of a message that was appended, or that is not going to be.
    #[inline]
    pub(crate) fn give_room(&self, room: Room) {
        self.spool.give_room(room);
    }

    /// Whether the disk has room for all messages that a receiver's queue may bring there at once.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.take_room(bytes, false).map(|room| self.give_room(room)).is_some()
    }
}

/// Approximate bytes of a message on disk, with one entry and the record that ends it.
pub(crate) fn bytes_of(delivery: &Delivery) -> usize {
    RECORD_BYTES + PLACE_BYTES + delivery.template.len()
}

/// Approximate bytes of a message on disk beside its packet. `PLACE_BYTES`: for each receiver, with its
/// acknowledgement.
pub(crate) const RECORD_BYTES: usize = 64;
pub(crate) const PLACE_BYTES: usize = 120;

/// Bytes of messages that are appended before other threads may append.
const BYTES_AT_ONCE: usize = 256 * 1024;
const SENT: u32 = 1 << 16;
const RECEIVED: u32 = 1 << 17;
const ROUND_SHIFT: u32 = 18;
const _: () = assert!(SentId::ROUNDS as u64 == 1 << (u32::BITS - ROUND_SHIFT));
