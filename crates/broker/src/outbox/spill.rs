//! Transient spill: messages that are on disk only while they are not in memory, for slow receivers and full queues.
//!
//! | | QoS 1 and 2 | QoS 0 with [`WhenFull::Spool`] |
//! |---|---|---|
//! | the session outlives its connection | always on disk | spilled transiently |
//! | it does not | spilled transiently | spilled transiently |
//!
//! Spilled messages must come out in the order in which each publisher sent them, and the on-disk backlog is read by
//! offset. So of two messages of one publisher in the backlog, the earlier one needs the lower offset. Most messages
//! have an offset before they reach the outbox: their publisher's task saw that the receiver spills. It appended them
//! to the log for all of their receivers. Others have none: they were collected earlier, or were in memory when the
//! receiver became slow. These rules keep the order:
//!
//! 1. While there is a backlog, no message that may spill goes to memory.
//! 2. A message that arrives without an offset gets one on arrival, a message that leaves memory gets one as it leaves.
//!    Each is new and higher than all offsets assigned before, including those of messages that have not arrived yet.
//!    If a backlog begins for want of room in memory, offsets below it are reserved for the messages in memory.
//! 3. The offset that a message brings is valid only above the offsets that rule 2 assigned when memory was last
//!    emptied, and above those that it assigned in the same batch. Otherwise the message counts as one without offset.
//! 4. A message that goes to memory gives up its offset. So no message in memory has a higher offset than a later
//!    message.
//!
//! Why this suffices: a message's offset is above those that earlier messages of its publisher got before it, because
//! offsets only rise. If an earlier message gets its offset later, rule 2 assigns it when memory is emptied, or in the
//! same batch, since a publisher's batches arrive one after the other. Then rule 3 gives the later message a new offset
//! too. Memory is emptied in two cases. Without a backlog, the spill starts anew ([`StoredQueue::begin_passing`]),
//! which voids all offsets assigned before. With a backlog, the messages get the offsets reserved below it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::push::Push;
use super::{Outbox, State, WhenFull, tail};
use crate::durable::{Durable, Room, Stored, StoredQueue, Tail, bytes_of};

/// Disk operations of a batch, executed after the outbox is unlocked.
#[derive(Debug, Default)]
pub(super) struct Spilled {
    /// The queue on disk; the outer `None` means not looked up yet.
    queue: Option<Option<Arc<StoredQueue>>>,
    /// Messages with a new offset that are to be written.
    placed: Vec<Delivery>,
    /// Disk space booked for `placed`.
    room: Option<Room>,
    /// Entries to be completed: their messages are in memory or dropped.
    left: Vec<Sequence>,
}

impl Outbox {
    /// The client's current queue on disk, of any kind.
    pub(super) fn disk(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full().filter(|queue| !queue.is_over())
    }

    /// The queue on disk to which a QoS 1 or 2 message is appended before it is pushed, if any.
    #[inline]
    pub(crate) fn collects_in(&self) -> Option<Arc<StoredQueue>> {
        let queue = self.stored.load();
        let queue = queue.as_ref().filter(|queue| !queue.is_over())?;
        (!queue.is_temporary() || queue.is_passing()).then(|| Arc::clone(queue))
    }

    /// Like [`Outbox::collects_in`] for a QoS 0 message; to be asked if [`Outbox::keeps_unacknowledged`].
    pub(crate) fn collects_unacknowledged_in(&self) -> Option<Arc<StoredQueue>> {
        self.disk().filter(|queue| queue.is_passing())
    }

