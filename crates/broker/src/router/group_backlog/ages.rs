//! How long messages have waited with a standing group.
//!
//! A mark is set each sixteenth of the longest wait. Messages published before it are at least as old as the mark: they
//! go together when it is that old. So nothing is stored with each message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tenbin_codec::SharedFilter;
use tenbin_session::Delivery;

use super::Queued;
use crate::durable::{Durable, Ended, KnownAge, KnownWait, Location, Sequence, StoredQueue};
use crate::router::share_group::{SharedGroup, beginning};

/// Marks in a standing group's backlog, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ages(VecDeque<Mark>);

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Its age at `since`, which may be a time of the last run.
    age: Duration,
    since: Instant,
    /// Offset above the offsets of all stored messages that are older than the mark; 0 without a store.
    end: Sequence,
    /// Number of the next message in memory, which tells without a store which messages are older.
    added: u64,
}

impl Mark {
    fn age_at(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.since)
    }
}

impl Ages {
    /// Returns the newest mark older than `longest`, and removes all before it. It stays, so that an idle group sets no
    /// other.
    fn overdue(&mut self, longest: Duration, now: Instant) -> Option<Mark> {
        let overdue = self.0.partition_point(|mark| mark.age_at(now) >= longest);
        self.0.drain(..overdue.saturating_sub(1));
        self.0.front().copied().filter(|_| overdue > 0)
    }

    /// Returns the marks as the store keeps them.
    fn to_known(&self, now: Instant) -> Vec<KnownAge> {
        self.0.iter().map(|mark| KnownAge { age: mark.age_at(now), end: mark.end }).collect()
    }
}

impl Queued {
    /// Removes the messages in memory that are older than the mark. Without a store, the age of a message that a member
    /// gave back is unknown: it counts as new.
    fn take_older(&mut self, mark: Mark, is_stored: bool) -> Vec<Delivery> {
        self.queue.remove_where(|number, delivery| match delivery.location() {
            Some(Location::Group(sequence)) => Sequence(sequence) < mark.end,
            _ => !is_stored && number < mark.added, // or else the disk had no room for it
        })
    }
}

impl Queued {
    /// Drops the first messages on disk that are older than the mark, and returns their number; 0 = there are none.
    fn drop_some(&mut self, durable: &Durable, queue: &StoredQueue, mark: Mark) -> usize {
        let mut most = DROPPED_AT_ONCE;
        loop {
            let ranges = self.spill.entries.take_below(mark.end, most);
            if ranges.is_empty() {
                return 0;
            }
            let dropped = durable.end_ranges(Ended::Expired, queue, ranges);
            self.spill.entries.count_removed(dropped);
            if dropped > 0 {
                return dropped;
            }
            most = most.saturating_mul(2); // a gap, which may be as wide as the offsets of a run
        }
    }
}

impl SharedGroup {
    /// Restores the ages of messages of the last run.
    pub(in super::super) fn restore_ages(&self, ages: Vec<KnownAge>) {
        let since = Instant::now();
        let marks = ages.into_iter().map(|KnownAge { age, end }| Mark { age, since, end, added: 0 });
        self.change_queued(|queued| queued.ages = Ages(marks.collect()));
    }

    /// Sets a mark if that is due, and stores all of them. Under the lock of the index's writers, under which the group
    /// ends.
    pub(in super::super) fn mark_age(&self, now: Instant) {
        let Some(longest) = self.longest_wait() else { return };
        let queue = self.stored();
        let is_due = self.change_queued(|queued| {
            let mark = Mark {
                age: Duration::ZERO,
                since: now,
                end: queue.as_ref().map_or(Sequence(0), |queue| queue.end()),
                added: queued.queue.next_number(),
            };
            let is_due = queued.ages.0.back().is_none_or(|last| {
                let has_new = if queue.is_some() { last.end < mark.end } else { last.added < mark.added };
                has_new && last.age_at(now) >= longest / MARKS
            });
            if is_due {
                queued.ages.0.push_back(mark);
            }
            is_due
        });
        if is_due {
            self.store_wait(now);
        }
    }

