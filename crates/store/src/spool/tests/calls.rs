//! Random calls, generated from small numbers.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    model::{Call, Model, Tag},
    place,
};
use crate::spool::{Body, Origin, Place, QueueId};

/// A call before its target messages are known.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// A message for the slots whose bits are set.
    Message {
        slots: u8,
        gap: u64,
        bytes: usize,
        origin: Option<(usize, u16)>,
        /// Length of the longest tag.
        tag: usize,
    },
    /// From the n-th message of a queue on.
    Acknowledge {
        slot: usize,
        nth: usize,
        count: u64,
    },
    /// The first messages of a queue.
    AcknowledgeHead {
        slot: usize,
        count: usize,
    },
    /// Ascending marks for `count` messages from the n-th on.
    Mark {
        slot: usize,
        nth: usize,
        count: usize,
        mark: u32,
        body: Body,
    },
    Release {
        slot: usize,
        identifier: u16,
    },
    Move {
        slot: usize,
        nth: usize,
        to: usize,
        /// Onto the n-th message of the target queue, instead of its end.
        onto: Option<usize>,
        /// Length of a new tag.
        tag: Option<usize>,
    },
    DropQueue {
        slot: usize,
    },
}

const SLOTS: usize = 4;

pub(crate) fn wish() -> impl Strategy<Value = Wish> {
    let bytes = prop_oneof![20 => 0..300_usize, 1 => 1_000..6_000_usize];
    let mark_body = prop_oneof![2 => Just(Body::Kept), 1 => Just(Body::Done)];
    let origin = prop::option::weighted(0.3, (0..SLOTS, 1..6_u16));
    let tag = || prop_oneof![10 => Just(0), 10 => 1..20_usize, 1 => 250..256_usize];
    prop_oneof![
        10 => (0..1_u8 << SLOTS, 1..3_u64, bytes, origin, tag())
            .prop_map(|(slots, gap, bytes, origin, tag)| Wish::Message { slots, gap, bytes, origin, tag }),
        3 => (0..SLOTS, 0..20_usize, 0..5_u64).prop_map(|(slot, nth, count)| Wish::Acknowledge { slot, nth, count }),
        5 => (0..SLOTS, 0..12_usize).prop_map(|(slot, count)| Wish::AcknowledgeHead { slot, count }),
        5 => (0..SLOTS, 0..10_usize, 1..6_usize, 0..20_u32, mark_body)
            .prop_map(|(slot, nth, count, mark, body)| Wish::Mark { slot, nth, count, mark, body }),
        2 => (0..SLOTS, 1..6_u16).prop_map(|(slot, identifier)| Wish::Release { slot, identifier }),
        3 => (0..SLOTS, 0..10_usize, 0..SLOTS, prop::option::weighted(0.2, 0..5_usize), prop::option::of(tag()))
            .prop_map(|(slot, nth, to, onto, tag)| Wish::Move { slot, nth, to, onto, tag }),
        1 => (0..SLOTS).prop_map(|slot| Wish::DropQueue { slot }),
    ]
}

/// Knowledge of a caller: which queue belongs to which slot, and the last sequence of each queue.
#[derive(Default)]
pub(crate) struct Caller {
    /// Number of dropped queues of each slot: no queue number is reused.
    dropped: [u64; SLOTS],
    last: BTreeMap<u64, u64>,
    messages: u64,
}

impl Caller {
    pub(crate) fn calls(&mut self, wish: &Wish, model: &Model) -> Vec<Call> {
        let mut calls = vec![self.call(wish, model)];
        if let &Wish::Mark { slot, nth, count, mark, body } = wish {
            let more = (nth + 1..nth + count).zip(mark + 1..);
            calls.extend(more.map(|(nth, mark)| self.call(&Wish::Mark { slot, nth, count: 1, mark, body }, model)));
        }
        calls
    }

    fn call(&mut self, wish: &Wish, model: &Model) -> Call {
        match *wish {
            Wish::Message { slots, gap, bytes, origin, tag } => {
                let slots = (0..SLOTS).filter(|slot| slots & 1 << slot != 0);
                let places = slots.map(|slot| (self.next(slot, gap), self.tag(tag.saturating_sub(slot)))).collect();
                let origin = origin.map(|(slot, identifier)| Origin { queue: QueueId(self.queue(slot)), identifier });
                self.messages += 1;
                let body = (0..bytes).map(|index| (index as u64 * 7 + self.messages) as u8).collect();
                Call::Message { places, origin, body }
            }
            Wish::Acknowledge { slot, nth, count } => {
                let from = self.nth(slot, nth, model);
                Call::Acknowledge { queue: self.queue(slot), from, to: from + count }
            }
            Wish::AcknowledgeHead { slot, count } => {
                Call::Acknowledge { queue: self.queue(slot), from: 0, to: self.nth(slot, count, model) }
            }
            Wish::Mark { slot, nth, mark, body, .. } => {
                Call::Mark { place: place(self.queue(slot), self.nth(slot, nth, model)), mark, body }
            }
            Wish::Release { slot, identifier } => {
                Call::Release(Origin { queue: QueueId(self.queue(slot)), identifier })
            }
            Wish::Move { slot, nth, to, onto, tag } => {
                let from = place(self.queue(slot), self.nth(slot, nth, model));
                self.messages += 1;
                let is_there = |nth: &usize| self.nth_waiting(to, *nth, model).is_some();
                let to = match onto.filter(is_there) {
                    Some(nth) => place(self.queue(to), self.nth(to, nth, model)),
                    None => self.next(to, 1),
                };
                Call::Move { from, to, tag: tag.map(|bytes| self.tag(bytes)) }
            }
            Wish::DropQueue { slot } => {
                let queue = self.queue(slot);
                self.dropped[slot] += 1;
                Call::DropQueue(queue)
            }
        }
    }

    fn tag(&self, bytes: usize) -> Tag {
        (0..bytes).map(|index| (index as u64 * 5 + self.messages) as u8).collect()
    }

    fn queue(&self, slot: usize) -> u64 {
        slot as u64 + SLOTS as u64 * self.dropped[slot]
    }

    fn next(&mut self, slot: usize, gap: u64) -> Place {
        let queue = self.queue(slot);
        let last = self.last.entry(queue).or_default();
        *last += gap;
        place(queue, *last)
    }

    /// Returns the sequence of the n-th queued message, or an unused one.
    fn nth(&self, slot: usize, nth: usize, model: &Model) -> u64 {
        self.nth_waiting(slot, nth, model).unwrap_or(nth as u64)
    }

    fn nth_waiting(&self, slot: usize, nth: usize, model: &Model) -> Option<u64> {
        let messages = model.queues.get(&self.queue(slot)).map(|queue| &queue.messages);
        messages.and_then(|messages| messages.keys().nth(nth)).copied()
    }
}
