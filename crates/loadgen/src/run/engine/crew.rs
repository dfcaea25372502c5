use serde::{Deserialize, Serialize};

use crate::run::{Layout, Plan};

/// The part of a run that one process does: client k of each kind is in process k mod `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// Number of the process.
    pub(crate) index: u32,
    /// Number of processes, at least 1.
    pub(crate) of: u32,
}

impl Slice {
    /// A run in one process.
    pub(crate) const ALL: Self = Self { index: 0, of: 1 };

    /// Whether number `number` is this process's.
    pub(super) fn has(self, number: u32) -> bool {
        number % self.of.max(1) == self.index
    }

    /// How many of the numbers below `count` are this process's.
    pub(super) fn count(self, count: u32) -> u32 {
        self.numbers(count).len() as u32
    }

    /// The numbers below `count` that are this process's.
    fn numbers(self, count: u32) -> impl ExactSizeIterator<Item = u32> {
        (self.index..count).step_by(self.of.max(1) as usize)
    }
}

/// The clients of one driver thread, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Crew {
    /// Subscribers that do nothing but take what comes, by their numbers in the layout.
    pub(super) sinks: Vec<u32>,
    /// Subscribers that process what comes, by their numbers in the layout.
    pub(super) workers: Vec<u32>,
    pub(super) publishers: Vec<u32>,
    /// Brokers whose Wills it counts.
    pub(super) will_brokers: Vec<u32>,
}

impl Crew {
    /// Connections that it has.
    pub(super) fn connections(&self) -> u64 {
        // A worker has a timer too.
        (self.sinks.len() + 2 * self.workers.len() + self.publishers.len() + self.will_brokers.len()) as u64
    }

    /// Of each thread: with one thread all together, with two subscribers and all others apart, with more all spread.
    pub(super) fn all(plan: &Plan, layout: &Layout, slice: Slice) -> Vec<Self> {
        let threads = usize::from(plan.threads.max(1));
        let mut crews = vec![Self::default(); threads];
        // What of `kind` comes after `place` others in this process.
        let home = |place: usize, kind: usize| if threads == 2 { kind } else { place % threads };
        let receivers = layout.receivers();
        for (place, number) in slice.numbers(receivers.len() as u32).enumerate() {
            let crew = &mut crews[home(place, 0)];
            let audience = &plan.audiences[receivers[number as usize].audience];
            if audience.work.is_some() { crew.workers.push(number) } else { crew.sinks.push(number) }
        }
        for (place, number) in slice.numbers(plan.publishers.count).enumerate() {
            crews[home(place, 1)].publishers.push(number);
        }
        // One process counts all of them.
        if plan.connection.will.is_some() && slice.index == 0 {
            crews[0].will_brokers = (0..plan.brokers.len() as u32).collect();
        }
        crews
    }
}
