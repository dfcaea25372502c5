//! In-memory image of the log: the index, records that are not written yet, and the end of the log.

use std::{
    mem,
    task::{Poll, Waker},
    time::{Instant, SystemTime},
};

use super::{
    health::Health,
    index::Index,
    names::{Body, Origin, Place, Position, QueueId, Sequence},
    options::Options,
    pending::{Part, Pending},
    queue::Kind,
    reclaim::Living,
    record::{self, BEGIN_BYTES, Entry, Message, Record, SYNCED_BYTES, Shape, Spot},
    runs::MarkRun,
    segment::{FIRST_RECORD, Header},
};

/// All data under the spool's lock. No method waits for the disk.
pub(super) struct Log {
    pub(super) index: Index,
    pub(super) pending: Pending,
    pub(super) options: Options,
    salt: u64,
    tail: Tail,
    /// Lower segments are not needed; their files may still exist.
    oldest_needed: u32,
    /// The last record, if it can still be extended and is not being written.
    last_run: Option<LastRun>,
    /// Bytes appended since opening, including the unused ends of segments.
    pub(super) appended: u64,
    /// Reserved end of each segment that only [`Log::reclaim`] may use, so that a full disk can always reclaim space.
    tail_reserve: u32,
    /// The disk has confirmed everything before this position.
    pub(super) synced: Position,
    pub(super) failure: Option<Failure>,
    /// A record that was intact once and could not be read for copying.
    pub(super) damage: Option<Damage>,
    /// Why the next segment's file cannot be made.
    pub(super) shortage: Option<Failure>,
    /// Tasks to wake when the health changes.
    watchers: Vec<Waker>,
    pub(super) counters: Counters,
    pub(super) committer: CommitterState,
    /// A caller waits for a pending record to become durable.
    pub(super) is_waited_for: bool,
    /// Batches of such callers since the committer last took records, and the time of the newest.
    pub(super) waited_batches: usize,
    pub(super) waited_at: Option<Instant>,
    /// When the oldest pending record arrived that no caller waits for.
    pub(super) not_waited_since: Option<Instant>,
    pub(super) is_closing: bool,
    /// A segment began since the committer last considered copying, or its copying failed or ended.
    pub(super) has_rolled: bool,
}

/// The end of the log.
#[derive(Clone, Copy)]
struct Tail {
    segment: u32,
    offset: u32,
    seed: u32,
    file_bytes: u32,
}

#[derive(Clone, Copy)]
struct LastRun {
    /// Offset in the open part.
    start: usize,
    record: Record<'static>,
}

/// Why the log writes nothing at the moment.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: String,
    pub(super) since: SystemTime,
    /// The disk has no room.
    pub(super) is_full: bool,
}

/// Damage that prevents copying, and so reclaiming of this and all later segments.
#[derive(Clone, Debug)]
pub(super) struct Damage {
    pub(super) segment: u32,
    /// The read failed, and may succeed later.
    pub(super) is_unreadable: bool,
    pub(super) error: String,
}

/// Counters since the spool was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) acknowledgements: u64,
    pub(super) copied_bytes: u64,
    pub(super) commits: u64,
    pub(super) written_bytes: u64,
    pub(super) sync_ns: u64,
    pub(super) failures: u64,
}

/// Room for a `Synced` and a `Reclaimed` record.
const TAIL_RESERVE: u32 = 64;

/// State of the committer, which tells whether a batch has to wake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitterState {
    /// It will look at the pending records without a wake-up.
    Works,
    /// It will do so within some milliseconds. Only a record that a caller waits for, or many records, wake it.
    Dozes,
    /// Any record wakes it.
    Sleeps,
}

