//! Messages that are kept on disk: what is appended to the spool for them.

use tenbin_codec::{PacketId, PublishTemplate};
use tenbin_session::{Delivery, SentId};
use tenbin_store::spool::{Batch, Body, Origin, Place, QueueId, Room, Sequence};

use super::message::{self, Head};
use super::message_expiry::MessageClock;
use super::queue::{PublisherId, Stored, StoredQueue, as_refused};
use super::{Durable, SafeAt};

/// Messages that are being appended. While it is there nobody else appends, nor reads.
#[derive(Debug)]
pub(crate) struct Appending<'a> {
    log: Batch<'a>,
    clock: MessageClock,
    /// Of the message that is being put together: where it goes, with a tag.
    places: Vec<(Place, Vec<u8>)>,
    /// What is the same for all of them, and the room that is booked for it.
    body: Option<(Head, PublishTemplate, &'a Room)>,
}

impl<'a> Appending<'a> {
    /// A place of the message, which is the same for all of them until [`Appending::close`]. The delivery knows of it then.
    /// `room` is booked for the message.
    pub(crate) fn place(&mut self, queue: &StoredQueue, delivery: &mut Delivery, room: &'a Room) {
        let Some((place, stored)) = queue.next() else { return };
        delivery.stored = Some(stored);
        let mut tag = Vec::new();
        match Stored::of(stored) {
            Stored::InOwn(_) => message::put_tag(delivery, &mut tag),
            Stored::InGroup(_) => message::put_group_tag(delivery, &mut tag),
        }
        self.places.push((place, tag));
        if self.body.is_none() {
            self.body = Some((message::head(delivery, self.clock), delivery.template.clone(), room));
        }
    }

    /// As [`Appending::place`], where the delivery says already that it is.
    fn place_again(&mut self, queue: &StoredQueue, delivery: &Delivery, sequence: Sequence, room: &'a Room) {
        if queue.is_over() {
            return;
        }
        let mut tag = Vec::new();
        message::put_tag(delivery, &mut tag);
        self.places.push((place(queue.id(), sequence), tag));
        self.body = Some((message::head(delivery, self.clock), delivery.template.clone(), room));
    }

    /// The message has all its places.
    pub(crate) fn close(&mut self, origin: Option<Origin>) {
        if let Some(origin) = origin {
            self.log.release(as_refused(origin)); // the identifier is this message's now
        }
        let Some((head, template, room)) = self.body.take() else {
            return origin.into_iter().for_each(|origin| self.log.hold(origin));
        };
        let [first, second] = template.to_store().1;
        let appended = self.log.message(room, &self.places, origin, &[head.as_bytes(), first, second]);
        debug_assert!(appended.is_ok(), "no tag and no message of MQTT is too large");
        self.places.clear();
    }

    /// Nobody waits for it to be safe.
    pub(crate) fn without_hurry(&mut self) {
        self.log.without_hurry();
    }

    /// When all of it is safe.
    pub(crate) fn safe_at(&self) -> SafeAt {
        SafeAt::of_messages(self.log.end())
    }
}

/// What has become of messages of one connection, to be appended together.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// These are done with.
    pub(crate) done: Vec<Place>,
    /// These have left their share group's queue for good, to a place of the member's own.
    pub(crate) moved: Vec<(Place, Place, Vec<u8>)>,
    /// These have been sent by this Packet Identifier.
    pub(crate) sent: Vec<(Place, SentId)>,
    /// Of these PUBREC has come.
    pub(crate) received: Vec<(Place, SentId)>,
    /// PUBREL has come of these.
    pub(crate) released: Vec<Origin>,
    /// These were refused, and some of their receivers have got them.
    pub(crate) refused: Vec<PublisherId>,
    /// The publisher knows of these refusals.
    pub(crate) refused_no_more: Vec<PublisherId>,
    /// Somebody waits until they are safe.
    pub(crate) are_waited_for: bool,
}

impl Outcomes {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { done, moved, sent, received, released, refused, refused_no_more, are_waited_for: _ } = self;
        let is_said = released.is_empty() && refused.is_empty() && refused_no_more.is_empty();
        done.is_empty() && moved.is_empty() && sent.is_empty() && received.is_empty() && is_said
    }
}