    /// Stores for how long messages wait, and their ages. Under the lock of the index's writers, as above.
    pub(in super::super) fn store_wait(&self, now: Instant) {
        if let Some((durable, queue)) = self.queues.durable.as_ref().zip(self.stored()) {
            let ages = self.change_queued(|queued| queued.ages.to_known(now));
            durable.keep_wait(self.name(), &queue, &KnownWait { keep_seconds: self.keep_seconds(), ages });
        }
    }

    /// Drops and counts some messages that have waited too long, and returns whether there may be more. Publishers wait
    /// for the lock in between.
    pub(in super::super) fn drop_overdue(self: &Arc<Self>, now: Instant) -> bool {
        let Some(longest) = self.longest_wait() else { return false };
        let store = self.queues.durable.as_ref().zip(self.stored());
        let (dropped, has_more) = self.change_queued(|queued| {
            let Some(mark) = queued.ages.overdue(longest, now) else { return (0, false) };
            let older = queued.take_older(mark, store.is_some());
            let mut on_disk = 0;
            if let Some((durable, queue)) = &store {
                durable.end(Ended::Expired, older.iter().filter_map(|delivery| queue.place_of(delivery.stored)));
                on_disk = queued.drop_some(durable, queue, mark);
            }
            self.queues.metrics.dropped_expired.add((older.len() + on_disk) as u64);
            queued.overdue += older.len() + on_disk;
            (if on_disk > 0 { 0 } else { std::mem::take(&mut queued.overdue) }, on_disk > 0)
        });
        if dropped > 0 {
            let SharedFilter { share_name, filter } = self.name();
            let (share_name, filter) = (beginning(share_name.text().as_str()), beginning(filter.text().as_str()));
            tracing::warn!(share_name, filter, dropped, "messages have waited too long with the share group");
            // Members may have waited for the next page of the on-disk backlog.
            let now = self.queues.clock.moment(now);
            self.dispatch_waiting(now, &mut Rng::new(now.nanos.0));
        }
        has_more
    }
}

/// Offsets whose messages are dropped under one lock.
const DROPPED_AT_ONCE: u64 = 1 << 14;

