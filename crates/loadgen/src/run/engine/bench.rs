//! What lies before a simulated worker.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::scenario::{Slot, Timeline};

/// Messages that wait for a worker, that it has in its hands, and that it has done but not put away yet.
///
/// When each message is taken and finished is known when it comes, for the worker takes them in that order. So however
/// late its thread wakes, times are exact, and nothing that was late makes the next message later.
///
/// ```text
///   put away │ done  in hand  done  in hand │ wait  wait  wait │ ◄── arrive
///              ▲ the next to be put away: in the order of arrival, for that is how MQTT wants acknowledgements
/// ```
pub(super) struct Bench<T> {
    timeline: Timeline,
    messages: VecDeque<Message<T>>,
    /// How many of `messages`, from the front, have been taken.
    taken: usize,
    /// How many messages have been put away: the number of the first of `messages`.
    away: u64,
    /// When those in hand are finished, and their numbers; the first on top.
    in_hand: BinaryHeap<Reverse<(u64, u64)>>,
}

/// What happens to a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<T> {
    /// The worker takes it out of its queue.
    Taken {
        /// When it was to go out, if it says so.
        due_ns: Option<u64>,
        taken_ns: u64,
    },
    /// It is done.
    Finished { took_ns: u64, finished_ns: u64 },
    /// It, and all that came before it, is done.
    Away(T),
}

struct Message<T> {
    slot: Slot,
    due_ns: Option<u64>,
    is_done: bool,
    what: T,
}

impl<T> Bench<T> {
    pub(super) fn new(timeline: Timeline) -> Self {
        Self { timeline, messages: VecDeque::new(), taken: 0, away: 0, in_hand: BinaryHeap::new() }
    }

    /// A message has come. `luck` is its number for whatever is left to luck.
    pub(super) fn arrive(&mut self, what: T, luck: u64, due_ns: Option<u64>, received_ns: u64) {
        let slot = self.timeline.take(luck, received_ns, received_ns);
        self.messages.push_back(Message { slot, due_ns, is_done: false, what });
    }

    /// Messages that are not put away.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// When something happens next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let taken = self.messages.get(self.taken).map(|message| message.slot.taken_ns);
        let finished = self.in_hand.peek().map(|Reverse((finished_ns, _))| *finished_ns);
        taken.into_iter().chain(finished).min()
    }

    /// All that has happened up to `now_ns`, in order.
    pub(super) fn catch_up(&mut self, now_ns: u64, mut happens: impl FnMut(Step<T>)) {
        while self.next_ns().is_some_and(|at| at <= now_ns) {
            let finished = self.in_hand.peek().map_or(u64::MAX, |Reverse((finished_ns, _))| *finished_ns);
            match self.messages.get(self.taken) {
                // What is finished at the very moment makes room for what is taken.
                Some(message) if message.slot.taken_ns < finished => {
                    let Slot { taken_ns, finished_ns } = message.slot;
                    happens(Step::Taken { due_ns: message.due_ns, taken_ns });
                    self.in_hand.push(Reverse((finished_ns, self.away + self.taken as u64)));
                    self.taken += 1;
                }
                _ => self.finish(&mut happens),
            }
        }
    }

    fn finish(&mut self, happens: &mut impl FnMut(Step<T>)) {
        let Some(Reverse((finished_ns, number))) = self.in_hand.pop() else { return };
        let message = &mut self.messages[(number - self.away) as usize];
        message.is_done = true;
        happens(Step::Finished { took_ns: finished_ns - message.slot.taken_ns, finished_ns });
        while let Some(message) = self.messages.pop_front_if(|message| message.is_done) {
            self.taken -= 1;
            self.away += 1;
            happens(Step::Away(message.what));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use super::Step::{Away, Finished, Taken};
    use super::*;
    use crate::scenario::Pace;

    const MS: u64 = 1_000_000;

    fn bench(hands: u16) -> Bench<u32> {
        let pace = Pace::steady(Duration::from_millis(25));
        Bench::new(Timeline::parallel(pace, NonZeroU16::new(hands).unwrap()))
    }

    /// All that happens up to `until_ms`, in ms.
    fn happens(bench: &mut Bench<u32>, until_ms: u64) -> Vec<Step<u32>> {
        let mut steps = Vec::new();
        bench.catch_up(until_ms * MS, |step| {
            steps.push(match step {
                Taken { due_ns, taken_ns } => Taken { due_ns, taken_ns: taken_ns / MS },
                Finished { took_ns, finished_ns } => Finished { took_ns: took_ns / MS, finished_ns: finished_ns / MS },
                Away(what) => Away(what),
            });
        });
        steps
    }

    #[test]
    fn a_late_wake_up_delays_nothing() {
        let mut bench = bench(1);
        for message in 0..3 {
            bench.arrive(message, 0, Some(1), 10 * MS);
        }
        assert_eq!(bench.next_ns(), Some(10 * MS));
        let taken = |taken_ns| Taken { due_ns: Some(1), taken_ns };
        let finished = |finished_ns| Finished { took_ns: 25, finished_ns };
        assert_eq!(happens(&mut bench, 59), [taken(10), finished(35), Away(0), taken(35)]);
        assert_eq!(bench.next_ns(), Some(60 * MS));
        assert_eq!(happens(&mut bench, 1000), [finished(60), Away(1), taken(60), finished(85), Away(2)]);
        assert_eq!((bench.next_ns(), bench.len()), (None, 0));
    }

    #[test]
    fn what_is_done_before_an_earlier_message_is_put_away_after_it() {
        let mut bench = Bench::new(Timeline::parallel(step_down(), NonZeroU16::new(2).unwrap()));
        for message in 0..3 {
            bench.arrive(message, 0, None, u64::from(message) * MS);
        }
        let away = |bench: &mut Bench<u32>, until_ms| {
            let steps = happens(bench, until_ms).into_iter();
            steps.filter_map(|step| if let Away(what) = step { Some(what) } else { None }).collect::<Vec<_>>()
        };
        assert!(away(&mut bench, 99).is_empty());
        assert_eq!(bench.len(), 3);
        assert_eq!(away(&mut bench, 100), [0, 1, 2]);
    }

    /// 100 ms for what is taken at once, 10 ms from 1 ms on.
    fn step_down() -> Pace {
        let steps = vec![(0, 100 * MS), (MS, 10 * MS)];
        Pace::new(steps, tenbin_simulator::Distribution::Fixed, vec![], 0)
    }
}
