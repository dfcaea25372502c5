//! Messages that pass through the disk while their receiver is slow, or for which there is no room: they are there as long as
//! they are not in memory.
//!
//! | | QoS 1 and 2 | QoS 0, where [`WhenFull::Spool`] holds |
//! |---|---|---|
//! | the session outlives its connection | are kept, in memory or not | passes |
//! | it does not | pass | passes |
//!
//! What passes has to come out in the order in which each publisher put it in, and a tail is read by its places. So of two
//! messages of one publisher that are in the tail the earlier one needs the lower place. Most have got theirs when they come:
//! their publisher's task saw that they pass, and appended them for all of their receivers. Others have none: they were
//! collected before, or were in memory when the receiver became slow. These rules keep the order:
//!
//! 1. While there is a tail, nothing that could pass goes to memory.
//! 2. What comes without a place gets one when it comes, and what leaves memory when it leaves it: a new one each time,
//!    higher than all that were given before, be it to messages that are still on their way. Where a tail begins for want of room
//!    in memory, what is there has its new places set aside then, below those of the tail.
//! 3. A place that a message brings counts only if it is higher than those that were given by rule 2 when memory was emptied
//!    last, and higher than those that were given so to messages of the same batch. Otherwise the message is one without.
//! 4. What goes to memory gives its place up. So nothing in memory has a place that a later message's could be below.
//!
//! Why that does: a message's place is above those of all earlier ones of its publisher that got theirs before, for places only
//! rise. An earlier one that gets its place later does so by rule 2, when memory is emptied or in the same batch, since
//! the batches of a publisher come one after the other; and then rule 3 has the later one get another place too. Memory is
//! emptied while there is no tail, and then messages pass anew ([`StoredQueue::begin_passing`]), so that no place counts that was
//! given before; or to places that were set aside below a tail.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::push::Push;
use super::{Outbox, State, WhenFull, tail};
use crate::durable::{Durable, Room, Stored, StoredQueue, Tail, bytes_of};

/// What a batch does to the disk, once the outbox is not locked any more.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// The queue there; looked up when it is asked for.
    queue: Option<Option<Arc<StoredQueue>>>,
    /// These have got a place and are to be written there.
    placed: Vec<Delivery>,
    /// Booked for them.
    room: Option<Room>,
    /// Nothing is at these places any more that is wanted.
    left: Vec<Sequence>,
}

impl Outbox {
    /// The queue on disk that the client has now, whatever it is for.
    pub(super) fn disk(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full().filter(|queue| !queue.is_over())
    }

    /// Where a QoS 1 or 2 message is written before it is put in, if it is.
    #[inline]
    pub(crate) fn collects_in(&self) -> Option<Arc<StoredQueue>> {
        let queue = self.stored.load();
        let queue = queue.as_ref().filter(|queue| !queue.is_over())?;
        (!queue.is_temporary() || queue.is_passing()).then(|| Arc::clone(queue))
    }

    /// As [`Outbox::collects_in`], for one of QoS 0; to be asked if [`Outbox::keeps_unacknowledged`].
    pub(crate) fn collects_unacknowledged_in(&self) -> Option<Arc<StoredQueue>> {
        self.disk().filter(|queue| queue.is_passing())
    }