impl Log {
    /// Continues behind the last segment of an index, in a new segment. `previous_end` is where the last one ends.
    ///
    /// If there is no room for a new segment, the log continues in the `rest` of the last one.
    pub(super) fn new(index: Index, previous_end: u32, salt: u64, options: Options, rest: Option<Header>) -> Self {
        let (oldest_needed, synced) = (index.segments.oldest(), Position::new(index.segments.newest(), previous_end));
        let segment = index.segments.newest();
        let mut log = Self {
            index,
            pending: Pending::default(),
            options,
            salt,
            tail: Tail { segment, offset: previous_end, seed: 0, file_bytes: 0 },
            oldest_needed,
            last_run: None,
            appended: 0,
            tail_reserve: TAIL_RESERVE,
            synced,
            failure: None,
            damage: None,
            shortage: None,
            watchers: Vec::new(),
            counters: Counters::default(),
            committer: CommitterState::Works,
            is_waited_for: false,
            waited_batches: 0,
            waited_at: None,
            not_waited_since: None,
            is_closing: false,
            has_rolled: true,
        };
        match rest {
            Some(Header { file_bytes, .. }) => {
                let seed = log.index.segments.get(segment).map_or(0, |segment| segment.seed);
                log.tail = Tail { segment, offset: previous_end, seed, file_bytes };
            }
            None => log.begin_segment(0),
        }
        log
    }

    /// Position of the next record, or slightly before it.
    pub(super) fn end(&self) -> Position {
        Position::new(self.tail.segment, self.tail.offset)
    }

    /// Bytes left in the segments up to `made`; negative if the log has passed them.
    pub(super) fn made_room(&self, made: u32) -> i64 {
        let segments = i64::from(made) - i64::from(self.tail.segment);
        let segment_bytes = i64::from(self.options.segment_bytes);
        match segments {
            0.. => self.room() as i64 + segments * segment_bytes,
            _ => (segments + 1) * segment_bytes - i64::from(self.tail.offset),
        }
    }

    /// Bytes left in the last segment.
    pub(super) fn room(&self) -> u64 {
        u64::from(self.tail.file_bytes.saturating_sub(self.tail.offset))
    }

    pub(super) fn health(&self) -> Health {
        match (&self.failure, &self.shortage, &self.damage) {
            (Some(Failure { error, since, .. }), ..) => Health::Failed { error: error.clone(), since: *since },
            (_, Some(Failure { error, since, .. }), _) => Health::NoRoom { error: error.clone(), since: *since },
            (_, _, Some(Damage { error, .. })) => Health::Damaged { error: error.clone() },
            (None, None, None) => Health::Writing,
        }
    }

    /// Whether there may be a new reason to copy since the last call.
    pub(super) fn is_to_look(&mut self) -> bool {
        mem::take(&mut self.has_rolled) | mem::take(&mut self.index.segments.has_thinned)
    }

    /// Returns the health if its kind differs from `seen`; otherwise keeps the waker.
    pub(super) fn poll_health(&mut self, seen: &Health, waker: &Waker) -> Poll<Health> {
        let health = self.health();
        if mem::discriminant(seen) != mem::discriminant(&health) {
            return Poll::Ready(health);
        }
        if !self.watchers.iter().any(|other| other.will_wake(waker)) {
            self.watchers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Takes the wakers. Wake them after the lock is released.
    pub(super) fn take_watchers(&mut self) -> Vec<Waker> {
        mem::take(&mut self.watchers)
    }

    /// Returns the header of a segment's file.
    pub(super) fn header(&self, number: u32, file_bytes: u32) -> Header {
        Header { number, salt: self.salt, file_bytes }
    }

    pub(super) fn message<'a>(
        &mut self,
        entries: impl Iterator<Item = Entry<'a>> + Clone,
        shape: Shape,
        origin: Option<Origin>,
        body: &[&[u8]],
    ) {
        match (shape.has_places(), origin) {
            (false, None) => {}
            (false, Some(origin)) => self.hold(origin),
            (true, origin) => {
                self.append_message(entries, shape, origin, body);
                self.pending.open_part().into_iter().for_each(|part| part.has_messages = true);
                self.counters.messages += 1;
                self.counters.message_bytes += shape.body_bytes() as u64;
            }
        }
    }

    fn append_message<'a>(
        &mut self,
        entries: impl Iterator<Item = Entry<'a>> + Clone,
        shape: Shape,
        origin: Option<Origin>,
        body: &[&[u8]],
    ) {
        let position = self.append(shape.bytes(), |out, spot| {
            record::write_message(out, spot, shape, entries.clone(), origin, body);
        });
        let places = entries.map(|entry| (entry.place, entry.mark));
        self.index.message(places, origin, shape.body_bytes(), position);
    }

