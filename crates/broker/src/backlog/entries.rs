//! Offsets of the messages at the on-disk end of a backlog.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tenbin_store::spool::Sequence;

use crate::durable::{EntryRanges, PAGE_MESSAGES, WaitingEntries};
use crate::memory::{Account, Charge, Kind};
use crate::values::Bound;

/// Entries of the messages that are on disk only, as ranges of offsets.
///
/// A message at any other offset of the queue is in memory, or in flight.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// First and last offset of each range, in order; rarely more than one range.
    ranges: VecDeque<(u64, u64)>,
    messages: usize,
    /// Approximate bytes of message bodies.
    bytes: u64,
    /// Charge for the entries in memory, here and in the log's index; grows in steps.
    charge: Option<Charge>,
}

impl Entries {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Approximate disk bytes of its messages.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.bytes + self.messages as u64 * RECORD_BYTES
    }

    /// Charges `account` for the memory that the entries occupy now, even above its limits.
    pub(crate) fn charge_to(&mut self, account: impl FnOnce() -> Option<Arc<Account>>) {
        let bytes =
            (self.messages * ENTRY_BYTES + self.ranges.len() * size_of::<(u64, u64)>()) / STEP_BYTES * STEP_BYTES;
        if bytes == self.charge.as_ref().map_or(0, Charge::bytes) {
            return;
        }
        if self.charge.is_none() {
            self.charge = account().map(|account| Charge::nothing(&account, Kind::Backlog));
        }
        self.charge.iter_mut().for_each(|charge| charge.set(bytes));
    }

    /// Moves the charge to another account.
    pub(crate) fn move_to(&mut self, account: &Arc<Account>) {
        self.charge.iter_mut().for_each(|charge| charge.move_to(account));
    }

    /// The bound by which the account has no room for more messages.
    pub(crate) fn over_limit(&self) -> Option<Bound> {
        let charge = self.charge.as_ref().filter(|charge| charge.bytes() > 0)?;
        charge.bound_below(charge.bytes() + STEP_BYTES)
    }

    /// Adds a message, mostly behind the last one.
    pub(crate) fn add(&mut self, Sequence(sequence): Sequence, bytes: usize) {
        let at = self.behind(sequence);
        let next = self.ranges.get(at).map(|&(first, _)| first);
        if next.is_some_and(|first| first <= sequence) {
            return; // it is there already
        }
        let follows = at > 0 && self.ranges[at - 1].1 + 1 == sequence;
        match (follows, next == Some(sequence + 1)) {
            (true, true) => {
                self.ranges[at].0 = self.ranges[at - 1].0;
                self.ranges.remove(at - 1);
            }
            (true, false) => self.ranges[at - 1].1 = sequence,
            (false, true) => self.ranges[at].0 = sequence,
            (false, false) => self.ranges.insert(at, (sequence, sequence)),
        }
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    /// Adds all messages of `others`, whose charge ends.
    pub(crate) fn join(&mut self, others: Self) {
        let mut all: Vec<_> = self.ranges.drain(..).chain(others.ranges).collect();
        all.sort_unstable();
        for (first, last) in all {
            match self.ranges.back_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => self.ranges.push_back((first, last)),
            }
        }
        self.messages += others.messages;
        self.bytes += others.bytes;
    }

    /// Index of the range that contains this offset, or else of the next range behind it.
    fn behind(&self, sequence: u64) -> usize {
        self.ranges.partition_point(|&(_, last)| last < sequence)
    }

    /// The first entries, of one page of messages or more. Their messages may be gone from the disk.
    pub(crate) fn first_page(&self) -> EntryRanges {
        self.page_from(Sequence(0))
    }

    /// As [`Entries::first_page`], of entries from this offset on.
    pub(crate) fn page_from(&self, Sequence(from): Sequence) -> EntryRanges {
        let mut entries = 0;
        let is_wanted = |(first, last): &(u64, u64)| {
            let has_less = entries < PAGE_MESSAGES as u64;
            entries += last - first + 1;
            has_less
        };
        let ranges = self.ranges.range(self.behind(from)..).map(|&(first, last)| (first.max(from), last));
        ranges.take_while(is_wanted).map(|(first, last)| Sequence(first)..=Sequence(last)).collect()
    }

    /// Removes one message of `bytes` bytes that was read. Returns false if it is not here.
    pub(crate) fn take(&mut self, Sequence(sequence): Sequence, bytes: usize) -> bool {
        let at = self.behind(sequence);
        if self.ranges.get(at).is_none_or(|&(first, _)| first > sequence) {
            return false;
        }
        self.cut(at, sequence, sequence);
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        self.tidy();
        true
    }

    /// Removes the entries of these ranges up to `last`, as their messages are gone from the disk. `None`: all of them.
    pub(crate) fn remove(&mut self, ranges: &[RangeInclusive<Sequence>], last: Option<Sequence>) {
        for range in ranges {
            let (Sequence(from), end) = (range.start(), range.end());
            let Sequence(to) = last.map_or(*end, |last| last.min(*end));
            // A range that was asked for is in parts now, as its messages were taken.
            loop {
                let at = self.behind(*from);
                if *from > to || self.ranges.get(at).is_none_or(|&(first, _)| first > to) {
                    break;
                }
                self.cut(at, *from, to);
            }
        }
        self.tidy();
    }

    /// Removes the first entries below `end`, of at most `most` offsets, and returns their ranges.
    /// [`Entries::count_removed`] has to follow.
    pub(crate) fn take_below(&mut self, Sequence(end): Sequence, mut most: u64) -> Vec<RangeInclusive<Sequence>> {
        let mut taken = Vec::new();
        while let Some(&(first, last)) = self.ranges.front().filter(|(first, _)| *first < end && most > 0) {
            let last = last.min(end - 1).min(first.saturating_add(most - 1));
            most -= last - first + 1;
            self.cut(0, first, last);
            taken.push(Sequence(first)..=Sequence(last));
        }
        taken
    }

    /// Takes note that this number of messages of [`Entries::take_below`] was there, of average size.
    pub(crate) fn count_removed(&mut self, messages: usize) {
        let average = self.bytes / self.messages.max(1) as u64;
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(average * messages as u64);
        self.tidy();
    }

    /// Removes the part of one range that lies between these offsets.
    fn cut(&mut self, at: usize, first: u64, last: u64) {
        let Some((had_first, had_last)) = self.ranges.remove(at) else { return };
        if had_last > last {
            self.ranges.insert(at, (last + 1, had_last));
        }
        if had_first < first {
            self.ranges.insert(at, (had_first, first - 1));
        }
    }

    /// Resets the counters once nothing is left.
    fn tidy(&mut self) {
        if self.ranges.is_empty() {
            (self.messages, self.bytes) = (0, 0);
        }
    }

    /// Removes all messages.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.tidy();
    }
}

impl From<WaitingEntries> for Entries {
    fn from(WaitingEntries { ranges, messages, bytes }: WaitingEntries) -> Self {
        Self { ranges: ranges.into(), messages, bytes, charge: None }
    }
}

/// Least bytes of a record on disk beside the message's body.
const RECORD_BYTES: u64 = 64;
/// Bytes of memory in the log's index for each message of a queue.
const ENTRY_BYTES: usize = 8;
/// Step of the charge.
const STEP_BYTES: usize = 8 * 1024;

#[cfg(test)]
pub(super) mod tests;
