use std::cell::Cell;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use tenbin_balancer::Burst;
use tenbin_codec::PlainPublish;
use tenbin_session::Delivery;

use super::SharedGroup;
use super::group_backlog::HoldingGroup;
use crate::durable::{CommitPoint, Durable, PublisherId, Room, StoredQueue};
use crate::outbox::{Batch, Outbox, Pressure, Wire};

thread_local! {
    /// Memory for the next batch of this thread. One buffer per thread, since most connections are idle.
    static IDLE: Cell<Option<Box<Fanout>>> = const { Cell::new(None) };
}

/// Collects the deliveries of one batch between [`Publisher::publish`](super::Publisher::publish) and
/// [`Publisher::flush`](super::Publisher::flush).
///
/// Its memory belongs to the thread, so it is not `Send`: a task that awaited before the flush would not compile.
#[derive(Debug)]
pub(crate) struct Collector {
    fanout: Option<Box<Fanout>>,
    is_not_send: PhantomData<*const ()>,
}

impl Collector {
    /// Begins a batch.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { fanout: None, is_not_send: PhantomData }
    }

    #[inline]
    pub(super) fn fanout(&mut self) -> &mut Fanout {
        self.fanout.get_or_insert_with(|| IDLE.take().unwrap_or_default())
    }

    /// Returns the deliveries of a batch that has begun to collect.
    #[inline]
    pub(super) fn begun(&mut self) -> Option<&mut Fanout> {
        self.fanout.as_deref_mut()
    }

    /// Returns the number of deliveries that were collected and not handed over.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.fanout.as_deref().map_or(0, Fanout::collected)
    }
}

impl Drop for Collector {
    #[inline]
    fn drop(&mut self) {
        // The next publisher does not hand over the rest of a panicked one.
        if let Some(fanout) = self.fanout.take().filter(|_| !std::thread::panicking()) {
            let _ = IDLE.try_with(|idle| idle.set(Some(fanout)));
        }
    }
}

/// The deliveries of one batch, grouped by receiver, so that each receiver is locked and woken once.
///
/// Stored messages are appended to the log before the redelivery, each once with the entries of all its receivers. So
/// either all receivers have a message after a crash, or none.
#[derive(Debug, Default)]
pub(super) struct Fanout {
    /// The first `used` belong to this batch; the others keep their memory for the next one.
    parts: Vec<Part>,
    used: usize,
    /// Index in `parts` behind the part found last.
    next: usize,
    /// Index in `parts` by address of the outbox, which the part keeps alive.
    places: FxHashMap<usize, usize>,
    waiting: usize,
    /// Comparisons of members for the batch's messages.
    burst: Burst,
    /// Membership epochs of keyed groups from before messages of theirs were added.
    membership_epoch: Vec<(NonZeroU64, u64)>,
    /// A receiver has lagged since the last [`Fanout::take_pressure`].
    pressure: bool,
    /// Deliveries that members of share groups returned, with the numbers of these members.
    returned: Vec<(u64, Delivery)>,
    /// Messages for group backlogs. They go behind all deliveries to the groups' members.
    waiting_with_groups: Vec<(Arc<SharedGroup>, Delivery)>,
    /// Numbers of the groups in `waiting_with_groups`.
    groups: FxHashSet<NonZeroU64>,
    /// Number of the message that is being published; never 0.
    message: u32,
    /// Messages that a receiver had no room for since the last [`Fanout::take_refused`]: one entry for each such
    /// receiver.
    refused: Vec<u32>,
    /// Groups that hold the publisher's acknowledgements since the last [`Fanout::take_holding`].
    holding: Vec<HoldingGroup>,
    /// Entries to append to the log, message by message.
    kept: Vec<Kept>,
    /// Disk space booked for `kept`, and whether it has room for the current message; `None` = not tried yet.
    booked: Option<Room>,
    room: Option<bool>,
    /// Space is booked for the message that is being published; otherwise it is not stored.
    is_booked: bool,
    /// Commit point of everything appended since the last [`Fanout::take_safe_at`].
    commit_point: CommitPoint,
}

