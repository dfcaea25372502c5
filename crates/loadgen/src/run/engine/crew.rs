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

    /// The numbers below `count` that are this process's.
    fn numbers(self, count: u32) -> impl Iterator<Item = u32> {
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
    /// Connections that do nothing but be there.
    pub(super) idle: Vec<u32>,
}

impl Crew {
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
        for (place, number) in slice.numbers(plan.idle.map_or(0, |idle| idle.count)).enumerate() {
            crews[home(place, 1)].idle.push(number);
        }
        crews
    }
}
