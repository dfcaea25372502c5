//! Simple model of a spool.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::UNBOOKED;
use crate::spool::{Batch, Body, Limit, Marked, Messages, Origin, Place, QueueId, Sequence, Spool};

/// All observable content of a spool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) queues: BTreeMap<u64, ModelQueue>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelQueue {
    pub(crate) messages: BTreeMap<u64, Waiting>,
    pub(crate) held: BTreeSet<u16>,
}

/// A message in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) mark: u32,
    /// `None` if it was discarded.
    pub(crate) body: Option<Rc<[u8]>>,
    /// Empty if the body was discarded.
    pub(crate) tag: Rc<[u8]>,
}

pub(crate) type Tag = Vec<u8>;

/// A call of a batch, as data.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Message { places: Vec<(Place, Tag)>, origin: Option<Origin>, body: Vec<u8> },
    Acknowledge { queue: u64, from: u64, to: u64 },
    Mark { place: Place, mark: u32, body: Body },
    Release(Origin),
    Move { from: Place, to: Place, tag: Option<Tag> },
    DropQueue(u64),
}

impl Call {
    /// Applies the call to both, and compares their answers.
    pub(crate) fn apply(&self, batch: &mut Batch<'_>, model: &mut Model) {
        match self {
            Self::Message { places, origin, body } => {
                let (one, other) = body.split_at(body.len() / 3);
                batch.message(&UNBOOKED, places, *origin, &[one, other]).unwrap();
                model.message(places, *origin, body);
            }
            &Self::Acknowledge { queue, from, to } => {
                let count = batch.acknowledge(QueueId(queue), Sequence(from)..=Sequence(to));
                assert_eq!(count, model.acknowledge(queue, from, to));
            }
            &Self::Mark { place, mark, body } => {
                assert_eq!(batch.mark(place, mark, body), model.mark(place, mark, body));
            }
            &Self::Release(origin) => {
                assert_eq!(batch.holds(origin), model.held(origin.queue.0).contains(&origin.identifier));
                assert_eq!(batch.release(origin), model.queue(origin.queue.0).held.remove(&origin.identifier));
            }
            Self::Move { from, to, tag } => {
                let is_moved = batch.move_message(*from, *to, tag.as_deref()).unwrap();
                assert_eq!(is_moved, model.move_message(*from, *to, tag.as_deref()));
            }
            &Self::DropQueue(queue) => {
                let before = model.queues.remove(&queue).unwrap_or_default();
                assert_eq!(batch.drop_queue(QueueId(queue)), before != ModelQueue::default());
            }
        }
        model.queues.retain(|_, queue| *queue != ModelQueue::default());
    }
}

impl Model {
    /// Reads the content of a spool in small pieces.
    pub(crate) fn of(spool: &Spool) -> Self {
        let mut model = Self::default();
        for id in spool.queues() {
            let content = spool.queue(id).expect("it is in the list");
            let messages = read_all(spool, id, Limit { messages: 7, bytes: 500 });
            assert_eq!(content.waiting, messages.len());
            let ends = messages.keys().next().zip(messages.keys().next_back());
            assert_eq!(content.ends, ends.map(|(&first, &last)| (Sequence(first), Sequence(last))));
            let marked = messages.iter().filter(|(_, waiting)| waiting.mark != 0);
            let marked = marked.map(|(&sequence, waiting)| Marked {
                sequence: Sequence(sequence),
                mark: waiting.mark,
                has_body: waiting.body.is_some(),
            });
            assert_eq!(spool.marks(id), marked.collect::<Vec<_>>());
            model.queues.insert(id.0, ModelQueue { messages, held: content.held.into_iter().collect() });
        }
        model
    }

    fn queue(&mut self, queue: u64) -> &mut ModelQueue {
        self.queues.entry(queue).or_default()
    }

    fn held(&self, queue: u64) -> BTreeSet<u16> {
        self.queues.get(&queue).map_or_else(BTreeSet::new, |queue| queue.held.clone())
    }

    fn message(&mut self, places: &[(Place, Tag)], origin: Option<Origin>, body: &[u8]) {
        let body: Rc<[u8]> = body.into();
        for (place, tag) in places {
            let waiting = Waiting { mark: 0, body: Some(Rc::clone(&body)), tag: tag[..].into() };
            self.queue(place.queue.0).messages.insert(place.sequence.0, waiting);
        }
        if let Some(origin) = origin {
            self.queue(origin.queue.0).held.insert(origin.identifier);
        }
    }

    fn acknowledge(&mut self, queue: u64, from: u64, to: u64) -> usize {
        let messages = &mut self.queue(queue).messages;
        let before = messages.len();
        messages.retain(|sequence, _| !(from..=to).contains(sequence));
        before - messages.len()
    }

    fn mark(&mut self, place: Place, mark: u32, body: Body) -> bool {
        let Some(waiting) = self.queue(place.queue.0).messages.get_mut(&place.sequence.0) else { return false };
        waiting.mark = mark;
        if body == Body::Done {
            (waiting.body, waiting.tag) = (None, Rc::default());
        }
        true
    }

    fn move_message(&mut self, from: Place, to: Place, tag: Option<&[u8]>) -> bool {
        let messages = &mut self.queue(from.queue.0).messages;
        let Some(waiting) = messages.get(&from.sequence.0).filter(|waiting| from != to && waiting.body.is_some())
        else {
            return false;
        };
        let moved = Waiting { mark: 0, tag: tag.map_or_else(|| Rc::clone(&waiting.tag), Rc::from), ..waiting.clone() };
        messages.remove(&from.sequence.0);
        self.queue(to.queue.0).messages.insert(to.sequence.0, moved);
        true
    }
}

/// Reads each other message of a queue by ranges, and compares the first of them, as far as they go, with `all`.
fn read_each_other(spool: &Spool, queue: QueueId, limit: Limit, all: &BTreeMap<u64, Waiting>) {
    let ranges: Vec<_> = all.keys().step_by(2).map(|&sequence| Sequence(sequence)..=Sequence(sequence)).collect();
    let mut messages = Messages::default();
    spool.read_ranges(queue, &ranges, limit, &mut messages).unwrap();
    let expected: Vec<_> = ranges.iter().map(|range| *range.start()).take(messages.len()).collect();
    assert_eq!(messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), expected);
    assert_eq!(messages.is_empty(), all.is_empty());
    let bodies = messages.iter().map(|message| message.body.clone().map(|range| &messages.bytes()[range]));
    let all = expected.iter().map(|sequence| all[&sequence.0].body.as_deref());
    assert!(bodies.eq(all), "as in the whole queue");
}

/// Reads a whole queue.
pub(crate) fn read_all(spool: &Spool, queue: QueueId, limit: Limit) -> BTreeMap<u64, Waiting> {
    let (mut all, mut messages, mut from) = (BTreeMap::new(), Messages::default(), Sequence(0));
    loop {
        spool.read(queue, from, limit, &mut messages).unwrap();
        assert!(messages.len() <= limit.messages && (messages.bytes().len() <= limit.bytes || messages.len() == 1));
        let Some(last) = messages.iter().last() else {
            read_each_other(spool, queue, limit, &all);
            return all;
        };
        assert!(messages.iter().all(|stored| stored.sequence >= from));
        from = Sequence(last.sequence.0 + 1);
        for stored in messages.iter() {
            let body = stored.body.clone().map(|range| messages.bytes()[range].into());
            let tag = messages.tags()[stored.tag.clone()].into();
            assert_eq!(all.insert(stored.sequence.0, Waiting { mark: stored.mark, body, tag }), None);
        }
    }
}
