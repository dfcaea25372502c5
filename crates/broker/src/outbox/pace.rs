//! How a slow receiver's queue behaves, and the samples that others see of it; see `health`.

use tenbin_balancer::Availability;
use tenbin_session::Delivery;

use super::consumer::ConsumerState;
use super::health::{Bounds, Pace, SOFT_FLOOR_BYTES, Sample};
use super::hints::Hint;
use super::{Outbox, State, WhenFull};
use crate::backlog::{DiskWork, HEAD_BYTES};
use crate::durable::{Location, StoredQueue, bytes_of};

impl Outbox {
    /// Receiver: begins to be watched, because it is blocked or leaves much in its queue; returns whether it was not
    /// before.
    #[inline]
    pub(crate) fn begin_watch(&self) -> bool {
        !self.hints.has(Hint::IS_WATCHED) && self.hints.set(Hint::IS_WATCHED)
    }

    /// Whether much is left in the queue though the receiver takes from it; a hint.
    #[inline]
    pub(crate) fn lags(&self) -> bool {
        self.hints.has(Hint::LAGS)
    }

    /// Ends the watch if there is no reason for it any more; returns whether it did.
    pub(crate) fn end_watch(&self) -> bool {
        let state = self.state();
        let ends = match state.consumer.state(state.spill.is_some()) {
            ConsumerState::Detached | ConsumerState::Closed => true,
            ConsumerState::Ready => state.queue.bytes() < QUIET_BYTES,
            ConsumerState::Blocked | ConsumerState::Slow | ConsumerState::Spilling => false,
        };
        if ends {
            // Under the lock: a receiver that gets blocked later calls `begin_watch` again.
            self.hints.clear(Hint::IS_WATCHED.and(Hint::LAGS));
        }
        ends
    }

    /// Samples the queue; also returns the number of the connection. `None` without a connection.
    pub(crate) fn sample(&self) -> Option<(u32, Sample)> {
        let state = self.state();
        let queue = &state.queue;
        let (mut spoolable_messages, mut spoolable_bytes) = queue.acknowledged_usage();
        if self.common.limits.when_full == WhenFull::Spool {
            (spoolable_messages, spoolable_bytes) = (queue.len(), queue.bytes());
        }
        if !self.may_spool(state.consumer.is_spooling()) {
            (spoolable_messages, spoolable_bytes) = (0, 0);
        }
        let entries = state.spill.as_ref().map(|spill| &spill.entries);
        let is_being_read = state.spill.as_ref().is_some_and(|spill| spill.refill.is_reading());
        let sample = Sample {
            bytes: queue.bytes(),
            messages: queue.len(),
            spoolable_bytes,
            spoolable_messages,
            tail_messages: entries.map_or(0, |entries| entries.messages()).max(is_being_read.into()),
            tail_bytes: entries.map_or(0, |entries| entries.bytes()),
            head: queue.head(),
            next: queue.next_number(),
            taken_bytes: queue.taken_bytes(),
            unsent_bytes: state.unsent_bytes,
        };
        state.consumer.is_connected().then_some((state.consumer.connection(), sample))
    }

    /// Current limits of this receiver's queue.
    pub(crate) fn bounds(&self) -> Bounds {
        let limits = &self.common.limits;
        Bounds { bytes: limits.bytes, messages: limits.messages, free_bytes: self.common.budget.free() }
    }