    /// Whether the disk is congested.
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.common.durable.as_ref().is_some_and(|durable| durable.is_behind())
    }

    /// Books `bytes` of disk space, unless the disk is full or congested.
    pub(crate) fn take_disk_room(&self, bytes: usize) -> Option<Room> {
        let durable = self.common.durable.as_ref().filter(|durable| !durable.is_behind())?;
        durable.take_room(bytes, false)
    }

    /// Whether this kind of message spills transiently, i.e. is on disk only while not in memory.
    pub(super) fn passes(&self, queue: &StoredQueue, delivery: &Delivery) -> bool {
        match delivery.qos.is_acknowledged() {
            true => queue.is_temporary(),
            false => self.common.limits.when_full == WhenFull::Spool,
        }
    }

    /// Begins or ends the transient spill as the state demands; returns whether QoS 0 messages spill.
    pub(super) fn tell_passing(&self, state: &State) -> bool {
        let is_behind = state.attached && (state.behaviour.is_spooling() || State::has_tail(state.tail.as_deref()));
        let queue = self.stored.load();
        let Some(queue) = queue.as_ref() else { return false };
        let spools_all = self.common.limits.when_full == WhenFull::Spool;
        let passes = is_behind && !queue.is_over() && (queue.is_temporary() || spools_all);
        if passes != queue.is_passing() {
            match passes {
                true => queue.begin_passing(),
                false => queue.end_passing(),
            }
        }
        passes && spools_all
    }

    /// Returns the queue on disk for transient spill, made if there is none. The caller holds the lock and is
    /// connected.
    ///
    /// `None`: there is no disk, or it accepts no more for now.
    pub(super) fn make_disk(&self) -> Option<Arc<StoredQueue>> {
        let has_room = |durable: &&Arc<Durable>| !durable.is_behind() && durable.has_room(self.common.limits.bytes);
        let durable = self.common.durable.as_ref().filter(has_room)?;
        Some(self.disk().unwrap_or_else(|| {
            let queue = durable.temporary_queue(self.any_queue().as_deref());
            self.stored.store(Some(Arc::clone(&queue)));
            queue
        }))
    }

    /// Drops the transient backlog at the end of a connection whose session ends too.
    ///
    /// Returns the queue on disk, for the caller to end.
    pub(super) fn end_temporary(&self, state: &mut State) -> Option<Arc<StoredQueue>> {
        let queue = self.disk().filter(|queue| queue.is_temporary())?;
        let tail = state.tail.take();
        self.common.metrics.dropped_offline.add(tail.map_or(0, |tail| tail.messages() as u64));
        self.has_tail.store(false, Ordering::Relaxed);
        Some(queue)
    }

    /// Writes the backlog's messages that have a new offset, and completes entries that are not needed any more.
    #[cold]
    pub(super) fn write_passed(&self, passed: Spilled) {
        let Spilled { queue, placed, left, room } = passed;
        let Some(durable) = &self.common.durable else { return };
        let queue = queue.flatten();
        if let Some(queue) = &queue {
            durable.settle_places(queue, left);
        }
        if let Some((queue, room)) = queue.as_ref().zip(room.as_ref()) {
            durable.append_placed(queue, &placed, room);
        }
        room.into_iter().for_each(|room| durable.give_room(room));
        let Some(queue) = queue.filter(|_| !placed.is_empty()) else { return };
        let mut state = self.state();
        // The current queue may belong to another session.
        if state.tail.is_none() || self.disk().is_none_or(|now| !Arc::ptr_eq(&now, &queue)) {
            return;
        }
        self.change_tail(&mut state, |tail| tail.unwritten = tail.unwritten.saturating_sub(placed.len()));
        self.at_rest.store(false, Ordering::Relaxed);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Spilled {
    pub(super) fn of(queue: Arc<StoredQueue>) -> Self {
        Self { queue: Some(Some(queue)), ..Self::default() }
    }

    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        self.placed.is_empty() && self.left.is_empty() && self.room.is_none()
    }

    fn queue(&mut self, outbox: &Outbox) -> Option<Arc<StoredQueue>> {
        self.queue.get_or_insert_with(|| outbox.disk()).clone()
    }

    /// Completes the entry at this offset, once the outbox is unlocked.
    pub(super) fn leave(&mut self, sequence: Sequence) {
        self.left.push(sequence);
    }

    /// Books `bytes` of disk space for messages about to be placed; returns whether there is any.
    pub(super) fn take_room(&mut self, outbox: &Outbox, bytes: usize) -> bool {
        let durable = outbox.common.durable.as_ref();
        let Some(room) = durable.and_then(|durable| durable.take_room(bytes, false)) else { return false };
        match &mut self.room {
            Some(booked) => booked.join(room),
            None => self.room = Some(room),
        }
        true
    }

    /// Adds a message to the backlog, at an offset assigned by rule 2. Its space must be booked.
    pub(super) fn place(&mut self, sequence: Sequence, tail: &mut Tail, delivery: &mut Delivery) {
        delivery.stored = Some(Stored::new(sequence, false).to_number());
        tail.add(sequence, tail::weight(delivery));
        tail.unwritten += 1;
        tail.stop_reading(); // the page being read would skip it
        self.placed.push(delivery.clone());
    }
}

