use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use tenbin_codec::PlainPublish;
use tenbin_session::Delivery;

use super::SharedGroup;
use crate::durable::{Durable, PublisherId, Room, SafeAt, StoredQueue};
use crate::outbox::{Batch, Outbox, Pressure, Wire};

/// The deliveries of one batch, grouped by receiver, so that each receiver is locked and woken once.
///
/// What is kept on disk is appended to the log before it is handed over, each message once with all its places: whatever
/// becomes of the process, all of its receivers have it or none.
#[derive(Debug, Default)]
pub(super) struct Fanout {
    /// The first `used` belong to this batch; the others keep their memory for the next.
    parts: Vec<Part>,
    used: usize,
    /// The place in `parts` behind the one that was found last.
    next: usize,
    /// Address of the outbox to place in `parts`; the part keeps the outbox alive.
    places: FxHashMap<usize, usize>,
    waiting: usize,
    /// Departures of members of keyed groups as they were before messages of these were added.
    departures: Vec<(NonZeroU64, u64)>,
    /// Some receiver has lagged since the last [`Fanout::take_pressure`].
    pressure: bool,
    /// What members of share groups could not take, and their numbers.
    returned: Vec<(u64, Delivery)>,
    /// What waits with share groups, behind all that goes to their members.
    waiting_with_groups: Vec<(Arc<SharedGroup>, Delivery)>,
    /// The numbers of these groups.
    groups: FxHashSet<NonZeroU64>,
    /// The message that is being published, by a number; never 0.
    message: u32,
    /// Messages that a receiver had no room for since the last [`Fanout::take_refused`]: one entry for each such receiver.
    refused: Vec<u32>,
    /// What is to be appended to the log, message by message.
    kept: Vec<Kept>,
    /// Room on disk that is booked for `kept`, and whether the message that is being published has room there.
    booked: Option<Room>,
    room: Option<bool>,
    /// Something is booked for the message that is being published: else it is not kept.
    is_booked: bool,
    /// When all is safe that was appended since the last [`Fanout::take_safe_at`].
    safe_at: SafeAt,
}

/// One thing that is kept on disk of a message.
#[derive(Debug)]
struct Kept {
    message: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    /// The delivery at this place of a receiver's batch.
    Delivery { part: usize, place: usize, queue: Arc<StoredQueue> },
    /// One that waits with its group.
    Waiting { place: usize, queue: Arc<StoredQueue> },
    /// The publisher's Packet Identifier is in use.
    Held(PublisherId),
}

/// What one receiver gets.
#[derive(Debug)]
struct Part {
    /// The receiver's.
    number: u64,
    /// The receiver's connection when it was first chosen.
    connection: u32,
    outbox: Option<Arc<Outbox>>,
    batch: Batch,
}

impl Fanout {
    /// Another message is going to be published; its number, which no other message of the batch has.
    pub(super) fn begin_message(&mut self) -> u32 {
        self.message = self.message.checked_add(1).unwrap_or(1);
        (self.room, self.is_booked) = (None, false);
        self.message
    }

    /// Whether the disk has room for the message that is being published, for all of its receivers or none. `must`: it is
    /// not refused on a disk that is merely short.
    pub(super) fn take_room(&mut self, durable: Option<&Durable>, bytes: usize, must: bool) -> bool {
        let Some(durable) = durable else { return true };
        if let Some(has_room) = self.room {
            return has_room;
        }
        let room = durable.take_room(bytes, must);
        let has_room = self.book(room);
        self.room = Some(has_room);
        has_room
    }

    /// Room for the message that is being published, if there is any; whether there is.
    pub(super) fn book(&mut self, room: Option<Room>) -> bool {
        let Some(room) = room else { return false };
        self.is_booked = true;
        match &mut self.booked {
            Some(booked) => booked.join(room),
            None => self.booked = Some(room),
        }
        true
    }

    /// Whether something is booked for the message that is being published.
    pub(super) fn is_booked(&self) -> bool {
        self.is_booked
    }