/// One record of a message in the log.
#[derive(Debug)]
struct Kept {
    message: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    /// The delivery at index `place` of a receiver's batch.
    Delivery { part: usize, place: usize, queue: Arc<StoredQueue> },
    /// The message at index `place` of `waiting_with_groups`.
    Waiting { place: usize, queue: Arc<StoredQueue> },
    /// The publisher's Packet Identifier is in use.
    Held(PublisherId),
}

/// The deliveries to one receiver.
#[derive(Debug)]
struct Part {
    /// Session number of the receiver.
    number: u64,
    /// The receiver's connection when it was first chosen.
    connection: u32,
    outbox: Option<Arc<Outbox>>,
    batch: Batch,
}

impl Fanout {
    /// Begins a message, and returns its number, which is unique in the batch.
    pub(super) fn begin_message(&mut self) -> u32 {
        self.message = if self.message + 1 < Delivery::WITHDRAWN { self.message + 1 } else { 1 };
        (self.room, self.is_booked) = (None, false);
        self.message
    }

    /// Returns whether the disk has room for the message that is being published, once for all receivers. With `must`,
    /// a disk that is merely short of space does not refuse it.
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

    /// Adds booked room for the message that is being published; returns whether there was any.
    pub(super) fn book(&mut self, room: Option<Room>) -> bool {
        let Some(room) = room else { return false };
        self.is_booked = true;
        match &mut self.booked {
            Some(booked) => booked.join(room),
            None => self.booked = Some(room),
        }
        true
    }

    /// Returns whether space is booked for the message that is being published.
    pub(super) fn is_booked(&self) -> bool {
        self.is_booked
    }

    /// Comparisons of members for the batch's messages.
    pub(super) fn burst(&mut self) -> &mut Burst {
        &mut self.burst
    }