impl Push<'_> {
    /// Handles a message that is stored, or may have to follow stored ones.
    ///
    /// `None`: the message is in the backlog, refused or dropped. A returned message goes to memory if there is room.
    pub(super) fn on_disk(&mut self, mut delivery: Delivery) -> Option<Delivery> {
        let place = match delivery.stored.map(Stored::of) {
            Some(Stored::InOwn(sequence)) => Some(sequence),
            Some(Stored::InGroup(_)) => return Some(delivery),
            None if delivery.share.is_some() => return Some(delivery),
            None => None,
        };
        let Some(queue) = self.passed.queue(self.outbox) else {
            delivery.stored = None; // its queue on disk has ended with all entries
            return Some(delivery);
        };
        if !self.outbox.passes(&queue, &delivery) {
            return match place {
                Some(sequence) if self.goes_to_tail(&delivery) => {
                    self.add_to_tail(sequence, &delivery);
                    None
                }
                _ => Some(delivery),
            };
        }
        let is_valid =
            |sequence: &Sequence| queue.may_pass_at(*sequence) && self.placed_at.is_none_or(|at| *sequence > at);
        let valid = place.filter(is_valid);
        let may_wait = self.is_attached && (self.is_behind || self.is_spooling) && !self.is_closed;
        if may_wait && self.goes_to_tail(&delivery) {
            if !delivery.qos.is_acknowledged() && self.has_no_disk_left() {
                self.passed.left.extend(place);
                self.dropped_full += 1;
                return None;
            }
            if self.refuses_own && delivery.qos.is_acknowledged() {
                return self.left_without_room(place, delivery); // must not overtake a refused message
            }
            if let Some(sequence) = valid {
                self.add_to_tail(sequence, &delivery);
                return None;
            }
            if !self.passed.take_room(self.outbox, bytes_of(&delivery)) {
                return self.left_without_room(place, delivery);
            }
            if let Some(sequence) = queue.next_sequence() {
                self.passed.place(sequence, self.tail.get_or_insert_default(), &mut delivery);
                self.spooled = true;
                self.placed_at = Some(sequence);
                self.is_behind = true;
                self.passed.left.extend(place);
                return None;
            }
        }
        self.passed.left.extend(place);
        delivery.stored = None;
        Some(delivery)
    }

    /// Refuses or drops a message that cannot be written and must not overtake those in the backlog.
    #[cold]
    fn left_without_room(&mut self, place: Option<Sequence>, delivery: Delivery) -> Option<Delivery> {
        self.passed.left.extend(place);
        match delivery.qos.is_acknowledged() {
            true => self.refuse_own(Delivery { stored: None, ..delivery }),
            false => self.dropped_full += 1,
        }
        None
    }

    /// Spills a message that finds no room in memory, and begins a backlog if there is none.
    ///
    /// Returns the message if the disk has no room either.
    #[cold]
    pub(super) fn overflow(&mut self, delivery: Delivery) -> Option<Delivery> {
        let passes = delivery.qos.is_acknowledged() || self.outbox.common.limits.when_full == WhenFull::Spool;
        let may_pass = passes && delivery.share.is_none() && delivery.stored.is_none() && self.is_attached;
        if !may_pass || self.is_behind {
            return Some(delivery);
        }
        let Some(queue) = self.outbox.make_disk() else { return Some(delivery) };
        // The messages in memory are older: should they spill later, they need lower offsets.
        self.tail.get_or_insert_default().before = queue.leave_room(self.queue.len());
        self.passed.queue = Some(Some(queue));
        (self.is_behind, self.spooled) = (true, true);
        self.on_disk(delivery)
    }

    /// Completes the entry of a message that will not be delivered.
    #[cold]
    pub(super) fn give_place_up(&mut self, delivery: &Delivery) {
        let Some(Stored::InOwn(sequence)) = delivery.stored.map(Stored::of) else { return };
        if self.passed.queue(self.outbox).is_some() {
            self.passed.leave(sequence);
        }
    }

    fn add_to_tail(&mut self, sequence: Sequence, delivery: &Delivery) {
        self.tail.get_or_insert_default().add(sequence, tail::weight(delivery));
        self.spooled = true;
        self.is_behind = true;
    }

    /// Whether the disk has no room for QoS 0 messages. Publishers usually check this before the push.
    fn has_no_disk_left(&self) -> bool {
        let limit = self.outbox.common.limits.stored_bytes;
        self.tail.as_deref().is_some_and(|tail| tail.disk_bytes() >= limit || tail.is_over_limit())
            || self.outbox.is_disk_behind()
    }
}

#[cfg(test)]
mod tests;