    /// Whether so much is collected that it has to be handed over before another message is published.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= BATCH_MAX
    }

    /// `kept`: where the message is kept for this receiver, if it is.
    #[inline]
    pub(super) fn add(
        &mut self,
        number: u64,
        outbox: &Arc<Outbox>,
        delivery: Delivery,
        kept: Option<Arc<StoredQueue>>,
        now: Instant,
    ) {
        match kept.filter(|_| self.is_booked) {
            None => {
                self.batch_for(number, outbox).add(delivery);
                self.added(now);
            }
            Some(queue) => self.add_kept(number, outbox, delivery, queue),
        }
    }

    #[inline(never)]
    fn add_kept(&mut self, number: u64, outbox: &Arc<Outbox>, delivery: Delivery, queue: Arc<StoredQueue>) {
        let batch = self.batch_for(number, outbox);
        let place = batch.deliveries().len();
        batch.add(delivery);
        let part = self.next - 1;
        self.keep(What::Delivery { part, place, queue });
        // Not handed over here: the places of one message are appended together.
        self.waiting += 1;
    }

    /// A message waits with its group: behind those that are here for the group's members.
    pub(super) fn add_waiting(&mut self, group: &Arc<SharedGroup>, delivery: Delivery) {
        if let Some(queue) = group.stored().filter(|_| self.is_booked) {
            self.keep(What::Waiting { place: self.waiting_with_groups.len(), queue });
        }
        self.groups.insert(group.number());
        self.waiting_with_groups.push((Arc::clone(group), delivery));
        self.waiting += 1;
    }

    /// Whether a message waits here for this group.
    #[inline]
    pub(super) fn waits_with(&self, group: &SharedGroup) -> bool {
        !self.waiting_with_groups.is_empty() && self.groups.contains(&group.number())
    }

    /// The publisher's Packet Identifier is kept with the message.
    pub(super) fn hold(&mut self, publisher: PublisherId) {
        self.keep(What::Held(publisher));
    }

    /// It is not after all: this message is refused.
    pub(super) fn release(&mut self) {
        let message = self.message;
        self.kept.retain(|kept| kept.message != message || !matches!(kept.what, What::Held(_)));
    }

    fn keep(&mut self, what: What) {
        self.kept.push(Kept { message: self.message, what });
    }

    /// A message as the packet that the receiver gets, for a share group or none.
    #[inline]
    pub(super) fn add_plain(
        &mut self,
        (number, outbox, wire): (u64, &Arc<Outbox>, Wire),
        (share, share_key): (Option<NonZeroU64>, Option<NonZeroU64>),
        message: &PlainPublish<'_>,
        now: Instant,
    ) {
        self.batch_for(number, outbox).add_plain(wire, share, share_key, message);
        self.added(now);
    }

    #[inline]
    fn batch_for(&mut self, number: u64, outbox: &Arc<Outbox>) -> &mut Batch {
        // Whether to all or in turn: mostly the receivers come in the same order again.
        let next = if self.next < self.used { self.next } else { 0 };
        let is_next = |part: &Part| part.outbox.as_ref().is_some_and(|other| Arc::ptr_eq(other, outbox));
        let place = match self.parts.get(next) {
            Some(part) if is_next(part) => next,
            _ => self.find(number, outbox),
        };
        self.next = place + 1;
        &mut self.parts[place].batch
    }

    fn find(&mut self, number: u64, outbox: &Arc<Outbox>) -> usize {
        let place = *self.places.entry(Arc::as_ptr(outbox).addr()).or_insert(self.used);
        if place == self.used {
            let (connection, outbox) = (outbox.connection(), Some(Arc::clone(outbox)));
            match self.parts.get_mut(place) {
                Some(part) => (part.number, part.connection, part.outbox) = (number, connection, outbox),
                None => self.parts.push(Part { number, connection, outbox, batch: Batch::default() }),
            }
            self.used += 1;
        }
        place
    }

    #[inline]
    fn added(&mut self, now: Instant) {
        self.waiting += 1;
        if self.waiting >= BATCH_MAX && self.kept.is_empty() && self.waiting_with_groups.is_empty() {
            self.flush(None, now);
        }
    }

    /// Hands everything over, but for what waits with groups: see [`Fanout::take_waiting`].
    pub(super) fn flush(&mut self, durable: Option<&Durable>, now: Instant) {
        if !self.kept.is_empty() {
            self.append(durable);
        }
        if let Some(durable) = durable
            && let Some(room) = self.booked.take()
        {
            durable.give_room(room);
        }
        let mut returned = Vec::new();
        for Part { number, connection, outbox, batch } in &mut self.parts[..self.used] {
            if let Some(outbox) = outbox.take() {
                self.pressure |= outbox.push_batch(batch, *connection, &mut returned, now) == Pressure::Lags;
                batch.shrink(KEPT_BYTES / self.used);
                for delivery in returned.drain(..) {
                    if delivery.share.is_some() {
                        self.returned.push((*number, delivery));
                    } else {
                        outbox.refuse(*number);
                        self.refused.push(delivery.message);
                    }
                }
            }
        }
        self.parts.truncate(KEPT);
        self.used = 0;
        self.next = 0;
        self.places.clear();
        self.waiting = 0;
        self.departures.clear();
    }

    /// Appends what is kept on disk, in the order in which it was published.
    #[inline(never)]
    fn append(&mut self, durable: Option<&Durable>) {
        let Some(durable) = durable else { return };
        let mut log = durable.append();
        // What goes with its receiver's connection is safe as soon as it is somewhere.
        let mut has_to_last = false;
        for message in self.kept.chunk_by(|one, other| one.message == other.message) {
            let mut held = None;
            for Kept { what, .. } in message {
                match what {
                    What::Delivery { part, place, queue } => {
                        has_to_last |= !queue.is_temporary();
                        let delivery = self.parts[*part].batch.singles().get_mut(*place);
                        if let Some((delivery, room)) = delivery.zip(self.booked.as_ref()) {
                            log.place(queue, delivery, room);
                        }
                    }
                    What::Waiting { place, queue } => {
                        has_to_last = true;
                        let waiting = self.waiting_with_groups.get_mut(*place);
                        if let Some(((_, delivery), room)) = waiting.zip(self.booked.as_ref()) {
                            log.place(queue, delivery, room);
                        }
                    }
                    What::Held(publisher) => {
                        has_to_last = true;
                        held = Some(*publisher);
                    }
                }
            }
            log.close(held);
        }
        // Where the disk is behind, whoever publishes waits for it all the same: else nothing would hold it up.
        has_to_last |= durable.is_behind();
        let safe_at = if has_to_last { log.safe_at() } else { SafeAt::NOW };
        if !has_to_last {
            log.without_hurry();
        }
        drop(log);
        durable.before_receivers(safe_at);
        self.safe_at = self.safe_at.and(safe_at);
        self.kept.clear();
        self.kept.shrink_to(BATCH_MAX);
    }

    /// A message of this group was added, whose member was picked after so many departures.
    pub(super) fn picked_at(&mut self, group: NonZeroU64, departures: u64) {
        if !self.departures.iter().any(|&(other, _)| other == group) {
            self.departures.push((group, departures));
        }
    }

    /// Whether a member of this group has departed since messages of it were added.
    pub(super) fn has_missed(&self, group: NonZeroU64, departures: u64) -> bool {
        self.departures.iter().any(|&(other, since)| other == group && since != departures)
    }

    /// Whether anything is there after [`Fanout::flush`].
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        !self.returned.is_empty() || !self.waiting_with_groups.is_empty()
    }

    /// Whether anything has to go to other members of its share groups.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// What has to go to other members of its share groups, and the numbers of those that had been chosen.
    pub(super) fn take_returned(&mut self) -> Vec<(u64, Delivery)> {
        std::mem::take(&mut self.returned)
    }

    /// What waits with groups, in order; goes there behind what [`Fanout::take_returned`] says.
    pub(super) fn take_waiting(&mut self) -> Vec<(Arc<SharedGroup>, Delivery)> {
        self.groups.clear();
        self.groups.shrink_to(BATCH_MAX);
        std::mem::take(&mut self.waiting_with_groups)
    }

    /// A receiver has no room for the message that is being published.
    pub(super) fn refuse_this(&mut self) {
        self.refused.push(self.message);
    }

    /// A share group had no room for this message.
    pub(super) fn refuse(&mut self, message: u32) {
        self.refused.push(message);
    }

    /// The messages that found no room: one entry for each receiver that had none.
    pub(super) fn take_refused(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.refused)
    }

    /// Something was appended that is not collected here.
    pub(super) fn append_until(&mut self, safe_at: SafeAt) {
        self.safe_at = self.safe_at.and(safe_at);
    }

    /// When all that was appended is safe.
    pub(super) fn take_safe_at(&mut self) -> SafeAt {
        std::mem::take(&mut self.safe_at)
    }

    #[cfg(test)]
    pub(super) fn collected(&self) -> usize {
        self.waiting.max(self.waiting_with_groups.len())
    }

    /// Whether a receiver lagged, asked once per batch.
    pub(super) fn take_pressure(&mut self) -> bool {
        std::mem::take(&mut self.pressure)
    }
}

/// Deliveries that are held back at most, and those of one message beyond.
const BATCH_MAX: usize = 2048;
/// Bytes that all batches together keep place for.
const KEPT_BYTES: usize = 1 << 20;
/// Receivers' batches whose memory is kept.
const KEPT: usize = 64;
