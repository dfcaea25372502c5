use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenbin_codec::{SharedFilter, TopicFilter};
use tenbin_store::spool::{QueueId, Sequence};
use tenbin_store::state::Table;

use super::queue::{QueueKind, StoredQueue};
use super::wall_clock::{WallClock, millis};
use super::{Changes, Durable, Ended};

/// Least age of the messages below an offset of a group's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownAge {
    pub(crate) age: Duration,
    pub(crate) end: Sequence,
}

/// Facts in the store about the messages that wait with a group.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct KnownWait {
    /// Seconds for which they wait, by the last rule with which the group stood; [`u32::MAX`] = for ever, `None` = it
    /// never stood.
    pub(crate) keep_seconds: Option<NonZeroU32>,
    /// Ages of messages of a standing group, the oldest first.
    pub(crate) ages: Vec<KnownAge>,
}

/// Record of a share group with a stored queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupRecord {
    /// Number of its queue.
    pub(super) queue: NonZeroU64,
    /// See [`KnownWait::keep_seconds`]. Stored as the first of `ages`, with an offset below all messages: so earlier
    /// versions can read it, and drop nothing by it.
    pub(super) keep_seconds: Option<NonZeroU32>,
    /// Pairs of a wall time and the offset above all messages that were published before. Only standing groups have
    /// some.
    ages: Vec<(u64, u64)>,
}

impl GroupRecord {
    fn encode(&self) -> Vec<u8> {
        let keep = self.keep_seconds.map(|seconds| (u64::from(seconds.get()), BELOW_ALL));
        let pairs = keep.into_iter().chain(self.ages.iter().copied()).flat_map(|(time, end)| [time, end]);
        [self.queue.get()].into_iter().chain(pairs).flat_map(u64::to_le_bytes).collect()
    }

    /// `None`: it is no such record.
    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let (numbers, rest) = value.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let queue = NonZeroU64::new(numbers.next()?)?;
        let (mut keep_seconds, mut ages) = (None, Vec::new());
        while let Some(time) = numbers.next() {
            match numbers.next()? {
                BELOW_ALL => keep_seconds = NonZeroU32::new(u32::try_from(time).unwrap_or(u32::MAX)),
                end => ages.push((time, end)),
            }
        }
        // Earlier versions did not store the time for which the messages of a standing group wait.
        keep_seconds = keep_seconds.or((!ages.is_empty()).then_some(NonZeroU32::MAX));
        rest.is_empty().then_some(Self { queue, keep_seconds, ages })
    }
}

impl Durable {
    /// The queue of a share group that stores its messages from now on, and the last run's facts about messages there.
    ///
    /// Call it before the first subscription to the group is stored. State is written in the order in which it changes,
    /// so that the group is durable when any of its subscriptions is.
    pub(crate) fn queue_of_group(&self, name: &SharedFilter) -> (Arc<StoredQueue>, KnownWait) {
        let key = key(name);
        let known = self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let GroupRecord { queue, keep_seconds, ages } = known.unwrap_or_else(|| {
            let record = GroupRecord { queue: self.next_number(), keep_seconds: None, ages: Vec::new() };
            self.state.put(Table::Meta, key.into(), record.encode().into());
            record
        });
        let clock = WallClock::now();
        let ages = ages.into_iter().map(|(time, end)| KnownAge { age: clock.since(time), end: Sequence(end) });
        let wait = KnownWait { keep_seconds, ages: ages.collect() };
        (StoredQueue::new(QueueKind::Group, queue, self.first_place()), wait)
    }

    /// Stores for how long messages of a group's queue wait, and their ages.
    pub(crate) fn keep_wait(&self, name: &SharedFilter, queue: &StoredQueue, wait: &KnownWait) {
        let Some(number) = NonZeroU64::new(queue.id().0) else { return };
        let clock = WallClock::now();
        let now = clock.to_wall(Some(clock.at()));
        let ages = wait.ages.iter().map(|known| (now.saturating_sub(millis(known.age)), known.end.0)).collect();
        let record = GroupRecord { queue: number, keep_seconds: wait.keep_seconds, ages };
        self.state.put(Table::Meta, key(name).into(), record.encode().into());
    }

    /// Names of the last run's groups that stood by a rule, have messages, and do not exist in this run so far.
    pub(crate) fn groups_without_rule(&self) -> Vec<SharedFilter> {
        let known = self.known_groups.lock().unwrap_or_else(PoisonError::into_inner);
        let left = known.iter().filter(|(_, record)| record.keep_seconds.is_some() && self.waiting_in(record) > 0);
        left.filter_map(|(key, _)| name(key)).collect()
    }

