//! Work queue of a simulated worker.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::run::timeline::{Slot, Timeline};

/// Messages that a worker has queued, is processing, or has finished but not yet acknowledged.
///
/// A message's times of start and end are known on arrival, as the worker takes messages in that order. So times are
/// exact however late the thread wakes, and a late wake-up delays no later message.
///
/// ```text
/// left │ done  in progress  done  in progress │ wait  wait  wait │ ◄── arrive
///        ▲ the next to leave: in the order of arrival, as MQTT requires of acknowledgements
/// ```
pub(super) struct WorkQueue<T> {
    timeline: Timeline,
    messages: VecDeque<QueuedMessage<T>>,
    /// Number of `messages`, from the front, that the worker has taken.
    taken: usize,
    /// Number of messages that left the queue, which is the number of the first of `messages`.
    left: u64,
    /// End times and numbers of the messages in processing; the earliest on top.
    in_progress: BinaryHeap<Reverse<(u64, u64)>>,
}

/// An event of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueStep<T> {
    /// The worker takes the message out of its queue.
    Taken {
        /// When the message was due, if its payload says so.
        due_ns: Option<u64>,
        taken_ns: u64,
    },
    /// The worker has finished the message.
    Finished { took_ns: u64, finished_ns: u64 },
    /// The worker has finished this message and all that arrived before it.
    Left {
        what: T,
        slot: Slot,
        /// When the thread noticed that the worker takes it: later than by the slot, as timers are late.
        observed_ns: u64,
    },
}

struct QueuedMessage<T> {
    slot: Slot,
    due_ns: Option<u64>,
    observed_ns: u64,
    is_done: bool,
    what: T,
}

impl<T> WorkQueue<T> {
    pub(super) fn new(timeline: Timeline) -> Self {
        Self { timeline, messages: VecDeque::new(), taken: 0, left: 0, in_progress: BinaryHeap::new() }
    }

    /// Adds a message. `number` seeds its service time.
    pub(super) fn arrive(&mut self, what: T, number: u64, due_ns: Option<u64>, received_ns: u64) {
        let slot = self.timeline.take(number, received_ns, received_ns);
        self.messages.push_back(QueuedMessage { slot, due_ns, observed_ns: 0, is_done: false, what });
    }

    /// Number of messages that have not left the queue.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Number of messages that are not finished.
    pub(super) fn unfinished(&self) -> usize {
        self.messages.iter().filter(|message| !message.is_done).count()
    }

    /// Time of the next event.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let taken = self.messages.get(self.taken).map(|message| message.slot.taken_ns);
        let finished = self.in_progress.peek().map(|Reverse((finished_ns, _))| *finished_ns);
        taken.into_iter().chain(finished).min()
    }

    /// Reports all events up to `now_ns`, in order.
    pub(super) fn catch_up(&mut self, now_ns: u64, mut happens: impl FnMut(QueueStep<T>)) {
        while self.next_ns().is_some_and(|at| at <= now_ns) {
            let finished = self.in_progress.peek().map_or(u64::MAX, |Reverse((finished_ns, _))| *finished_ns);
            match self.messages.get_mut(self.taken) {
                // At the same instant, finish first: it makes room for the message that is taken.
                Some(message) if message.slot.taken_ns < finished => {
                    let Slot { taken_ns, finished_ns } = message.slot;
                    message.observed_ns = now_ns;
                    happens(QueueStep::Taken { due_ns: message.due_ns, taken_ns });
                    self.in_progress.push(Reverse((finished_ns, self.left + self.taken as u64)));
                    self.taken += 1;
                }
                _ => self.finish(&mut happens),
            }
        }
    }

    fn finish(&mut self, happens: &mut impl FnMut(QueueStep<T>)) {
        let Some(Reverse((finished_ns, number))) = self.in_progress.pop() else { return };
        let message = &mut self.messages[(number - self.left) as usize];
        message.is_done = true;
        happens(QueueStep::Finished { took_ns: finished_ns - message.slot.taken_ns, finished_ns });
        while let Some(message) = self.messages.pop_front_if(|message| message.is_done) {
            self.taken -= 1;
            self.left += 1;
            let QueuedMessage { slot, observed_ns, what, .. } = message;
            happens(QueueStep::Left { what, slot, observed_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenbin_simulator::Span;
    use tenbin_simulator::scenario::{self, WorkerKind};

    use super::QueueStep::{Finished, Left, Taken};
    use super::*;
    use crate::run::timeline::Speed;

    const MS: u64 = 1_000_000;

    fn queue(slots: u32) -> WorkQueue<u32> {
        WorkQueue::new(Timeline::parallel(Speed::steady(Duration::from_millis(25)), slots))
    }

    /// The end of a message; its times do not matter.
    fn left(what: u32) -> QueueStep<u32> {
        Left { what, slot: Slot { taken_ns: 0, finished_ns: 0 }, observed_ns: 0 }
    }

    /// All events up to `until_ms`, in milliseconds.
    fn happens(queue: &mut WorkQueue<u32>, until_ms: u64) -> Vec<QueueStep<u32>> {
        let mut steps = Vec::new();
        queue.catch_up(until_ms * MS, |step| {
            steps.push(match step {
                Taken { due_ns, taken_ns } => Taken { due_ns, taken_ns: taken_ns / MS },
                Finished { took_ns, finished_ns } => Finished { took_ns: took_ns / MS, finished_ns: finished_ns / MS },
                Left { what, .. } => left(what),
            });
        });
        steps
    }

    #[test]
    fn a_late_wake_up_delays_nothing() {
        let mut queue = queue(1);
        for message in 0..3 {
            queue.arrive(message, 0, Some(1), 10 * MS);
        }
        assert_eq!(queue.next_ns(), Some(10 * MS));
        let taken = |taken_ns| Taken { due_ns: Some(1), taken_ns };
        let finished = |finished_ns| Finished { took_ns: 25, finished_ns };
        assert_eq!(happens(&mut queue, 59), [taken(10), finished(35), left(0), taken(35)]);
        assert_eq!(queue.next_ns(), Some(60 * MS));
        assert_eq!(happens(&mut queue, 1000), [finished(60), left(1), taken(60), finished(85), left(2)]);
        assert_eq!((queue.next_ns(), queue.len()), (None, 0));
    }

    #[test]
    fn message_finished_early_leaves_after_earlier_ones() {
        let mut queue = WorkQueue::new(Timeline::parallel(step_down(), 2));
        for message in 0..3 {
            queue.arrive(message, 0, None, u64::from(message) * MS);
        }
        let left = |queue: &mut WorkQueue<u32>, until_ms| {
            let steps = happens(queue, until_ms).into_iter();
            steps.filter_map(|step| if let Left { what, .. } = step { Some(what) } else { None }).collect::<Vec<_>>()
        };
        assert!(left(&mut queue, 99).is_empty());
        assert_eq!((queue.len(), queue.unfinished()), (3, 1));
        assert_eq!(left(&mut queue, 100), [0, 1, 2]);
    }

    /// 100 ms for messages taken at once, 10 ms for those taken from 1 ms on.
    fn step_down() -> Speed {
        let ms = |ms| Span::from_ns(ms * MS);
        let steps = vec![scenario::ServiceStep { at: ms(1), service: ms(10) }];
        Speed::of(&WorkerKind { steps, ..WorkerKind::of(ms(100)) }, 0, 0)
    }
}