    /// Changes the receiver's consumer state; `soft` is its soft limit in bytes. Returns whether it could.
    ///
    /// It cannot if messages arrived since [`Outbox::sample`] or the connection ended; then nothing changes.
    pub(crate) fn set_pace(&self, connection: u32, pace: Pace, soft: usize) -> bool {
        let (is_spooling, is_full_of_rest) = {
            let state = self.state();
            let could_go = match self.common.limits.when_full {
                WhenFull::Spool => state.queue.bytes(),
                _ => state.queue.acknowledged_usage().1,
            };
            let has_rest = state.spill.is_none() && could_go > 2 * HEAD_BYTES;
            (state.consumer.is_spooling(), has_rest)
        };
        // A disk that was congested at the time may have recovered.
        let has_to_begin = !is_spooling
            || (self.common.limits.has_store && (self.disk().is_none() || is_full_of_rest) && !self.is_disk_behind());
        if pace == Pace::Spooling && has_to_begin {
            return self.begin_spooling(connection, soft);
        }
        let mut state = self.state();
        let has_tail = State::has_tail(state.spill.as_deref());
        if !state.consumer.judge(connection, pace, slow_bytes(soft), has_tail) {
            return false;
        }
        self.publish(&mut state);
        if pace != Pace::Normal {
            self.load.set_availability(Availability::Full);
            return true;
        }
        state.is_alarmed = false;
        if self.common.limits.has_room_again(&state.queue) && !has_tail {
            self.load.set_availability(Availability::Ready);
            self.look_at_backlogs(&mut state);
        }
        self.wake(state); // its share groups may have backlogs
        true
    }

    /// Whether this receiver's messages can spill to disk, now or once it is slow.
    ///
    /// Not without a disk, nor if the disk was congested when the receiver became slow.
    pub(super) fn may_spool(&self, is_spooling: bool) -> bool {
        self.common.limits.has_store && (self.disk().is_some() || (!is_spooling && !self.is_disk_behind()))
    }

    /// Keeps only the head in memory from now on. The rest spills to disk.
    fn begin_spooling(&self, connection: u32, soft: usize) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.consumer.judge(connection, Pace::Spooling, slow_bytes(soft), false) {
            return false;
        }
        // If the disk accepts no more, messages that are not yet there stay in memory, as without a disk.
        let can_write = self.make_disk().is_some();
        self.load.set_availability(Availability::Full);
        let (mut work, disk) = (DiskWork::default(), self.disk());
        if let Some(queue) = &disk {
            state.is_stuffed = false;
            work = self.give_rest_to_tail(state, queue, can_write);
        }
        self.publish(state);
        drop(guard);
        self.do_disk_work(disk, work);
        true
    }

    /// Moves messages behind the in-memory head to the on-disk backlog; returns the disk operations.
    ///
    /// The backlog is not read until they are written. Without `can_write`, only messages that are on disk already move.
    fn give_rest_to_tail(&self, state: &mut State, queue: &StoredQueue, can_write: bool) -> DiskWork {
        let has_tail = State::has_tail(state.spill.as_deref());
        let unplaced =
            |delivery: &Delivery| delivery.stored.is_none() && delivery.share.is_none() && self.passes(queue, delivery);
        state.queue.split_runs();
        let sizes = state.queue.iter().filter(|delivery| unplaced(delivery)).map(bytes_of);
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more));
        let can_write = can_write && state.spill.as_ref().is_none_or(|spill| spill.has_offsets_for(count));
        let mut work = DiskWork::default();
        let can_write = can_write && work.book(self.common.durable.as_deref(), bytes);
        let goes = |delivery: &Delivery| match delivery.location() {
            Some(Location::Own(_)) => true,
            Some(Location::Group(_)) => false,
            None => can_write && unplaced(delivery),
            Some(Location::Transient(_)) => unreachable!("no message in memory has a transient entry"),
        };
        let mut rest = state.queue.withdraw_behind(HEAD_BYTES, goes, &self.common.budget);
        if rest.is_empty() {
            return work;
        }
        state.spill.get_or_insert_default().place_older(queue, &mut rest, &mut work);
        if !has_tail && queue.is_passing() {
            queue.set_passing(true); // messages not pushed yet are newer: they need new offsets
        }
        work
    }
}

/// Bound on a slow receiver's bytes in memory: its `soft` limit plus the head.
fn slow_bytes(soft: usize) -> usize {
    soft.max(SOFT_FLOOR_BYTES) + HEAD_BYTES
}

/// A receiver with fewer bytes queued need not be watched.
const QUIET_BYTES: usize = 16 * 1024;