    pub(super) fn hold(&mut self, origin: Origin) {
        let position = self.plain(&Record::Hold(origin));
        self.index.hold(origin, position);
    }

    pub(super) fn acknowledge(&mut self, queue: QueueId, from: Sequence, to: Sequence) -> usize {
        let count = self.index.acknowledge(queue, from, to);
        if count > 0 {
            self.counters.acknowledgements += count as u64;
            self.run(Record::Acknowledge { queue, from, to });
        }
        count
    }

    /// Appends a record, or extends the last record if this one continues it.
    fn run(&mut self, record: Record<'static>) -> Position {
        if let Some(last) = self.last_run
            && let Some(joined) = last.record.joined(&record)
            && let Some(part) = self.pending.open_part()
        {
            part.bytes.truncate(last.start);
            let spot = Spot { seed: part.seed, offset: part.offset + last.start as u32 };
            record::write_plain(&mut part.bytes, spot, &joined);
            self.last_run = Some(LastRun { record: joined, ..last });
            return Position::new(part.segment, spot.offset);
        }
        let position = self.plain(&record);
        let part = self.pending.open_part();
        self.last_run = part.map(|part| LastRun { start: (position.offset() - part.offset) as usize, record });
        position
    }

    pub(super) fn mark(&mut self, place: Place, mark: u32, body: Body) -> bool {
        let Some(reference) = self.index.get(place) else { return false };
        let has_body = reference.kind != Kind::Mark;
        let gives_up = has_body && body == Body::Done;
        if gives_up || self.index.mark_of(place) != mark {
            // A discarded body does not come back.
            self.write_mark(place, mark, if has_body { body } else { Body::Done });
        }
        true
    }

    fn write_mark(&mut self, place: Place, mark: u32, body: Body) {
        let run = MarkRun::one(place, mark, body);
        let position = self.run(Record::Mark(run));
        self.index.mark(run, position);
    }

    pub(super) fn release(&mut self, origin: Origin) -> bool {
        let was_held = self.index.release(origin);
        if was_held {
            self.plain(&Record::Release(origin));
        }
        was_held
    }

    pub(super) fn move_message(&mut self, from: Place, to: Place, tag: Option<&[u8]>) -> bool {
        let is_moved = from != to && self.index.is_message(from);
        if is_moved {
            let position = self.plain(&Record::Move { from, to, tag });
            self.index.move_message(from, to, tag.map(|_| position));
        }
        is_moved
    }

    pub(super) fn drop_queue(&mut self, queue: QueueId) -> bool {
        let has_something = self.index.queue(queue).is_some_and(|queue| !queue.is_empty());
        self.index.drop_queue(queue);
        if has_something {
            self.plain(&Record::DropQueue(queue));
        }
        has_something
    }

    /// Appends a record that segments below `oldest` are not needed; it counts once it is durable.
    pub(super) fn reclaim(&mut self, oldest: u32) -> Position {
        self.oldest_needed = oldest;
        self.tail_reserve = 0;
        self.plain(&Record::Reclaimed { oldest });
        self.tail_reserve = TAIL_RESERVE;
        self.end()
    }

    /// Appends the record of an orderly end.
    ///
    /// The part that carries it states the confirmed position, as each write does. Damage before that position is thus
    /// recognized as damage, not as a torn write.
    pub(super) fn say_closed(&mut self) {
        self.plain(&Record::Closed);
    }

    /// Appends the living content of an old segment's record again. Returns the appended bytes; `None` if a tag is
    /// missing.
    pub(super) fn copy(&mut self, record: &Record<'_>, position: Position, living: &mut Living) -> Option<usize> {
        let before = self.pending.open_part().map_or(0, |part| part.bytes.len());
        match *record {
            Record::Message(message) => self.copy_message(&message, position, living)?,
            // A `Kept` mark is copied with its message.
            Record::Mark(run) if run.body == Body::Done => {
                for (place, _) in run.marks() {
                    if self.index.is_living_mark(place, position) {
                        self.write_mark(place, self.index.mark_of(place), Body::Done);
                    }
                }
            }
            Record::Hold(origin) if self.index.is_held_by(origin, position.segment()) => self.hold(origin),
            _ => {}
        }
        // An approximation if a part or a segment began during the call.
        let after = self.pending.open_part().map_or(0, |part| part.bytes.len());
        let copied = after.checked_sub(before).unwrap_or(after);
        self.counters.copied_bytes += copied as u64;
        Some(copied)
    }

