use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenbin_codec::SharedFilter;
use tenbin_store::spool::{QueueId, Sequence};
use tenbin_store::state::Table;

use super::queue::{QueueKind, StoredQueue};
use super::wall_clock::{WallClock, millis};
use super::{Changes, Durable};

/// Least age of the messages below an offset of a group's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownAge {
    pub(crate) age: Duration,
    pub(crate) end: Sequence,
}

/// Record of a share group with a stored queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupRecord {
    /// Number of its queue.
    pub(super) queue: NonZeroU64,
    /// Pairs of a wall time and the offset above all messages that were published before. Only standing groups have
    /// some.
    ages: Vec<(u64, u64)>,
}

impl GroupRecord {
    fn encode(&self) -> Vec<u8> {
        let ages = self.ages.iter().flat_map(|&(time, end)| [time, end]);
        [self.queue.get()].into_iter().chain(ages).flat_map(u64::to_le_bytes).collect()
    }

    /// `None`: it is no such record.
    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let (numbers, rest) = value.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let queue = NonZeroU64::new(numbers.next()?)?;
        let mut ages = Vec::new();
        while let Some(time) = numbers.next() {
            ages.push((time, numbers.next()?));
        }
        rest.is_empty().then_some(Self { queue, ages })
    }
}

impl Durable {
    /// The queue of a share group that stores its messages from now on, and the ages of messages there: those of the
    /// last run, if any.
    ///
    /// Call it before the first subscription to the group is stored. State is written in the order in which it changes,
    /// so that the group is durable when any of its subscriptions is.
    pub(crate) fn queue_of_group(&self, name: &SharedFilter) -> (Arc<StoredQueue>, Vec<KnownAge>) {
        let key = key(name);
        let known = self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let GroupRecord { queue, ages } = known.unwrap_or_else(|| {
            let record = GroupRecord { queue: self.next_number(), ages: Vec::new() };
            self.state.put(Table::Meta, key.into(), record.encode().into());
            record
        });
        let clock = WallClock::now();
        let ages = ages.into_iter().map(|(time, end)| KnownAge { age: clock.since(time), end: Sequence(end) });
        (StoredQueue::new(QueueKind::Group, queue, self.first_place()), ages.collect())
    }

    /// Stores the ages of messages in a group's queue.
    pub(crate) fn keep_ages(&self, name: &SharedFilter, queue: &StoredQueue, ages: &[KnownAge]) {
        let Some(number) = NonZeroU64::new(queue.id().0) else { return };
        let clock = WallClock::now();
        let now = clock.to_wall(Some(clock.at()));
        let ages = ages.iter().map(|known| (now.saturating_sub(millis(known.age)), known.end.0)).collect();
        self.state.put(Table::Meta, key(name).into(), GroupRecord { queue: number, ages }.encode().into());
    }

    /// Ends the messages of these ranges of a queue, and returns their number.
    pub(crate) fn end_ranges(&self, queue: &StoredQueue, ranges: Vec<RangeInclusive<Sequence>>) -> usize {
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
        ended
    }

    /// Ends the group, and drops the messages in its queue.
    pub(crate) fn forget_group(&self, name: &SharedFilter, queue: &StoredQueue) {
        self.remove(Table::Meta, &key(name));
        self.end_queue(queue);
    }

    /// Notes a group of the last run. Returns the number of its queue; `None`: the record has none.
    pub(super) fn know_group(&self, key: &[u8], value: &[u8]) -> Option<NonZeroU64> {
        let record = GroupRecord::decode(value)?;
        let queue = record.queue;
        self.known_groups.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), record);
        Some(queue)
    }

    /// Forgets the groups of the last run that have no member any more, and that no rule keeps. Returns the number of
    /// their messages.
    pub(super) fn forget_unknown_groups(&self, changes: &mut Changes) -> usize {
        let left = std::mem::take(&mut *self.known_groups.lock().unwrap_or_else(PoisonError::into_inner));
        let waiting =
            |record: &GroupRecord| self.spool.queue(QueueId(record.queue.get())).map_or(0, |queue| queue.waiting);
        let (groups, messages) = (left.len(), left.values().map(waiting).sum());
        left.into_keys().for_each(|key| changes.remove(Table::Meta, key));
        if messages > 0 {
            tracing::warn!(groups, messages, "share groups ended: they have no member, and no rule keeps them");
        }
        messages
    }
}

/// Key of a group: ShareName and filter, as a subscription names them.
fn key(SharedFilter { share_name, filter }: &SharedFilter) -> Vec<u8> {
    [GROUP_KEY, share_name.text().as_bytes(), b"/", filter.as_bytes()].concat()
}

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
        for ages in [vec![], vec![(1000, 5), (2000, 1 << 40)]] {
            let record = GroupRecord { queue, ages };
            assert_eq!(GroupRecord::decode(&record.encode()), Some(record));
        }
        assert_eq!(7_u64.to_le_bytes().as_slice(), GroupRecord { queue, ages: vec![] }.encode(), "as before");
        for wrong in [&[][..], &[0; 8], &[1; 7], &[1; 16], &[1; 25]] {
            assert_eq!(GroupRecord::decode(wrong), None, "{wrong:?}");
        }
    }
}
