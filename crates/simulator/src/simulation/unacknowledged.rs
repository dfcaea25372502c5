//! Messages that workers hold, and what the group does when they reject them or do not acknowledge them in time.

use std::collections::BTreeMap;

use crate::scenario::WorkQueue;

/// Figures of a worker that only the broker knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handling {
    /// Messages that it was sent, repeated ones included.
    pub(crate) sent: u64,
    /// Messages that it holds: it was sent them, and has neither acknowledged nor rejected them.
    held: u64,
    /// The most that it held at a time.
    pub(crate) held_most: u64,
    overdue: u32,
}

/// All messages of a run that workers hold, in a group with a [`WorkQueue`].
#[derive(Debug)]
pub(super) struct Unacknowledged {
    pub(super) queue: Option<WorkQueue>,
    /// Worker and message; whether it is overdue.
    held: BTreeMap<(u32, u32), bool>,
    /// Deliveries of each message.
    deliveries: Vec<u32>,
    pub(super) workers: Vec<Handling>,
}

impl Unacknowledged {
    pub(super) fn new(queue: Option<WorkQueue>, messages: usize, workers: usize) -> Self {
        let (deliveries, workers) = (vec![0; messages], vec![Handling::default(); workers]);
        Self { queue, held: BTreeMap::new(), deliveries, workers }
    }

    pub(super) fn deliveries(&self, message: u32) -> u32 {
        self.deliveries[message as usize]
    }

    pub(super) fn sent(&mut self, worker: u32, message: u32) {
        self.deliveries[message as usize] += 1;
        let of = &mut self.workers[worker as usize];
        of.sent += 1;
        if self.queue.is_some() && self.held.insert((worker, message), false).is_none() {
            of.held += 1;
            of.held_most = of.held_most.max(of.held);
        }
    }

    /// Takes an acknowledgement or rejection. Returns how many messages of the worker are overdue, if that changes; and whether
    /// the message is still the worker's.
    pub(super) fn answered(&mut self, worker: u32, message: u32) -> (Option<u32>, bool) {
        let of = &mut self.workers[worker as usize];
        match self.held.remove(&(worker, message)) {
            Some(is_overdue) => {
                of.held -= 1;
                of.overdue -= u32::from(is_overdue);
                (is_overdue.then_some(of.overdue), !is_overdue)
            }
            None => (None, true),
        }
    }

    /// Takes the end of the time for an acknowledgement. Returns how many messages of the worker are overdue, unless it has
    /// answered.
    pub(super) fn overdue(&mut self, worker: u32, message: u32) -> Option<u32> {
        let is_overdue = self.held.get_mut(&(worker, message)).filter(|is_overdue| !**is_overdue)?;
        *is_overdue = true;
        let of = &mut self.workers[worker as usize];
        of.overdue += 1;
        Some(of.overdue)
    }

    /// Forgets what a dead worker held.
    pub(super) fn died(&mut self, worker: u32) {
        self.held.retain(|(of, _), _| *of != worker);
        let of = &mut self.workers[worker as usize];
        (of.held, of.overdue) = (0, 0);
    }
}