    /// Number of messages in the queue of a group of the last run.
    fn waiting_in(&self, record: &GroupRecord) -> usize {
        self.messages_in(QueueId(record.queue.get()))
    }

    /// Returns whether messages of a group's queue have not ended, those in flight included.
    pub(crate) fn has_messages(&self, queue: &StoredQueue) -> bool {
        self.messages_in(queue.id()) > 0
    }

    fn messages_in(&self, queue: QueueId) -> usize {
        self.spool.queue(queue).map_or(0, |queue| queue.waiting)
    }

    /// Ends the messages of these ranges of a queue, and returns their number.
    pub(crate) fn end_ranges(&self, cause: Ended, queue: &StoredQueue, ranges: Vec<RangeInclusive<Sequence>>) -> usize {
        let end = |first: u64, last: u64| {
            let mut log = self.spool.begin();
            log.without_hurry();
            log.acknowledge(queue.id(), Sequence(first)..=Sequence(last))
        };
        let mut ended = 0;
        for (Sequence(mut first), Sequence(last)) in ranges.into_iter().map(RangeInclusive::into_inner) {
            while first <= last {
                let part = end(first, last.min(first + ENDED_AT_ONCE - 1));
                ended += part;
                if part == 0 {
                    // A gap, which may be as wide as the offsets of a run.
                    ended += end(first, last);
                    break;
                }
                first += ENDED_AT_ONCE;
            }
        }
        self.ended.add(cause, ended);
        ended
    }

    /// Ends the group, and drops the messages in its queue.
    pub(crate) fn forget_group(&self, name: &SharedFilter, queue: &StoredQueue) {
        self.remove(Table::Meta, &key(name));
        self.end_queue(Ended::Group, queue);
    }

    /// Notes a group of the last run. Returns the number of its queue; `None`: the record has none.
    pub(super) fn know_group(&self, key: &[u8], value: &[u8]) -> Option<NonZeroU64> {
        let record = GroupRecord::decode(value)?;
        let queue = record.queue;
        self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), record);
        Some(queue)
    }

    /// Forgets the groups of the last run that no member, no rule and no earlier rule keeps. Returns the number of their
    /// messages.
    pub(super) fn forget_unknown_groups(&self, changes: &mut Changes) -> usize {
        let left = std::mem::take(&mut *self.known_groups.lock().unwrap_or_else(PoisonError::into_inner));
        let (groups, messages) = (left.len(), left.values().map(|record| self.waiting_in(record)).sum());
        left.into_keys().for_each(|key| changes.remove(Table::Meta, key));
        if messages > 0 {
            tracing::warn!(groups, messages, "share groups ended: the sessions of their members have ended");
        }
        messages
    }
}

/// Key of a group: ShareName and filter, as a subscription names them.
fn key(SharedFilter { share_name, filter }: &SharedFilter) -> Vec<u8> {
    [GROUP_KEY, share_name.text().as_bytes(), b"/", filter.as_bytes()].concat()
}

/// The group of a key.
pub(super) fn name(key: &[u8]) -> Option<SharedFilter> {
    let name = std::str::from_utf8(key.strip_prefix(GROUP_KEY)?).ok()?;
    TopicFilter::try_from(&format!("$share/{name}")[..]).ok()?.shared()
}

/// Offset below all messages.
const BELOW_ALL: u64 = 0;
/// Offsets whose messages end before other threads may append.
const ENDED_AT_ONCE: u64 = 1 << 14;
/// Prefix of the keys of groups.
pub(super) const GROUP_KEY: &[u8] = b"group ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_record_survives_its_encoding() {
        let queue = NonZeroU64::new(7).unwrap();
        let marks = vec![(1000, 5), (2000, 1 << 40)];
        for (keep_seconds, ages) in [(None, vec![]), (NonZeroU32::new(60), vec![]), (NonZeroU32::new(60), marks)] {
            let record = GroupRecord { queue, keep_seconds, ages };
            assert_eq!(GroupRecord::decode(&record.encode()), Some(record));
        }
        let plain = GroupRecord { queue, keep_seconds: None, ages: vec![] };
        assert_eq!(7_u64.to_le_bytes().as_slice(), plain.encode(), "as before");
        let earlier = [7_u64, 1000, 5].into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>();
        let decoded = GroupRecord::decode(&earlier).unwrap();
        assert_eq!((decoded.keep_seconds, decoded.ages), (Some(NonZeroU32::MAX), vec![(1000, 5)]), "for ever");
        for wrong in [&[][..], &[0; 8], &[1; 7], &[1; 16], &[1; 25]] {
            assert_eq!(GroupRecord::decode(wrong), None, "{wrong:?}");
        }
    }
}
