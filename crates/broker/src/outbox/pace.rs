//! What a slow receiver's queue does otherwise, and what is seen of it from outside: see `health`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenbin_balancer::Availability;
use tenbin_session::Delivery;
use tenbin_store::spool::Sequence;

use super::health::{Bounds, Pace, SOFT_FLOOR_BYTES, Sample};
use super::passing::Passed;
use super::queue::HEAD_BYTES;
use super::{Outbox, OutboxLimits, State, WhenFull, tail};
use crate::durable::{Stored, StoredQueue, bytes_of};

/// How a queue behaves now.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Behaviour {
    pub(super) pace: Pace,
    /// While the receiver is slow: bytes in memory at most, but for what is under way.
    pub(super) slow_bytes: usize,
}

impl Behaviour {
    pub(super) fn is_spooling(self) -> bool {
        self.pace == Pace::Spooling
    }

    /// What holds for messages that are not on disk, of a receiver that is slow.
    pub(super) fn slow_limits(self, limits: &OutboxLimits) -> OutboxLimits {
        OutboxLimits { bytes: self.slow_bytes.min(limits.bytes), ..*limits }
    }
}

impl Outbox {
    /// Receiver: whether it is to be watched from now on, which it was not: it cannot be sent more, or much is left.
    #[inline]
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Whether much is left in the queue though the receiver takes from it; a hint.
    #[inline]
    pub(crate) fn lags(&self) -> bool {
        self.lags.load(Ordering::Relaxed)
    }

    /// Ends the watch, if there is no reason for it any more; whether that is so.
    pub(crate) fn end_watch(&self) -> bool {
        let state = self.state();
        let is_blocked = state.attached && (state.socket_blocked || state.quota_blocked);
        let is_quiet = state.queue.bytes() < QUIET_BYTES && state.tail.is_none() && !is_blocked;
        let is_normal = state.behaviour.pace == Pace::Normal;
        let ends = !state.attached || (is_quiet && is_normal);
        if ends {
            // Under the lock: who is blocked after this announces it again.
            self.is_watched.store(false, Ordering::Relaxed);
            self.lags.store(false, Ordering::Relaxed);
        }
        ends
    }

    /// What there is to see now, and of which connection; `None`: there is none.
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

    /// What one receiver may have waiting, for now.
    pub(crate) fn bounds(&self) -> Bounds {
        let limits = &self.common.limits;
        Bounds { bytes: limits.bytes, messages: limits.messages, free_bytes: self.common.budget.free() }
    }

    /// The receiver goes on at this pace; `soft`: bytes that may wait for it. Whether that could be done: messages may have
    /// come since [`Outbox::sample`], or it may have gone, and then nothing changes.
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
        // A disk that was behind then may not be now.
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
        // Its groups may have kept messages.
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Whether what waits for this receiver can go to disk, or will be able to when it is slow. Without a disk, and where that
    /// was behind when it became slow, it cannot.
    pub(super) fn may_spool(&self, is_spooling: bool) -> bool {
        self.common.limits.has_store && (self.disk().is_some() || (!is_spooling && !self.is_disk_behind()))
    }

    /// From now on memory has the head alone. What is behind it is on disk, or goes there.
    fn begin_spooling(&self, connection: u32, soft: usize) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.attached || state.connection != connection || state.closed {
            return false;
        }
        // Where the disk takes no more, what is not there yet stays in memory, as without one.
        let can_write = self.make_disk().is_some();
        state.behaviour = Behaviour { pace: Pace::Spooling, slow_bytes: slow_bytes(soft) };
        self.load.set_availability(Availability::Full);
        let mut passed = Passed::default();
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

    /// What is behind the head goes to the tail. What is returned has got a place, and is to be written there: the tail is
    /// not read until then. `can_write`: else only what is there already goes.
    fn give_rest_to_tail(&self, state: &mut State, queue: Arc<StoredQueue>, can_write: bool) -> Passed {
        let has_tail = State::has_tail(state.tail.as_deref());
        let room = state.tail.as_ref().map_or(0..0, |tail| tail.before.clone());
        let unplaced = |delivery: &Delivery| {
            delivery.stored.is_none() && delivery.share.is_none() && self.passes(&queue, delivery)
        };
        state.queue.split_runs();
        let sizes = state.queue.iter().filter(|delivery| unplaced(delivery)).map(bytes_of);
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more));
        let can_write = can_write && (!has_tail || room.end - room.start >= count);
        let mut passed = Passed::of(Arc::clone(&queue));
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
            tail.stop_reading(); // what is being read is behind it
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
            queue.begin_passing(); // what is on its way with a place is behind these, and gets another
        }
        passed
    }
}

/// Bytes in memory of a slow receiver whose `soft` limit this is: the head, and so much beside it.
fn slow_bytes(soft: usize) -> usize {
    soft.max(SOFT_FLOOR_BYTES) + HEAD_BYTES
}

/// Who has less than this waiting need not be looked at.
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

    /// There is room for so many, and for more bytes than they have.
    const MESSAGES: usize = 600;

    /// Messages of about 1 KB.
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
    fn who_is_watched_gets_shared_work_only_if_nobody_else_can_until_it_keeps_up() {
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
    fn of_qos_0_a_slow_receiver_has_the_newest_or_the_oldest_or_is_told_to_go() {
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
    fn qos_1_of_a_slow_receiver_is_not_dropped_while_there_is_room() {
        let outbox = outbox(WhenFull::DropOldest);
        assert!(outbox.set_pace(1, Pace::Spooling, 0));
        push(&outbox, QoS::AtLeastOnce, 0..500);
        assert_eq!(taken(&outbox, usize::MAX), (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn who_cannot_spool_has_the_newest_of_qos_0_and_qos_1_is_refused_at_the_limit() {
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