/// The mark of a place in the spool: Packet Identifier, its round, and how far the message has come.
///
/// Bits 0–15 are the identifier, 16 says that it is one, 17 that PUBREC has come, and 18–31 are the round.
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
    /// Begins to append messages.
    pub(crate) fn append(&self) -> Appending<'_> {
        Appending { log: self.spool.begin(), clock: self.clock.now(), places: Vec::new(), body: None }
    }

    /// These messages of a queue are done with; nobody waits for that.
    pub(crate) fn settle_places(&self, queue: &StoredQueue, sequences: impl IntoIterator<Item = Sequence>) {
        let mut outcomes = Outcomes::default();
        outcomes.done.extend(sequences.into_iter().map(|sequence| place(queue.id(), sequence)));
        if !outcomes.is_empty() {
            self.settle(&mut outcomes);
        }
    }

    /// Appends messages that have got their places already: see [`StoredQueue::next_sequence`].
    /// `room` is booked for all of them.
    pub(crate) fn append_placed(&self, queue: &StoredQueue, deliveries: &[Delivery], room: &Room) {
        // Nobody waits for what goes with its receiver's connection.
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
                drop(log); // publishers wait for it
                log = begin();
            }
            bytes += delivery.template.len();
            if let Some(Stored::InOwn(sequence)) = delivery.stored.map(Stored::of) {
                log.place_again(queue, delivery, sequence, room);
                log.close(None);
            }
        }
    }

    /// Until all messages are on disk.
    #[cfg(test)]
    pub(crate) fn wait_for_messages(&self) {
        self.spool.wait(self.all_messages().spool).expect("nothing fails");
    }

    /// When everything is safe that has been appended until now.
    pub(crate) fn all_messages(&self) -> SafeAt {
        SafeAt::of_messages(self.spool.begin().end())
    }

    /// Keeps what has become of messages, and empties the lists; when that is safe.
    pub(crate) fn settle(&self, outcomes: &mut Outcomes) -> SafeAt {
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
        for Place { queue, sequence } in outcomes.done.drain(..) {
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
        SafeAt::of_messages(log.end())
    }

    /// As [`Durable::settle`], of messages that are done with.
    pub(crate) fn done(&self, places: impl IntoIterator<Item = Place>) -> SafeAt {
        let mut outcomes = Outcomes { done: places.into_iter().collect(), ..Outcomes::default() };
        if outcomes.is_empty() { SafeAt::NOW } else { self.settle(&mut outcomes) }
    }

    /// A message of a share group goes over to the queue of the member that it is sent to: where, what the delivery says of
    /// it, and its tag.
    pub(crate) fn own_place(&self, own: &StoredQueue, delivery: &mut Delivery) -> Option<(Place, Vec<u8>)> {
        // Not under the log's lock: others may have come in behind it before it is there, which the spool minds.
        let (place, stored) = own.next()?;
        delivery.stored = Some(stored);
        let mut tag = Vec::new();
        message::put_tag(delivery, &mut tag);
        Some((place, tag))
    }

    /// What waits in a queue is not wanted any more, and nothing comes into it.
    pub(crate) fn end_queue(&self, queue: &StoredQueue) {
        let mut log = self.spool.begin();
        queue.end();
        log.drop_queue(queue.id());
        log.drop_queue(queue.refused_id());
    }

    /// Whether messages should not be taken in as fast as they come: the disk is behind, or fails.
    pub(crate) fn is_behind(&self) -> bool {
        self.spool.is_congested()
    }

    /// Books room for a message of so many bytes; `None`: it has to be refused. See [`Spool::take_room`].
    ///
    /// [`Spool::take_room`]: tenbin_store::spool::Spool::take_room
    #[inline]
    pub(crate) fn take_room(&self, bytes: usize, must: bool) -> Option<Room> {
        self.spool.take_room(bytes as u64, must)
    }

    /// The message of this booking is appended, or is not going to be.
    #[inline]
    pub(crate) fn give_room(&self, room: Room) {
        self.spool.give_room(room);
    }

    /// Whether the disk has room for all that one receiver's queue may bring there at once.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.take_room(bytes, false).map(|room| self.give_room(room)).is_some()
    }
}

/// Bytes that a message takes on disk, about, with one place and what ends it.
pub(crate) fn bytes_of(delivery: &Delivery) -> usize {
    RECORD_BYTES + PLACE_BYTES + delivery.template.len()
}

/// Of a message on disk, about: beside its packet, and for each of its receivers, whose acknowledgement needs room too.
pub(crate) const RECORD_BYTES: usize = 64;
pub(crate) const PLACE_BYTES: usize = 120;

/// A place of a queue.
pub(crate) fn place(queue: QueueId, sequence: Sequence) -> Place {
    Place { queue, sequence }
}

/// Bytes of messages that are appended while others wait.
const BYTES_AT_ONCE: usize = 256 * 1024;
const SENT: u32 = 1 << 16;
const RECEIVED: u32 = 1 << 17;
const ROUND_SHIFT: u32 = 18;
const _: () = assert!(SentId::ROUNDS as u64 == 1 << (u32::BITS - ROUND_SHIFT));
