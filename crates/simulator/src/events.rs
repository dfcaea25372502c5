//! Events in virtual time, in order.

use std::{cmp::Ordering, collections::BinaryHeap};

use tenbin_balancer::Nanos;

/// Pending events, earliest first. Events of one instant are in the order of scheduling.
#[derive(Debug)]
pub(crate) struct Events<E> {
    heap: BinaryHeap<Scheduled<E>>,
    scheduled: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0 }
    }

    /// Schedules `event` at `at`, which must not be before the last event.
    pub(crate) fn schedule(&mut self, at: Nanos, event: E) {
        self.scheduled += 1;
        self.heap.push(Scheduled { at, number: self.scheduled, event });
    }

    /// Removes the next event, and returns it with its time.
    pub(crate) fn next(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|scheduled| (scheduled.at, scheduled.event))
    }
}

impl<E> Ord for Scheduled<E> {
    /// Reversed, since the heap yields its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Scheduled<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_as_scheduled() {
        let mut events = Events::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            events.schedule(Nanos(at), event);
        }
        let order: String = std::iter::from_fn(|| events.next()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcd");
    }
}
