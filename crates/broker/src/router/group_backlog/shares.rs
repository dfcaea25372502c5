//! Room in a group backlog for each publisher: one that fills it does not shut out the others.
//!
//! A full backlog refuses only publishers that have much of it. The others have a quarter of the limit more, of which
//! each may take the same amount as it leaves free. So every publisher finds room that has little there.

use std::collections::BTreeMap;

use super::super::share_group::SharedGroup;
use super::Queued;
use crate::backlog::{Limits, Usage};

/// Estimated shares of publishers in a long backlog.
///
/// Messages leave it in any order, or unseen on disk. So additions are counted, and the shares of the backlog are
/// assumed to equal the shares of the additions. When twice as much was added as is there, all counts are halved.
#[derive(Debug, Default)]
pub(super) struct Shares(Option<Box<Added>>);

/// Messages that were added, in all and by publishers.
#[derive(Debug)]
struct Added {
    total: Usage,
    /// By the hash of the publisher, at most [`PUBLISHERS_MAX`].
    of: BTreeMap<u64, Usage>,
}

impl Shares {
    /// Counts a message that was added to a backlog of this usage.
    pub(super) fn add(&mut self, publisher: u64, bytes: usize, backlog: Usage) {
        let added = self.0.get_or_insert_with(|| Box::new(Added { total: backlog, of: BTreeMap::new() }));
        let one = Usage { bytes, messages: 1 };
        added.total = sum(added.total, one);
        if added.of.len() < PUBLISHERS_MAX || added.of.contains_key(&publisher) {
            let of = added.of.entry(publisher).or_default();
            *of = sum(*of, one);
        }
        if added.total.messages / 2 > backlog.messages + FEW {
            added.total = half(added.total);
            added.of.retain(|_, of| {
                *of = half(*of);
                of.messages > 0
            });
        }
    }

    /// Forgets all publishers, as the backlog is short.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Estimates how much of a backlog of this usage is the publisher's.
    fn of(&self, publisher: u64, backlog: Usage) -> Usage {
        let Some(added) = &self.0 else { return Usage::default() };
        let Some(of) = added.of.get(&publisher) else { return Usage::default() };
        let part = |of: usize, total: usize, backlog: usize| {
            (of as u128 * backlog as u128 / total.max(1) as u128).min(backlog as u128) as usize
        };
        Usage {
            bytes: part(of.bytes, added.total.bytes, backlog.bytes),
            messages: part(of.messages, added.total.messages, backlog.messages),
        }
    }

    /// Returns whether the publisher has less than half of an average share, and is not the only one.
    fn is_small(&self, publisher: u64, backlog: Usage) -> bool {
        let publishers = self.0.as_ref().map_or(0, |added| added.of.len());
        publishers > 1 && self.of(publisher, backlog).messages < backlog.messages / publishers / 2
    }
}

impl SharedGroup {
    /// Counts a message that waits, once the backlog is long enough for shares to matter.
    pub(super) fn count_share(&self, queued: &mut Queued, publisher: u64, bytes: usize) {
        let (backlog, limit) = self.usage(queued);
        let is_long = backlog.messages > limit.messages / LONG || backlog.bytes > limit.bytes / LONG;
        if is_long || queued.hold_beyond.is_some() {
            queued.shares.add(publisher, bytes, backlog);
        } else {
            queued.shares.clear();
        }
    }

    /// Returns whether a full backlog has room for another message of this publisher.
    pub(super) fn has_share(&self, queued: &Queued, publisher: u64) -> bool {
        let (backlog, limit) = self.usage(queued);
        let own = queued.shares.of(publisher, backlog);
        let has =
            |own: usize, backlog: usize, limit: usize| backlog < limit || own < widened(limit).saturating_sub(backlog);
        queued.spill.entries.over_limit().is_none()
            && has(own.messages, backlog.messages, limit.messages)
            && has(own.bytes, backlog.bytes, limit.bytes)
    }

    /// Returns whether a hold concerns the publisher: one with few of the waiting messages goes on.
    pub(super) fn holds_up(&self, queued: &Queued, publisher: u64) -> bool {
        queued.hold_beyond.is_none() || !queued.shares.is_small(publisher, self.usage(queued).0)
    }

    /// Returns the backlog's usage and its limit, on disk or in memory.
    fn usage(&self, queued: &Queued) -> (Usage, Usage) {
        let limits = &self.queues.limits;
        if self.is_stored() {
            let entries = &queued.spill.entries;
            let bytes = usize::try_from(entries.disk_bytes()).unwrap_or(usize::MAX);
            let limit = usize::try_from(limits.stored_bytes).unwrap_or(usize::MAX);
            return (Usage { bytes, messages: entries.messages() }, Usage { bytes: limit, messages: usize::MAX });
        }
        (queued.queue.usage(), limits.memory())
    }
}

/// Returns a limit with the room for publishers that have little of a full backlog.
pub(super) fn widened(limit: usize) -> usize {
    limit.saturating_add(limit / 4)
}

/// Returns the limits with that room.
pub(super) fn widened_limits(limits: &Limits) -> Limits {
    Limits { messages: widened(limits.messages), bytes: widened(limits.bytes), ..*limits }
}

fn sum(one: Usage, other: Usage) -> Usage {
    Usage { bytes: one.bytes.saturating_add(other.bytes), messages: one.messages.saturating_add(other.messages) }
}

fn half(usage: Usage) -> Usage {
    Usage { bytes: usage.bytes / 2, messages: usage.messages / 2 }
}

/// A backlog is long beyond this part of its limit.
const LONG: usize = 8;
/// Messages that a backlog may have without counts being halved.
const FEW: usize = 64;
/// Publishers that are counted; the shares of others are taken for small.
const PUBLISHERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(messages: usize) -> Usage {
        Usage { bytes: messages * 100, messages }
    }

    #[test]
    fn shares_follow_the_additions_of_late() {
        let mut shares = Shares::default();
        assert_eq!(shares.of(1, usage(50)), usage(0));
        (100..200).for_each(|messages| shares.add(1, 100, usage(messages)));
        (200..220).for_each(|messages| shares.add(2, 100, usage(messages)));
        // The publishers of the first 100 are unknown.
        assert_eq!([1, 2, 3].map(|publisher| shares.of(publisher, usage(220)).messages), [100, 20, 0]);
        assert_eq!(shares.of(1, usage(110)), usage(50));
        assert_eq!([1, 2, 3].map(|publisher| shares.is_small(publisher, usage(220))), [false, true, true]);
        // The backlog stays as long as it is: what left it is forgotten after a while.
        (0..2_000).for_each(|_| shares.add(3, 100, usage(220)));
        assert!([1, 2].iter().all(|publisher| shares.of(*publisher, usage(220)).messages < 20));
        assert!(shares.of(3, usage(220)).messages > 180);
    }

    #[test]
    fn number_of_counted_publishers_is_bounded() {
        let mut shares = Shares::default();
        (0..5_000).for_each(|publisher| shares.add(publisher, 100, usage(100_000)));
        assert_eq!(shares.0.unwrap().of.len(), PUBLISHERS_MAX);
    }
}
