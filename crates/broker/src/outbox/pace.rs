//! How a slow receiver's queue behaves, and the samples that others see of it; see `health`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenbin_balancer::Availability;
use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::health::{Bounds, Pace, SOFT_FLOOR_BYTES, Sample};
use super::queue::HEAD_BYTES;
use super::spill::Spilled;
use super::{Outbox, OutboxLimits, State, WhenFull, tail};
use crate::durable::{Stored, StoredQueue, bytes_of};

/// Current behaviour of a queue.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Behaviour {
    pub(super) pace: Pace,
    /// Bound on bytes in memory while the receiver is slow, without in-flight messages.
    pub(super) slow_bytes: usize,
}

impl Behaviour {
    pub(super) fn is_spooling(self) -> bool {
        self.pace == Pace::Spooling
    }

    /// Limits of a slow receiver for messages that are not on disk.
    pub(super) fn slow_limits(self, limits: &OutboxLimits) -> OutboxLimits {
        OutboxLimits { bytes: self.slow_bytes.min(limits.bytes), ..*limits }
    }
}

impl Outbox {
    /// Receiver: begins to be watched, because it is blocked or leaves much in its queue; returns whether it was not
    /// before.
    #[inline]
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Whether much is left in the queue though the receiver takes from it; a hint.
    #[inline]
    pub(crate) fn lags(&self) -> bool {
        self.lags.load(Ordering::Relaxed)
    }

    /// Ends the watch if there is no reason for it any more; returns whether it did.
    pub(crate) fn end_watch(&self) -> bool {
        let state = self.state();
        let is_blocked = state.attached && (state.socket_blocked || state.quota_blocked);
        let is_quiet = state.queue.bytes() < QUIET_BYTES && state.tail.is_none() && !is_blocked;
        let is_normal = state.behaviour.pace == Pace::Normal;
        let ends = !state.attached || (is_quiet && is_normal);
        if ends {
            // Under the lock: a receiver that gets blocked later calls `begin_watch` again.
            self.is_watched.store(false, Ordering::Relaxed);
            self.lags.store(false, Ordering::Relaxed);
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
        if !self.may_spool(state.behaviour.is_spooling()) {
            (spoolable_messages, spoolable_bytes) = (0, 0);
        }
        let tail = state.tail.as_ref().map_or((0, 0), |tail| (tail.messages(), tail.bytes()));
        let is_being_read = state.tail.as_ref().is_some_and(|tail| tail.is_being_read());
        let sample = Sample {
            bytes: queue.bytes(),
            messages: queue.len(),
            spoolable_bytes,
            spoolable_messages,
            tail_messages: tail.0.max(is_being_read.into()),
            tail_bytes: tail.1,
            head: queue.head(),
            next: queue.next_number(),
            taken_bytes: queue.taken_bytes(),
            unsent_bytes: state.unsent_bytes,
        };
        state.attached.then_some((state.connection, sample))
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
            let has_rest = state.tail.is_none() && could_go > 2 * HEAD_BYTES;
            (state.behaviour.is_spooling(), has_rest)
        };
        // A disk that was congested at the time may have recovered.
        let has_to_begin = !is_spooling
            || (self.common.limits.has_store && (self.disk().is_none() || is_full_of_rest) && !self.is_disk_behind());
        if pace == Pace::Spooling && has_to_begin {
            return self.begin_spooling(connection, soft);
        }
        let mut state = self.state();
        let has_tail = State::has_tail(state.tail.as_deref());
        if !state.attached || state.connection != connection || (is_spooling && pace != Pace::Spooling && has_tail) {
            return false;
        }
        state.behaviour = Behaviour { pace, slow_bytes: slow_bytes(soft) };
        if pace == Pace::Normal {
            self.is_alarmed.store(false, Ordering::Relaxed);
        }
        if pace == Pace::Normal && state.queue.has_room(&self.common.limits) && !has_tail {
            self.load.set_availability(Availability::Ready);
            self.has_room_again.store(true, Ordering::Relaxed);
            self.at_rest.store(false, Ordering::Relaxed);
        } else if pace != Pace::Normal {
            self.load.set_availability(Availability::Full);
        }
        self.tell_form(&state);
        let waker = if pace == Pace::Normal { state.waker.take() } else { None };
        drop(state);
        // Its share groups may have backlogs.
        if let Some(waker) = waker {
            waker.wake();
        }
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
        if !state.attached || state.connection != connection || state.closed {
            return false;
        }
        // If the disk accepts no more, messages that are not yet there stay in memory, as without a disk.
        let can_write = self.make_disk().is_some();
        state.behaviour = Behaviour { pace: Pace::Spooling, slow_bytes: slow_bytes(soft) };
        self.load.set_availability(Availability::Full);
        let mut passed = Spilled::default();
        if let Some(queue) = self.disk() {
            state.is_stuffed = false;
            self.tell_quota(state);
            passed = self.give_rest_to_tail(state, queue, can_write);
        }
        self.tell_form(state);
        drop(guard);
        if !passed.is_nothing() {
            self.write_passed(passed);
        }
        true
    }