    /// Returns whether the batch must be handed over before the next message.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= BATCH_MAX
    }

    /// Adds a delivery. `kept`: the receiver's stored queue, if the message goes there.
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
        // No redelivery here: the entries of one message are appended together.
        self.waiting += 1;
    }

    /// Adds a message for a group's backlog, behind the deliveries in this batch to the group's members.
    pub(super) fn add_waiting(&mut self, group: &Arc<SharedGroup>, delivery: Delivery) {
        if let Some(queue) = group.stored().filter(|_| self.is_booked) {
            self.keep(What::Waiting { place: self.waiting_with_groups.len(), queue });
        }
        self.groups.insert(group.number());
        self.waiting_with_groups.push((Arc::clone(group), delivery));
        self.waiting += 1;
    }

    /// Returns whether the batch has a message for this group's backlog.
    #[inline]
    pub(super) fn waits_with(&self, group: &SharedGroup) -> bool {
        !self.waiting_with_groups.is_empty() && self.groups.contains(&group.number())
    }

    /// Stores the publisher's Packet Identifier with the message.
    pub(super) fn hold(&mut self, publisher: PublisherId) {
        self.keep(What::Held(publisher));
    }

    /// Undoes [`Fanout::hold`] for the current message, which is refused.
    pub(super) fn release(&mut self) {
        let message = self.message;
        self.kept.retain(|kept| kept.message != message || !matches!(kept.what, What::Held(_)));
    }

    fn keep(&mut self, what: What) {
        self.kept.push(Kept { message: self.message, what });
    }

    /// Adds a message in the form of the packet that the receiver gets. `share`: its share group, if any.
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
        // Receivers mostly come in the same order again, whether each message goes to all or to one in rotation.
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

    /// Hands everything over, except messages for group backlogs: see [`Fanout::take_waiting`].
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
        self.membership_epoch.clear();
    }

    /// Appends the stored messages to the log, in the order of publication.
    #[inline(never)]
    fn append(&mut self, durable: Option<&Durable>) {
        let Some(durable) = durable else { return };
        let mut log = durable.append();
        // A queue that ends with its receiver's connection needs no commit.
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
        // If the disk is behind, publishers must wait for a commit in any case: nothing else would slow them down.
        has_to_last |= durable.is_behind();
        let commit_point = if has_to_last { log.commit_point() } else { CommitPoint::NOW };
        if !has_to_last {
            log.without_hurry();
        }
        drop(log);
        durable.before_receivers(commit_point);
        self.commit_point = self.commit_point.and(commit_point);
        self.kept.clear();
        self.kept.shrink_to(BATCH_MAX);
    }

    /// Records a group's membership epoch from before one of its members was picked.
    pub(super) fn picked_at(&mut self, group: NonZeroU64, membership_epoch: u64) {
        if !self.membership_epoch.iter().any(|&(other, _)| other == group) {
            self.membership_epoch.push((group, membership_epoch));
        }
    }

    /// Returns whether a member of this group has departed since messages of the group were added.
    pub(super) fn has_missed(&self, group: NonZeroU64, membership_epoch: u64) -> bool {
        self.membership_epoch.iter().any(|&(other, since)| other == group && since != membership_epoch)
    }

    /// Returns whether deliveries are left after [`Fanout::flush`].
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        !self.returned.is_empty() || !self.waiting_with_groups.is_empty()
    }

    /// Returns whether any deliveries must go to other members of their share groups.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Takes the deliveries that must go to other members, each with the number of the member chosen before.
    pub(super) fn take_returned(&mut self) -> Vec<(u64, Delivery)> {
        std::mem::take(&mut self.returned)
    }

    /// Takes the messages for group backlogs, in order. They belong behind those of [`Fanout::take_returned`].
    pub(super) fn take_waiting(&mut self) -> Vec<(Arc<SharedGroup>, Delivery)> {
        self.groups.clear();
        self.groups.shrink_to(BATCH_MAX);
        std::mem::take(&mut self.waiting_with_groups)
    }

    /// Records that a receiver has no room for the message that is being published.
    pub(super) fn refuse_this(&mut self) {
        self.refused.push(self.message);
    }

    /// Records that a share group had no room for this message.
    pub(super) fn refuse(&mut self, message: u32) {
        self.refused.push(message);
    }

    /// Records that these groups hold the publisher's acknowledgements.
    pub(super) fn hold_by(&mut self, holding: Vec<HoldingGroup>) {
        self.holding.extend(holding);
    }

    /// Takes the groups that hold the publisher's acknowledgements, if there are any. A group may occur more than once.
    pub(super) fn take_holding(&mut self) -> Option<Box<[HoldingGroup]>> {
        (!self.holding.is_empty()).then(|| std::mem::take(&mut self.holding).into_boxed_slice())
    }

    /// Takes the numbers of refused messages: one entry for each receiver without room.
    pub(super) fn take_refused(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.refused)
    }

    /// Includes the commit point of messages that were appended elsewhere.
    pub(super) fn append_until(&mut self, commit_point: CommitPoint) {
        self.commit_point = self.commit_point.and(commit_point);
    }

    /// Takes the commit point of everything appended.
    pub(super) fn take_safe_at(&mut self) -> CommitPoint {
        std::mem::take(&mut self.commit_point)
    }

    #[cfg(test)]
    fn collected(&self) -> usize {
        self.waiting.max(self.waiting_with_groups.len())
    }

    /// Takes whether a receiver lagged; called once per batch.
    pub(super) fn take_pressure(&mut self) -> bool {
        std::mem::take(&mut self.pressure)
    }
}

/// Maximum number of deliveries in a batch, not counting the deliveries of its last message.
const BATCH_MAX: usize = 2048;
/// Bytes of buffers that all parts together keep after a redelivery.
const KEPT_BYTES: usize = 1 << 20;
/// Maximum number of parts whose memory is kept.
const KEPT: usize = 64;