    /// Whether the disk takes no more for now.
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.common.durable.as_ref().is_some_and(|durable| durable.is_behind())
    }

    /// Books so many bytes of the disk, if it takes them now.
    pub(crate) fn take_disk_room(&self, bytes: usize) -> Option<Room> {
        let durable = self.common.durable.as_ref().filter(|durable| !durable.is_behind())?;
        durable.take_room(bytes, false)
    }

    /// Whether such messages are on disk only while they are not in memory.
    pub(super) fn passes(&self, queue: &StoredQueue, delivery: &Delivery) -> bool {
        match delivery.qos.is_acknowledged() {
            true => queue.is_temporary(),
            false => self.common.limits.when_full == WhenFull::Spool,
        }
    }

    /// Messages begin to pass where there is reason for it, and end to where there is none. Whether those of QoS 0 do.
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

    /// The queue on disk for what passes, which is made if there is none; `None`: the disk takes no more for now, or there is
    /// none. Under the lock, while there is a connection.
    pub(super) fn make_disk(&self) -> Option<Arc<StoredQueue>> {
        let has_room = |durable: &&Arc<Durable>| !durable.is_behind() && durable.has_room(self.common.limits.bytes);
        let durable = self.common.durable.as_ref().filter(has_room)?;
        Some(self.disk().unwrap_or_else(|| {
            let queue = durable.temporary_queue(self.any_queue().as_deref());
            self.stored.store(Some(Arc::clone(&queue)));
            queue
        }))
    }

    /// The connection is over: what passed goes with it, if its session does. What is returned is to be ended.
    pub(super) fn end_temporary(&self, state: &mut State) -> Option<Arc<StoredQueue>> {
        let queue = self.disk().filter(|queue| queue.is_temporary())?;
        let tail = state.tail.take();
        self.common.metrics.dropped_offline.add(tail.map_or(0, |tail| tail.messages() as u64));
        self.has_tail.store(false, Ordering::Relaxed);
        Some(queue)
    }

    /// Writes messages of the tail that have got their places and are not there yet, and gives up the places of others.
    #[cold]
    pub(super) fn write_passed(&self, passed: Passed) {
        let Passed { queue, placed, left, room } = passed;
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
        // What is there now may be another session's.
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

impl Passed {
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

    /// What is stored at this place is not, from now on.
    pub(super) fn leave(&mut self, sequence: Sequence) {
        self.left.push(sequence);
    }

    /// Books room for messages that are going to be placed, of so many bytes; whether there is any.
    pub(super) fn take_room(&mut self, outbox: &Outbox, bytes: usize) -> bool {
        let durable = outbox.common.durable.as_ref();
        let Some(room) = durable.and_then(|durable| durable.take_room(bytes, false)) else { return false };
        match &mut self.room {
            Some(booked) => booked.join(room),
            None => self.room = Some(room),
        }
        true
    }

    /// A message that goes to the tail, at a place that it has got by rule 2, and with room that is booked.
    pub(super) fn place(&mut self, sequence: Sequence, tail: &mut Tail, delivery: &mut Delivery) {
        delivery.stored = Some(Stored::new(sequence, false).to_number());
        tail.add(sequence, tail::weight(delivery));
        tail.unwritten += 1;
        tail.stop_reading(); // what is being read would pass it over
        self.placed.push(delivery.clone());
    }
}

impl Push<'_> {
    /// Takes a message that is stored, or that could follow others which are; `None`: it is in the tail. What is returned is
    /// to go to memory, if there is room.
    pub(super) fn on_disk(&mut self, mut delivery: Delivery) -> Option<Delivery> {
        let place = match delivery.stored.map(Stored::of) {
            Some(Stored::InOwn(sequence)) => Some(sequence),
            Some(Stored::InGroup(_)) => return Some(delivery),
            None if delivery.share.is_some() => return Some(delivery),
            None => None,
        };
        let Some(queue) = self.passed.queue(self.outbox) else {
            delivery.stored = None; // it has ended, and all in it
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
                return self.left_without_room(place, delivery); // it would get before one that was refused
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

    /// A message that cannot be written, and may not overtake those in the tail: its publisher is told.
    #[cold]
    fn left_without_room(&mut self, place: Option<Sequence>, delivery: Delivery) -> Option<Delivery> {
        self.passed.left.extend(place);
        match delivery.qos.is_acknowledged() {
            true => self.refuse_own(Delivery { stored: None, ..delivery }),
            false => self.dropped_full += 1,
        }
        None
    }

    /// Takes a message that finds no room in memory to the tail, which may begin with it; what is returned has no room there
    /// either.
    #[cold]
    pub(super) fn overflow(&mut self, delivery: Delivery) -> Option<Delivery> {
        let passes = delivery.qos.is_acknowledged() || self.outbox.common.limits.when_full == WhenFull::Spool;
        let may_pass = passes && delivery.share.is_none() && delivery.stored.is_none() && self.is_attached;
        if !may_pass || self.is_behind {
            return Some(delivery);
        }
        let Some(queue) = self.outbox.make_disk() else { return Some(delivery) };
        // What is in memory is before it: if that has to leave, it needs places below.
        self.tail.get_or_insert_default().before = queue.leave_room(self.queue.len());
        self.passed.queue = Some(Some(queue));
        (self.is_behind, self.spooled) = (true, true);
        self.on_disk(delivery)
    }

    /// A message that nobody gets.
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

    /// Publishers that could know drop such a message before it comes.
    fn has_no_disk_left(&self) -> bool {
        let limit = self.outbox.common.limits.stored_bytes;
        self.tail.as_deref().is_some_and(|tail| tail.disk_bytes() >= limit || tail.is_over_limit())
            || self.outbox.is_disk_behind()
    }
}

#[cfg(test)]
mod tests;
