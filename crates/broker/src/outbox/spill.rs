//! Transient spill: messages that are on disk only while they are not in memory, for slow receivers and full queues.
//!
//! | | QoS 1 and 2 | QoS 0 with [`WhenFull::Spool`] |
//! |---|---|---|
//! | the session outlives its connection | always on disk | spilled transiently |
//! | it does not | spilled transiently | spilled transiently |
//!
//! Spilled messages must come out in the order in which each publisher sent them, and the on-disk backlog is read by
//! offset. Some have an offset before they reach the outbox: their publisher's task saw that the receiver spills, and
//! appended them to the log. Others were collected earlier, or were in memory when the receiver became slow. These rules
//! keep the order, and the tests check it with random steps:
//!
//! 1. While there is a backlog, no message that may spill goes to memory.
//! 2. A message without an offset gets one on arrival, or as it leaves memory: above all offsets assigned before. If a
//!    backlog begins for want of room in memory, offsets below it are reserved for the messages in memory.
//! 3. The offset that a message brings is valid only above those that rule 2 assigned in the same batch, and when memory
//!    was last emptied. Otherwise the message counts as one without offset.
//! 4. A message that goes to memory gives up its offset. So no message in memory has a higher offset than a later
//!    message.

use std::sync::Arc;

use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::consumer::ConsumerState;
use super::push::Push;
use super::{Outbox, State, WhenFull};
use crate::backlog::DiskWork;
use crate::durable::{Durable, Ended, Location, Place, Room, StoredQueue, bytes_of};
use crate::hooks::DropReason;

impl Outbox {
    /// The client's current queue on disk, of any kind.
    pub(super) fn disk(&self) -> Option<Arc<StoredQueue>> {
        self.stored.load_full().filter(|queue| !queue.is_over())
    }