    fn copy_message(&mut self, message: &Message<'_>, position: Position, living: &mut Living) -> Option<()> {
        living.find(self, message, position)?;
        let origin = message.origin.filter(|&origin| self.index.is_held_by(origin, position.segment()));
        let shape = Shape::new(living.entries(), origin.is_some(), message.body.len());
        match (shape.has_places(), origin) {
            (false, None) => {}
            (false, Some(origin)) => self.hold(origin),
            (true, origin) => self.append_message(living.entries(), shape, origin, &[message.body]),
        }
        Some(())
    }

    fn plain(&mut self, record: &Record<'_>) -> Position {
        self.append(record::plain_bytes(record), |out, spot| record::write_plain(out, spot, record))
    }

    /// Makes room for a record, in a new part or segment if needed, and writes it.
    fn append(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>, Spot)) -> Position {
        let length = record::padded(length);
        self.last_run = None;
        self.make_room(length);
        let Tail { segment, offset, seed, .. } = self.tail;
        let part = self.pending.open_part().expect("there is one with room");
        write(&mut part.bytes, Spot { seed, offset });
        debug_assert_eq!(part.end(), Position::new(segment, offset + length as u32));
        self.move_tail(length);
        Position::new(segment, offset)
    }

    fn make_room(&mut self, length: usize) {
        let write_bytes = self.options.write_bytes;
        let goes_on = self.pending.open_part().is_some_and(|part| part.bytes.len() + length <= write_bytes);
        let synced_bytes = if goes_on { 0 } else { SYNCED_BYTES as usize };
        let usable = self.tail.file_bytes.saturating_sub(self.tail_reserve) as usize;
        if self.tail.offset as usize + synced_bytes + length > usable {
            self.begin_segment(length);
            self.has_rolled = true;
        } else if !goes_on {
            self.begin_part(true);
            self.write_in_part(&Record::Synced(Position::default()));
        }
    }

    /// Begins a segment with room for a record of this length.
    fn begin_segment(&mut self, length: usize) {
        let previous_end = self.tail.offset;
        self.appended += self.room();
        let least = (FIRST_RECORD + BEGIN_BYTES + TAIL_RESERVE) as usize + length;
        let file_bytes = self.options.segment_bytes.max(least as u32);
        let number = if self.index.segments.len() == 0 { self.tail.segment } else { self.tail.segment + 1 };
        let seed = self.header(number, file_bytes).seed();
        self.tail = Tail { segment: self.index.segments.push(seed), offset: FIRST_RECORD, seed, file_bytes };
        debug_assert_eq!(self.tail.segment, number);
        self.begin_part(false);
        self.write_in_part(&Record::Begin { oldest: self.oldest_needed, previous_end });
    }

    fn begin_part(&mut self, begins_with_synced: bool) {
        let Tail { segment, offset, seed, file_bytes } = self.tail;
        let bytes = self.pending.buffer();
        self.pending.begin_part(Part {
            segment,
            offset,
            seed,
            file_bytes,
            begins_with_synced,
            has_messages: false,
            bytes,
        });
    }

    /// Writes the first record of a part.
    fn write_in_part(&mut self, record: &Record<'_>) {
        let Tail { offset, seed, .. } = self.tail;
        let part = self.pending.open_part().expect("it was just begun");
        record::write_plain(&mut part.bytes, Spot { seed, offset }, record);
        self.move_tail(record::plain_bytes(record));
    }

    fn move_tail(&mut self, bytes: usize) {
        self.tail.offset += bytes as u32;
        self.appended += bytes as u64;
        if let Some(segment) = self.index.segments.get_mut(self.tail.segment) {
            segment.end = self.tail.offset;
        }
    }

    /// Takes the pending records for the committer to write.
    pub(super) fn take(&mut self) -> Vec<std::sync::Arc<Part>> {
        self.last_run = None;
        let taken = self.pending.take(self.synced);
        // The remaining records have waited as long as the taken ones.
        self.is_waited_for &= !self.pending.is_empty();
        self.not_waited_since.take_if(|_| self.pending.is_empty());
        taken
    }
}
