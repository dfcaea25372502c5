//! Causes for which stored messages end, and their counters.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Place;

/// Why a stored message ends. The log of messages forgets one for no other reason; `docs/admin.md` has the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its receiver has acknowledged or refused it, or got it at QoS 0.
    Delivered,
    /// Its expiry is over, or the `keep_seconds` of its share group.
    Expired,
    /// It exceeds the receiver's Maximum Packet Size.
    TooLarge,
    /// A limit refuses it, and its publisher learns of it.
    Refused,
    /// It is in memory, for a receiver whose session ends with the connection, or of QoS 0.
    InMemory,
    /// It is a dead letter now, or was dropped in place of that.
    DeadLetter,
    /// It was a dead letter, and its original is published again.
    Replayed,
    /// Its receiver's session has ended.
    Session,
    /// The last member has left its share group, which no rule keeps.
    Group,
    /// Its session had ended at the start: it expired while no broker ran, or a crash came before the end of its queue.
    Ownerless,
    /// Another message in flight has its Packet Identifier, as only damage can leave it.
    Damaged,
    /// An operator has removed it, its session or its share group.
    Pruned,
}

impl Ended {
    pub(crate) const ALL: [Self; 12] = [
        Self::Delivered,
        Self::Expired,
        Self::TooLarge,
        Self::Refused,
        Self::InMemory,
        Self::DeadLetter,
        Self::Replayed,
        Self::Session,
        Self::Group,
        Self::Ownerless,
        Self::Damaged,
        Self::Pruned,
    ];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::Refused => "refused",
            Self::InMemory => "in_memory",
            Self::DeadLetter => "dead_letter",
            Self::Replayed => "replayed",
            Self::Session => "session_ended",
            Self::Group => "group_ended",
            Self::Ownerless => "ownerless",
            Self::Damaged => "damaged",
            Self::Pruned => "pruned",
        }
    }
}

/// Entries that have ended and still have to be appended to the log, each with its cause.
#[derive(Debug, Default)]
pub(crate) struct EndedEntries(Vec<(Place, Ended)>);

impl EndedEntries {
    #[inline]
    pub(super) fn push(&mut self, cause: Ended, place: Place) {
        self.0.push((place, cause));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts all entries, and takes them out.
    pub(super) fn take(&mut self, counters: &EndCounters) -> impl Iterator<Item = Place> {
        for entries in self.0.chunk_by(|one, other| one.1 == other.1) {
            counters.add(entries[0].1, entries.len());
        }
        self.0.drain(..).map(|(place, _)| place)
    }
}

/// Counters of ended messages since the start. Relaxed.
#[derive(Debug, Default)]
pub(super) struct EndCounters([AtomicU64; Ended::ALL.len()]);

impl EndCounters {
    pub(super) fn add(&self, cause: Ended, messages: usize) {
        if messages > 0 {
            self.0[cause as usize].fetch_add(messages as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, cause: Ended) -> u64 {
        self.0[cause as usize].load(Ordering::Relaxed)
    }
}