    /// Moves messages behind the in-memory head to the on-disk backlog; returns those to be written.
    ///
    /// Each of these has a new offset. The backlog is not read until they are written. Without `can_write`, only
    /// messages that are on disk already move.
    fn give_rest_to_tail(&self, state: &mut State, queue: Arc<StoredQueue>, can_write: bool) -> Spilled {
        let has_tail = State::has_tail(state.tail.as_deref());
        let room = state.tail.as_ref().map_or(0..0, |tail| tail.before.clone());
        let unplaced = |delivery: &Delivery| {
            delivery.stored.is_none() && delivery.share.is_none() && self.passes(&queue, delivery)
        };
        state.queue.split_runs();
        let sizes = state.queue.iter().filter(|delivery| unplaced(delivery)).map(bytes_of);
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more));
        let can_write = can_write && (!has_tail || room.end - room.start >= count);
        let mut passed = Spilled::of(Arc::clone(&queue));
        let can_write = can_write && passed.take_room(self, bytes);
        let goes = |delivery: &Delivery| match delivery.stored.map(Stored::of) {
            Some(stored) => matches!(stored, Stored::InOwn(_)),
            None => can_write && unplaced(delivery),
        };
        let mut rest = state.queue.withdraw_behind(HEAD_BYTES, goes, &self.common.budget);
        if rest.is_empty() {
            return passed;
        }
        let count = rest.iter().filter(|delivery| delivery.stored.is_none()).count();
        let mut places = if has_tail { room } else { queue.leave_room(count) };
        self.change_tail(state, |tail| {
            tail.stop_reading(); // the page being read lies behind these
            tail.before = 0..0;
            for delivery in &mut rest {
                match delivery.stored.map(Stored::of) {
                    Some(stored) => tail.add(stored.sequence(), tail::weight(delivery)),
                    None => {
                        let place = places.next();
                        debug_assert!(place.is_some(), "as many as are without");
                        place.into_iter().for_each(|place| passed.place(Sequence(place), tail, delivery));
                    }
                }
            }
        });
        if !has_tail && queue.is_passing() {
            queue.begin_passing(); // messages not pushed yet are newer: they need new offsets
        }
        passed
    }
}

/// Bound on a slow receiver's bytes in memory: its `soft` limit plus the head.
fn slow_bytes(soft: usize) -> usize {
    soft.max(SOFT_FLOOR_BYTES) + HEAD_BYTES
}

