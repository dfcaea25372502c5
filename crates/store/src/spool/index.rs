//! The living content of the log: queues, their messages, and the living part of each segment.

use std::{collections::BTreeMap, ops::Range};

use rustc_hash::FxHashMap;

use super::{
    names::{Body, Origin, Place, Position, QueueId, Sequence},
    queue::{Kind, Queue, Reference},
    record::Record,
    runs::MarkRun,
    segment::Segments,
    tags::TagAt,
};

/// Index of the log, derived from its records.
///
/// Appending a record and reading it back apply the same change, so a restart restores the same index.
#[derive(Debug, Default)]
pub(super) struct Index {
    queues: FxHashMap<QueueId, Queue>,
    pub(super) segments: Segments,
    moved: Moved,
    references: u64,
}

/// Entries that a message's record does not name, since the message was moved there: message position and entry, to the
/// location of the tag.
type Moved = BTreeMap<(Position, Place), TagAt>;

impl Index {
    pub(super) fn new(segments: Segments) -> Self {
        Self { segments, ..Self::default() }
    }

    pub(super) fn queue(&self, queue: QueueId) -> Option<&Queue> {
        self.queues.get(&queue)
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter().map(|(&id, queue)| (id, queue))
    }

    pub(super) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Number of entries; a message in several queues counts once for each.
    pub(super) fn references(&self) -> u64 {
        self.references
    }

    /// Applies a record.
    pub(super) fn apply(&mut self, record: &Record<'_>, position: Position) {
        match *record {
            Record::Begin { .. } | Record::Synced(_) | Record::Reclaimed { .. } | Record::Closed => {}
            Record::Message(message) => {
                let places = message.entries().map(|entry| (entry.place, entry.mark));
                self.message(places, message.origin, message.body.len(), position);
            }
            Record::Acknowledge { queue, from, to } => {
                self.acknowledge(queue, from, to);
            }
            Record::Mark(run) => self.mark(run, position),
            Record::Hold(origin) => self.hold(origin, position),
            Record::Release(origin) => {
                self.release(origin);
            }
            Record::Move { from, to, tag } => {
                self.move_message(from, to, tag.map(|_| position));
            }
            Record::DropQueue(queue) => {
                self.drop_queue(queue);
            }
        }
    }

    /// Adds a message at `places`, each with its mark.
    pub(super) fn message(
        &mut self,
        places: impl Iterator<Item = (Place, u32)>,
        origin: Option<Origin>,
        body_bytes: usize,
        position: Position,
    ) {
        for (place, mark) in places {
            let queue = self.put(place, position, Kind::Message, body_bytes as u64);
            if mark != 0 {
                queue.mark(place.sequence.0, mark);
            }
        }
        if let Some(origin) = origin {
            self.hold(origin, position);
        }
    }

    /// Ends a range of messages, and returns their number.
    pub(super) fn acknowledge(&mut self, id: QueueId, from: Sequence, to: Sequence) -> usize {
        let Some(queue) = self.queues.get_mut(&id) else { return 0 };
        let before = queue.len();
        let (segments, moved) = (&mut self.segments, &mut self.moved);
        queue.take_range(from.0, to.0, |reference| died(segments, moved, id, &reference));
        let count = before - queue.len();
        self.references -= count as u64;
        count
    }

    /// Whether there is a message with a body at this entry.
    pub(super) fn is_message(&self, place: Place) -> bool {
        self.get(place).is_some_and(|reference| reference.kind != Kind::Mark)
    }

    pub(super) fn mark_of(&self, place: Place) -> u32 {
        self.queues.get(&place.queue).map_or(0, |queue| queue.mark_of(place.sequence.0))
    }

    /// Applies a run of marks.
    ///
    /// With [`Body::Done`], this record stands for the entries, even if their messages' records no longer exist. With
    /// [`Body::Kept`], an absent message was copied: its copy follows later in the log and carries the mark.
    pub(super) fn mark(&mut self, run: MarkRun, position: Position) {
        for (place, mark) in run.marks() {
            match run.body {
                Body::Done => self.put(place, position, Kind::Mark, 0).mark(place.sequence.0, mark),
                Body::Kept => {
                    let Some(queue) = self.queues.get_mut(&run.queue) else { return };
                    queue.mark(place.sequence.0, mark);
                }
            }
        }
    }

    pub(super) fn hold(&mut self, origin: Origin, position: Position) {
        let before = self.queues.entry(origin.queue).or_default().hold(origin.identifier, position.segment());
        self.segments.born(position.segment());
        if let Some(segment) = before {
            self.segments.died(segment);
        }
    }