    /// The queue on disk to which a message is appended before it is pushed, if any. To be asked for a QoS 0 message if
    /// [`Outbox::keeps_unacknowledged`].
    #[inline]
    pub(crate) fn collects_in(&self, is_acknowledged: bool) -> Option<Arc<StoredQueue>> {
        let queue = self.stored.load();
        let queue = queue.as_ref().filter(|queue| !queue.is_over())?;
        (queue.is_passing() || (is_acknowledged && !queue.is_temporary())).then(|| Arc::clone(queue))
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

    /// Whether a message without an entry may spill transiently.
    pub(super) fn passes(&self, queue: &StoredQueue, delivery: &Delivery) -> bool {
        match delivery.qos.is_acknowledged() {
            true => queue.is_temporary(),
            false => self.common.limits.when_full == WhenFull::Spool,
        }
    }

    /// Begins or ends the transient spill as the state demands; returns whether QoS 0 messages spill.
    pub(super) fn switch_passing(&self, state: &State) -> bool {
        let is_behind = state.consumer.state(State::has_tail(state.spill.as_deref())) == ConsumerState::Spilling;
        let queue = self.stored.load();
        let Some(queue) = queue.as_ref() else { return false };
        let spools_all = self.common.limits.when_full == WhenFull::Spool;
        let passes = is_behind && !queue.is_over() && (queue.is_temporary() || spools_all);
        if passes != queue.is_passing() {
            queue.set_passing(passes);
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
        let dropped = state.spill.take().map_or(0, |spill| spill.entries.messages());
        self.common.metrics.dropped_offline.add(dropped as u64);
        Some(queue)
    }

    /// Executes disk operations of a batch for this queue on disk, once the outbox is unlocked.
    #[cold]
    pub(super) fn do_disk_work(&self, queue: Option<Arc<StoredQueue>>, work: DiskWork) {
        let Some(durable) = &self.common.durable else { return };
        let written = work.run(durable, queue.as_deref());
        let Some(queue) = queue.filter(|_| written > 0) else { return };
        let mut state = self.state();
        // The current queue may belong to another session.
        let is_current = self.disk().is_some_and(|now| Arc::ptr_eq(&now, &queue));
        let Some(spill) = state.spill.as_mut().filter(|_| is_current) else { return };
        spill.written(written);
        self.publish(&mut state);
        self.wake(state);
    }
}

impl Push<'_> {
    /// The queue on disk, looked up once for a batch.
    fn queue_on_disk(&mut self) -> Option<Arc<StoredQueue>> {
        self.target.disk.get_or_insert_with(|| self.target.outbox.disk()).clone()
    }

    /// Handles a message that is stored, or may have to follow stored ones.
    ///
    /// `None`: the message is in the backlog, refused or dropped. A returned message goes to memory if there is room.
    pub(super) fn on_disk(&mut self, mut delivery: Delivery) -> Option<Delivery> {
        let location = delivery.location();
        if delivery.share.is_some() || matches!(location, Some(Location::Group(_))) {
            return Some(delivery);
        }
        let Some(queue) = self.queue_on_disk() else {
            delivery.stored = None; // its queue on disk has ended with all entries
            return Some(delivery);
        };
        let place = match location {
            Some(Location::Own(_)) if !queue.is_temporary() && !self.goes_to_tail(&delivery) => return Some(delivery),
            Some(Location::Own(sequence)) if !queue.is_temporary() => {
                self.add_to_tail(Sequence(sequence), &delivery);
                return None;
            }
            None if !self.target.outbox.passes(&queue, &delivery) => return Some(delivery),
            None | Some(Location::Group(_)) => None,
            // An own one is of an earlier session.
            Some(Location::Transient(sequence) | Location::Own(sequence)) => Some(Sequence(sequence)),
        };
        let is_valid = |sequence: &Sequence| {
            queue.may_pass_at(*sequence) && self.effects.placed_at.is_none_or(|at| *sequence > at)
        };
        let valid = place.filter(is_valid);
        let may_wait =
            self.target.is_attached && (self.target.is_behind || self.limits.is_spooling) && !self.target.is_closed;
        if may_wait && self.goes_to_tail(&delivery) {
            if !delivery.qos.is_acknowledged() && self.has_no_disk_left() {
                self.effects.disk_work.end(Ended::Refused, place);
                self.drop_full(&delivery);
                return None;
            }
            if self.effects.refuses_own && delivery.qos.is_acknowledged() {
                return self.left_without_room(place, delivery); // must not overtake a refused message
            }
            if let Some(sequence) = valid {
                self.add_to_tail(sequence, &delivery);
                return None;
            }
            if !self.effects.disk_work.book(self.target.outbox.common.durable.as_deref(), bytes_of(&delivery)) {
                return self.left_without_room(place, delivery);
            }
            if let Some(Place { sequence, .. }) = queue.next() {
                self.target.spill.get_or_insert_default().place(sequence, &mut delivery, &mut self.effects.disk_work);
                self.effects.spooled = true;
                self.effects.placed_at = Some(sequence);
                self.target.is_behind = true;
                self.effects.disk_work.end(Ended::InMemory, place); // it has another entry
                return None;
            }
        }
        self.effects.disk_work.end(Ended::InMemory, place);
        delivery.stored = None;
        Some(delivery)
    }

    /// Refuses or drops a message that cannot be written and must not overtake those in the backlog.
    #[cold]
    fn left_without_room(&mut self, place: Option<Sequence>, delivery: Delivery) -> Option<Delivery> {
        self.effects.disk_work.end(Ended::Refused, place);
        match delivery.qos.is_acknowledged() {
            true => self.refuse_own(Delivery { stored: None, ..delivery }),
            false => self.drop_full(&delivery),
        }
        None
    }

    fn drop_full(&mut self, delivery: &Delivery) {
        self.effects.dropped_full += 1;
        let entries = self.target.spill.as_deref().map(|spill| &spill.entries);
        self.effects.full_by =
            Some(self.target.outbox.common.limits.full_bound(self.target.queue.usage(), entries, true));
        self.target.queue.note_dropped(delivery, DropReason::QueueFull);
    }

    /// Spills a message that finds no room in memory, and begins a backlog if there is none.
    ///
    /// Returns the message if the disk has no room either.
    #[cold]
    pub(super) fn overflow(&mut self, delivery: Delivery) -> Option<Delivery> {
        let passes = delivery.qos.is_acknowledged() || self.target.outbox.common.limits.when_full == WhenFull::Spool;
        let may_pass = passes && delivery.share.is_none() && delivery.stored.is_none() && self.target.is_attached;
        if !may_pass || self.target.is_behind {
            return Some(delivery);
        }
        let Some(queue) = self.target.outbox.make_disk() else { return Some(delivery) };
        self.target.spill.get_or_insert_default().begin(&queue, self.target.queue.len());
        self.target.disk = Some(Some(queue));
        (self.target.is_behind, self.effects.spooled) = (true, true);
        self.on_disk(delivery)
    }

    /// Completes the entry of a message that will not be delivered.
    #[cold]
    pub(super) fn complete_entry(&mut self, delivery: &Delivery) {
        if let Some(Location::Own(sequence) | Location::Transient(sequence)) = delivery.location()
            && self.queue_on_disk().is_some()
        {
            self.effects.disk_work.end(Ended::Refused, [Sequence(sequence)]);
        }
    }

    fn add_to_tail(&mut self, sequence: Sequence, delivery: &Delivery) {
        self.target.spill.get_or_insert_default().add(sequence, delivery);
        self.effects.spooled = true;
        self.target.is_behind = true;
    }

    /// Whether the disk has no room for QoS 0 messages. Publishers usually check this before the push.
    fn has_no_disk_left(&self) -> bool {
        let limits = &self.target.outbox.common.limits;
        self.target.spill.as_deref().is_some_and(|spill| limits.disk_is_over(&spill.entries))
            || self.target.outbox.is_disk_behind()
    }
}

#[cfg(test)]
mod tests;