/// A receiver with fewer bytes queued need not be watched.
const QUIET_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::time::Instant;

    use bytes::BytesMut;
    use tenbin_balancer::{MemberLoad, Nanos};
    use tenbin_codec::{PublishTemplate, QoS, TopicName};

    use super::*;
    use crate::outbox::{Batch, Budget, Control, OutboxCommon, Taken};

    fn outbox(when_full: WhenFull) -> Outbox {
        let limits = OutboxLimits::for_tests(MESSAGES, when_full);
        let common = OutboxCommon::for_tests(limits, Arc::new(Budget::new(1 << 30)));
        let outbox = Outbox::new(Arc::new(common), Arc::new(MemberLoad::new(Nanos(0))));
        outbox.attach(u32::MAX, None);
        outbox
    }

    /// Bound on messages. Byte limits are not reached.
    const MESSAGES: usize = 600;

    /// Pushes messages of about 1 KB.
    fn push(outbox: &Outbox, qos: QoS, marks: std::ops::Range<u32>) {
        let topic = TopicName::try_from("t").unwrap();
        let delivery = |mark: u32| {
            let mut payload = vec![0; 1000];
            payload.extend(mark.to_be_bytes());
            Delivery::new(PublishTemplate::new(&topic, None, &payload.into(), &mut BytesMut::new()), qos, false)
        };
        outbox.push(&mut marks.map(delivery).collect(), &mut Vec::new(), Instant::now());
    }

    fn taken(outbox: &Outbox, bytes: usize) -> Vec<u32> {
        let mut batch = Batch::default();
        outbox.take_now(usize::MAX, bytes, &mut batch);
        let mark = |delivery: &Delivery| u32::from_be_bytes(*delivery.template.payload().last_chunk().unwrap());
        batch.into_singles().iter().map(mark).collect()
    }

    #[test]
    fn watched_member_is_unavailable_until_it_keeps_up() {
        let outbox = outbox(WhenFull::DropOldest);
        assert_eq!(outbox.load.availability(), Availability::Ready);
        assert!(outbox.set_pace(1, Pace::Watch, 0));
        assert_eq!(outbox.load.availability(), Availability::Full);
        let mut context = Context::from_waker(Waker::noop());
        assert!(outbox.poll_take(&mut context, 1, 1, &mut Batch::default()).is_pending());
        assert_eq!(outbox.load.availability(), Availability::Full, "room alone does not do");
        assert!(!outbox.set_pace(2, Pace::Normal, 0), "that is another connection");
        assert!(outbox.set_pace(1, Pace::Normal, 0));
        assert_eq!(outbox.load.availability(), Availability::Ready);
        assert!(outbox.take_room_again(), "its groups may have kept messages");
    }

    #[test]
    fn qos_0_overflow_of_slow_receiver_follows_policy() {
        for (when_full, has_newest) in [(WhenFull::DropOldest, true), (WhenFull::DropNewest, false)] {
            let outbox = outbox(when_full);
            push(&outbox, QoS::AtMostOnce, 0..300);
            assert!(outbox.set_pace(1, Pace::Spooling, 0));
            push(&outbox, QoS::AtMostOnce, 300..600);
            let marks = taken(&outbox, usize::MAX);
            assert_eq!(marks.contains(&599), has_newest);
            assert_eq!(marks.contains(&0), !has_newest);
            assert!(marks.is_sorted() && marks.len() <= 300, "{}", marks.len());
            assert_eq!(outbox.common.metrics.dropped_queue_full.get() as usize, 600 - marks.len());
        }
        let outbox = outbox(WhenFull::Disconnect);
        assert!(outbox.set_pace(1, Pace::Spooling, 0));
        push(&outbox, QoS::AtMostOnce, 0..300);
        let mut context = Context::from_waker(Waker::noop());
        let told = outbox.poll_take(&mut context, 1, 1, &mut Batch::default());
        assert_eq!(told, std::task::Poll::Ready(Taken::Control(Control::TooSlow)));
    }

    #[test]
    fn qos_1_of_slow_receiver_is_not_dropped_while_it_fits() {
        let outbox = outbox(WhenFull::DropOldest);
        assert!(outbox.set_pace(1, Pace::Spooling, 0));
        push(&outbox, QoS::AtLeastOnce, 0..500);
        assert_eq!(taken(&outbox, usize::MAX), (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn spool_policy_without_store_evicts_qos_0_and_refuses_qos_1() {
        let outbox = outbox(WhenFull::Spool);
        push(&outbox, QoS::AtMostOnce, 0..MESSAGES as u32 + 300);
        let marks = taken(&outbox, usize::MAX);
        assert!(marks.is_sorted() && marks.len() <= MESSAGES);
        assert_eq!(marks.last(), Some(&(MESSAGES as u32 + 299)));
        let outbox = self::outbox(WhenFull::Spool);
        push(&outbox, QoS::AtLeastOnce, 0..MESSAGES as u32 - 1);
        assert!(!outbox.is_over_quota(Instant::now()));
        push(&outbox, QoS::AtLeastOnce, MESSAGES as u32 - 1..MESSAGES as u32);
        assert!(outbox.is_over_quota(Instant::now()));
        assert_eq!(taken(&outbox, usize::MAX), (0..MESSAGES as u32).collect::<Vec<_>>(), "nothing is lost");
    }
}