    /// Releases a Packet Identifier. True if it was held.
    pub(super) fn release(&mut self, origin: Origin) -> bool {
        let segment = self.queues.get_mut(&origin.queue).and_then(|queue| queue.release(origin.identifier));
        if let Some(segment) = segment {
            self.segments.died(segment);
        }
        segment.is_some()
    }

    /// Moves a message; `tagged_by` is the record that gives it another tag.
    ///
    /// If the message is absent, its record no longer exists: it was copied later, or is done. Then this clears both
    /// entries.
    pub(super) fn move_message(&mut self, from: Place, to: Place, tagged_by: Option<Position>) {
        if !self.is_message(from) {
            for Place { queue, sequence } in [from, to] {
                self.acknowledge(queue, sequence, sequence);
            }
            return;
        }
        let taken = self.queues.get_mut(&from.queue).and_then(|queue| queue.take(from.sequence.0));
        let Some((reference, bytes)) = taken else { return };
        self.references -= 1;
        let tag = tagged_by.map_or_else(|| self.tag_at(from, &reference), TagAt::Move);
        self.put(to, reference.position, Kind::Moved, bytes);
        self.moved.insert((reference.position, to), tag);
        died(&mut self.segments, &mut self.moved, from.queue, &reference);
    }

    /// Returns where the tag of this entry's message is.
    pub(super) fn tag_at(&self, place: Place, reference: &Reference) -> TagAt {
        let moved = self.moved.get(&(reference.position, place)).filter(|_| reference.kind == Kind::Moved);
        moved.copied().unwrap_or(TagAt::Message(place))
    }

    /// Returns the entries to which messages in this stretch of the log were moved.
    pub(super) fn moved(&self, range: Range<Position>) -> impl Iterator<Item = (Place, TagAt)> {
        let first = |position| (position, Place { queue: QueueId(0), sequence: Sequence(0) });
        self.moved.range(first(range.start)..first(range.end)).map(|(&(_, place), &tag)| (place, tag))
    }

    /// Removes a queue. True if it existed.
    pub(super) fn drop_queue(&mut self, id: QueueId) -> bool {
        self.acknowledge(id, Sequence(0), Sequence(u64::MAX));
        let Some(queue) = self.queues.remove(&id) else { return false };
        queue.held().for_each(|(_, segment)| self.segments.died(segment));
        true
    }

    /// Forgets empty queues, once the whole log has been read.
    pub(super) fn forget_empty_queues(&mut self) {
        self.queues.retain(|_, queue| !queue.is_empty());
        self.queues.shrink_to_fit();
    }

    /// Whether the message at this position lives at an entry that its record names.
    pub(super) fn is_living(&self, place: Place, position: Position) -> bool {
        self.leads_to(place, position, Kind::Message)
    }

    pub(super) fn is_living_mark(&self, place: Place, position: Position) -> bool {
        self.leads_to(place, position, Kind::Mark)
    }

    /// Whether a record in this segment holds this Packet Identifier.
    pub(super) fn is_held_by(&self, origin: Origin, segment: u32) -> bool {
        self.queues.get(&origin.queue).and_then(|queue| queue.holds(origin.identifier)) == Some(segment)
    }

    fn leads_to(&self, place: Place, position: Position, kind: Kind) -> bool {
        self.get(place).is_some_and(|reference| reference.position == position && reference.kind == kind)
    }

    pub(super) fn get(&self, place: Place) -> Option<Reference> {
        self.queues.get(&place.queue).and_then(|queue| queue.get(place.sequence.0))
    }

    /// Adds an entry without a mark, and returns its queue.
    fn put(&mut self, place: Place, position: Position, kind: Kind, bytes: u64) -> &mut Queue {
        let queue = self.queues.entry(place.queue).or_default();
        let replaced = queue.put(Reference { sequence: place.sequence.0, position, kind }, bytes);
        self.segments.born(position.segment());
        match replaced {
            Some(replaced) => died(&mut self.segments, &mut self.moved, place.queue, &replaced),
            None => self.references += 1,
        }
        queue
    }
}

/// Removes a reference from the counts.
fn died(segments: &mut Segments, moved: &mut Moved, queue: QueueId, reference: &Reference) {
    segments.died(reference.position.segment());
    if reference.kind == Kind::Moved {
        moved.remove(&(reference.position, Place { queue, sequence: Sequence(reference.sequence) }));
    }
}
