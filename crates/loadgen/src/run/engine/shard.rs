use crate::run::{Doors, Layout, Plan, Slice};

/// Shard of one driver thread: its clients, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shard {
    /// Subscribers that only receive, by their numbers in the layout.
    pub(super) sinks: Vec<u32>,
    /// Subscribers that process messages, and those that are programs, by their numbers in the layout.
    pub(super) workers: Vec<u32>,
    pub(super) programs: Vec<u32>,
    pub(super) publishers: Vec<u32>,
    /// Brokers whose Will Messages the thread counts.
    pub(super) will_brokers: Vec<u32>,
}

impl Shard {
    /// Number of file descriptors that the connections need.
    pub(super) fn connections(&self) -> u64 {
        // A worker also has a timer, and a program two pipes.
        (self.sinks.len()
            + 2 * (self.workers.len() + self.programs.len())
            + self.publishers.len()
            + self.will_brokers.len()) as u64
    }

    /// Deals the clients of `slice` over threads.
    ///
    /// With one thread all clients are together. With two, subscribers and publishers are apart. With more, all are
    /// spread.
    pub(super) fn all(plan: &Plan, layout: &Layout, slice: Slice) -> Vec<Self> {
        let threads = usize::from(plan.threads.max(1));
        let mut shards = vec![Self::default(); threads];
        // Thread of a client with `place` earlier clients of its kind in this process; kind 0 is subscribers, 1
        // publishers.
        let thread_of = |place: usize, kind: usize| if threads == 2 { kind } else { place % threads };
        let receivers = layout.receivers();
        for (place, number) in slice.receivers(layout).into_iter().enumerate() {
            let shard = &mut shards[thread_of(place, 0)];
            let audience = &plan.audiences[receivers[number as usize].audience];
            match &audience.work {
                None => shard.sinks.push(number),
                Some(work) if work.program.is_empty() => shard.workers.push(number),
                Some(_) => shard.programs.push(number),
            }
        }
        for (place, number) in slice.publishers(plan).enumerate() {
            shards[thread_of(place, 1)].publishers.push(number);
        }
        // One process counts all Will Messages.
        if plan.connection.will.is_some() && slice.index == 0 {
            // In one system each broker has all of them.
            let brokers = if plan.doors == Doors::OneSystem { 1 } else { plan.brokers.len() as u32 };
            shards[0].will_brokers = (0..brokers).collect();
        }
        shards
    }
}