/// Marks in the longest wait: messages go at most one part of it later.
const MARKS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenbin_balancer::Policy;
    use tenbin_codec::QoS;
    use tenbin_store::Sync;

    use super::super::super::share_group::tests::{Stage, payloads};
    use super::*;
    use crate::values::GroupRules;

    /// A standing group without members, with or without a store. A mark is due every ten seconds.
    struct Standing {
        stage: Stage,
        _directory: tempfile::TempDir,
    }

    impl Standing {
        fn new(has_store: bool) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let open = || Arc::new(Durable::open(directory.path(), Sync::Never, 0).unwrap());
            let stage = Stage::with(has_store.then(open));
            let keep_seconds = NonZeroU32::new(160);
            stage.group.set_rules(GroupRules { keep_seconds, ..Policy::RoundRobin.into() });
            Self { stage, _directory: directory }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.stage.now.at + Duration::from_secs(seconds)
        }

        /// Publishes a message of 10,000 bytes, so that memory has room for six with a store.
        fn publish(&self, number: usize) {
            let payload = format!("{number} {}", "x".repeat(10_000));
            self.stage.waits(self.stage.published_as(payload, QoS::AtLeastOnce));
        }

        /// Sets a mark if it is due, and drops messages that are too old. Returns the number of the others.
        fn look(&self, seconds: u64) -> usize {
            self.stage.group.mark_age(self.at(seconds));
            while self.stage.group.drop_overdue(self.at(seconds)) {}
            self.stage.group.waiting()
        }

        fn dropped(&self) -> u64 {
            self.stage.group.queues.metrics.snapshot().dropped_expired
        }
    }

    #[test]
    fn messages_go_when_they_have_waited_too_long() {
        for has_store in [false, true] {
            let standing = Standing::new(has_store);
            (0..20).for_each(|number| standing.publish(number));
            assert_eq!(standing.look(0), 20);
            (20..25).for_each(|number| standing.publish(number));
            assert_eq!([standing.look(9), standing.look(10)], [25, 25], "store {has_store}");
            standing.publish(25);
            assert_eq!([standing.look(159), standing.look(160), standing.look(170)], [26, 6, 1], "store {has_store}");
            assert_eq!(standing.dropped(), 25);
            let member = standing.stage.member(1, QoS::AtLeastOnce, false);
            member.attach(u32::MAX, None);
            let mut taken = Vec::new();
            while taken.is_empty() {
                standing.stage.group.dispatch_waiting(standing.stage.now, &mut Rng::new(1)); // its page is read in between
                taken = payloads(&member);
            }
            assert_eq!(taken.len(), 1);
            assert!(taken[0].starts_with("25 "), "store {has_store}");
        }
    }

    /// Publishers wait for the lock, so it is held for a part of the messages.
    #[test]
    fn many_overdue_messages_go_in_slices() {
        let standing = Standing::new(true);
        let messages = 2 * DROPPED_AT_ONCE as usize + 5_000;
        let one = standing.stage.published_as("x".repeat(100), QoS::AtLeastOnce);
        (0..messages).for_each(|_| standing.stage.waits(one.clone()));
        standing.stage.group.mark_age(standing.at(0));
        let (mut slices, mut left) = (0, standing.stage.group.waiting());
        assert_eq!(left, messages);
        while standing.stage.group.drop_overdue(standing.at(160)) {
            let before = std::mem::replace(&mut left, standing.stage.group.waiting());
            assert!(before - left <= DROPPED_AT_ONCE as usize + 1_000, "{before} {left}");
            slices += 1;
        }
        assert_eq!((slices, left, standing.dropped()), (3, 0, messages as u64));
    }

    #[test]
    fn message_given_back_is_as_old_as_the_store_tells() {
        for has_store in [false, true] {
            let standing = Standing::new(has_store);
            let delivery = standing.stage.group.kept(standing.stage.published_as("x", QoS::AtLeastOnce));
            assert_eq!(standing.look(0), 0);
            standing.publish(1);
            assert_eq!(standing.look(100), 1);
            standing.stage.group.give_to_others(std::iter::once(delivery), standing.stage.now, &mut Rng::new(1));
            assert_eq!(standing.look(110), 2);
            let left = if has_store { 1 } else { 2 };
            assert_eq!(standing.look(160), left, "store {has_store}");
            assert_eq!(standing.look(280), 0, "store {has_store}");
        }
    }

    #[test]
    fn former_rule_drops_nothing_of_a_group_with_members() {
        for has_store in [false, true] {
            let standing = Standing::new(has_store);
            let group = &standing.stage.group;
            standing.publish(0);
            assert_eq!(standing.look(0), 1);
            let _away = standing.stage.member(1, QoS::AtLeastOnce, false);
            group.set_rules(Policy::RoundRobin.into());
            standing.publish(1);
            assert_eq!([standing.look(10), standing.look(1_000)], [2, 2], "store {has_store}");
            group.leave(1);
            assert_eq!([standing.look(1_001), standing.look(1_160)], [1, 1], "store {has_store}");
            assert_eq!(standing.look(1_161), 0, "store {has_store}");
        }
    }

    #[test]
    fn messages_kept_for_ever_have_no_marks() {
        let standing = Standing::new(true);
        let keep_seconds = NonZeroU32::new(u32::MAX);
        standing.stage.group.set_rules(GroupRules { keep_seconds, ..Policy::RoundRobin.into() });
        standing.publish(0);
        assert_eq!([standing.look(0), standing.look(1_000_000_000)], [1, 1]);
        assert!(standing.stage.group.backlog.lock().ages.0.is_empty());
    }
}
