//! Reading messages back.

use std::{
    io,
    ops::{Range, RangeInclusive},
    path::PathBuf,
};

use super::{
    Spool,
    disk::Disk,
    log::Log,
    messages::{Messages, append},
    names::{Place, Position, QueueId, Sequence},
    queue::{Kind, Reference},
    record::{self, Record, Spot},
    reference::RecordAt,
    segment::log_name,
    shared::SharedLog,
    tags::{MoveAt, TagAt, TagReader, pending_tag},
    window::{Found, Window},
};

/// Bounds of one read.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Most messages; values above 4,096 count as 4,096.
    pub messages: usize,
    /// Most bytes of bodies. The first message is always read; the message that exceeds the bound is left out.
    pub bytes: usize,
}

/// Which messages [`Spool::read_heads`] reads in part.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Least bytes of their bodies.
    pub from_bytes: usize,
    /// Most messages of this kind.
    pub messages: usize,
    /// Most bytes of their bodies; the first one may have more.
    pub bytes: usize,
}

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system reported an error.
    #[error("{path}: {error}")]
    Io {
        /// The segment.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The record differs from the one that was written.
    #[error("{path}: offset {offset}: a message differs from the written one")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Offset of the record, in bytes.
        offset: u32,
    },
}

/// Bounds how long one read holds the lock.
const MESSAGES_MAX: usize = 4096;
/// Messages at most this far apart are read together: a separate system call would take as long.
const GAP_MAX: u32 = 16 << 10;
const WINDOW_MAX: u32 = 256 << 10;
/// Read for a window's last message, whose length is not known yet.
const WINDOW_MIN: u32 = 4 << 10;
/// Read of a message whose payload stays on disk.
const HEAD_BYTES: usize = 1 << 10;

/// References to read, as of the time when the lock was held.
#[derive(Default)]
struct Plan {
    steps: Vec<ReadStep>,
    /// Oldest segment of the log.
    oldest: u32,
    /// Bodies that were in memory only.
    staged: Vec<u8>,
    /// Tags that were in memory only.
    tags: Vec<u8>,
}

struct ReadStep {
    reference: Reference,
    mark: u32,
    source: Source,
}

enum Source {
    /// The entry has no body.
    Nowhere,
    Staged {
        body: Range<usize>,
        tag: Range<usize>,
    },
    /// In the segment's file, before this offset.
    File {
        seed: u32,
        end: u32,
        tag: Tag,
    },
}

enum Tag {
    /// In the message's record, for this entry.
    Message(Place),
    Staged(Range<usize>),
    File(MoveAt),
}

/// Whether a plan was read to its end.
enum Outcome {
    Done,
    /// The plan is outdated from this message on: its segment was removed.
    Again(u64),
}

impl Spool {
    /// Reads the messages of a queue at these sequences, in order, into `out`, which is cleared first.
    ///
    /// The ranges must be in order and not overlap. A range may have sequences without a message.
    ///
    /// Removes nothing from the queue, and includes messages that are not written yet. Blocks for the disk; holds the
    /// lock only while it collects positions and messages that are in memory.
    ///
    /// # Errors
    /// [`ReadError`]. `out` has the messages before the unreadable one.
    pub fn read_ranges(
        &self,
        queue: QueueId,
        ranges: &[RangeInclusive<Sequence>],
        limit: Limit,
        out: &mut Messages,
    ) -> Result<(), ReadError> {
        self.read_parts(queue, ranges, limit, None, out)
    }

    /// As [`read_ranges`](Self::read_ranges), but reads only the beginning of large bodies that are durable.
    ///
    /// [`Stored::record`](super::Stored::record) tells these. Their bytes are not verified.
    ///
    /// # Errors
    /// As of [`read_ranges`](Self::read_ranges).
    pub fn read_heads(
        &self,
        queue: QueueId,
        ranges: &[RangeInclusive<Sequence>],
        limit: Limit,
        heads: Heads,
        out: &mut Messages,
    ) -> Result<(), ReadError> {
        self.read_parts(queue, ranges, limit, Some((heads, self.durable())), out)
    }

    fn read_parts(
        &self,
        queue: QueueId,
        ranges: &[RangeInclusive<Sequence>],
        limit: Limit,
        mut heads: Option<(Heads, Position)>,
        out: &mut Messages,
    ) -> Result<(), ReadError> {
        let disk = &*self.disk;
        out.clear();
        let mut from = 0;
        loop {
            let plan = Plan::new(&self.shared.log(), queue, (ranges, from), limit, out);
            let tags = TagReader::new(disk);
            let mut reader = Reader { shared: &self.shared, disk, queue, open: None, tags, heads: &mut heads };
            match reader.follow(&plan, limit, out)? {
                Outcome::Done => return Ok(()),
                Outcome::Again(sequence) => from = sequence,
            }
        }
    }
}

impl Plan {
    /// References in these ranges, but only at or above `from`.
    fn new(
        log: &Log,
        queue: QueueId,
        (ranges, from): (&[RangeInclusive<Sequence>], u64),
        limit: Limit,
        out: &Messages,
    ) -> Self {
        let mut plan = Self { oldest: log.index.segments.oldest(), ..Self::default() };
        let count = limit.messages.min(MESSAGES_MAX).saturating_sub(out.len());
        let Some(references) = log.index.queue(queue) else { return plan };
        let wanted = ranges.iter().flat_map(|range| {
            let (Sequence(first), Sequence(last)) = (*range.start(), *range.end());
            references.from(first.max(from)).take_while(move |reference| reference.sequence <= last)
        });
        for reference in wanted.take(count) {
            let place = Place { queue, sequence: Sequence(reference.sequence) };
            let source = match reference.kind {
                Kind::Mark => Source::Nowhere,
                Kind::Message | Kind::Moved => plan.source(log, place, &reference),
            };
            plan.steps.push(ReadStep { reference, mark: references.mark_of(reference.sequence), source });
            if plan.staged.len() > limit.bytes {
                break;
            }
        }
        plan
    }

    fn source(&mut self, log: &Log, place: Place, reference: &Reference) -> Source {
        let position = reference.position;
        let tag = match log.index.tag_at(place, reference) {
            TagAt::Message(place) => Tag::Message(place),
            TagAt::Move(at) => match pending_tag(log, at) {
                Some(tag) => Tag::Staged(append(&mut self.tags, tag)),
                None => Tag::File(MoveAt::new(log, at)),
            },
        };
        let segment = log.index.segments.get(position.segment());
        let (seed, end) = segment.map_or((0, 0), |segment| (segment.seed, segment.end));
        let spot = Spot { seed, offset: position.offset() };
        let bytes = log.pending.at(position);
        match bytes.and_then(|bytes| record::parse(&bytes[..record::length_at(bytes)?], spot).ok()) {
            Some(Record::Message(message)) => Source::Staged {
                body: append(&mut self.staged, message.body),
                tag: match tag {
                    Tag::Message(place) => append(&mut self.tags, message.tag(place).unwrap_or_default()),
                    Tag::Staged(range) => range,
                    Tag::File(_) => unreachable!("a move is younger than its message, which is in memory"),
                },
            },
            _ => Source::File { seed, end, tag },
        }
    }

    /// Returns how many bytes to read at once from this step on, given the wanted bytes of bodies.
    fn window(&self, step: usize, wanted: usize) -> usize {
        let first = self.steps[step].reference.position;
        let most = WINDOW_MAX.min(u32::try_from(wanted).unwrap_or(u32::MAX));
        let mut end = first.offset();
        for ReadStep { reference, .. } in &self.steps[step + 1..] {
            let offset = reference.position.offset();
            let is_near = reference.position.segment() == first.segment()
                && (end..=end.saturating_add(GAP_MAX)).contains(&offset)
                && offset - first.offset() <= most;
            if !is_near {
                break;
            }
            end = offset;
        }
        (end - first.offset() + WINDOW_MIN) as usize
    }
}

struct Reader<'a> {
    shared: &'a SharedLog,
    disk: &'a dyn Disk,
    queue: QueueId,
    /// The segment of the last read.
    open: Option<(u32, Window)>,
    tags: TagReader<'a>,
    /// Bodies that may still be read in part, and the position up to which.
    heads: &'a mut Option<(Heads, Position)>,
}

/// What [`Reader::read_head`] has done.
enum Head {
    /// The beginning was read.
    Read,
    /// The message has to be read whole.
    IsNone,
    /// There is no room for another one.
    IsFull,
}

impl Reader<'_> {
    fn follow(&mut self, plan: &Plan, limit: Limit, out: &mut Messages) -> Result<Outcome, ReadError> {
        for (index, step) in plan.steps.iter().enumerate() {
            if self.heads.is_some()
                && let Source::File { seed, end, tag: Tag::Message(place) } = &step.source
            {
                // An error shows again when the message is read whole.
                match self.read_head(step, plan.oldest, (*seed, *end), *place, out).unwrap_or(Head::IsNone) {
                    Head::Read => continue,
                    Head::IsNone => {}
                    Head::IsFull => return Ok(Outcome::Done),
                }
            }
            let result = match &step.source {
                Source::Nowhere => {
                    out.push(step.reference.sequence, step.mark, None, &[]);
                    Ok(())
                }
                Source::Staged { body, tag } => {
                    let (body, tag) = (&plan.staged[body.clone()], &plan.tags[tag.clone()]);
                    out.push(step.reference.sequence, step.mark, Some(body), tag);
                    Ok(())
                }
                Source::File { seed, end, tag } => self.read_file(plan, index, (*seed, *end), tag, limit, out),
            };
            if let Err(error) = result {
                match self.is_still_there(&step.reference) {
                    None => continue,
                    Some(false) => return Ok(Outcome::Again(step.reference.sequence)),
                    Some(true) => return Err(error),
                }
            }
            if out.bytes().len() > limit.bytes && out.len() > 1 {
                out.pop();
                return Ok(Outcome::Done);
            }
        }
        Ok(Outcome::Done)
    }

    /// Reads the beginning of a message, if it is durable and large.
    fn read_head(
        &mut self,
        step: &ReadStep,
        oldest: u32,
        (seed, end): (u32, u32),
        place: Place,
        out: &mut Messages,
    ) -> io::Result<Head> {
        let position = step.reference.position;
        let Some((heads, durable)) = self.heads else { return Ok(Head::IsNone) };
        if step.reference.kind != Kind::Message || position >= *durable {
            return Ok(Head::IsNone);
        }
        let window = match &mut self.open {
            Some((segment, window)) if *segment == position.segment() => window,
            open => {
                let file = self.disk.open(&log_name(position.segment()))?;
                &mut open.insert((position.segment(), Window::new(file, 0))).1
            }
        };
        let room = end.saturating_sub(position.offset());
        window.read_ahead(HEAD_BYTES);
        let bytes = window.bytes(position.offset().into(), HEAD_BYTES.min(room as usize))?;
        let Some(length) = record::length_at(bytes).filter(|&length| length <= room as usize) else {
            return Ok(Head::IsNone);
        };
        let bytes = &bytes[..bytes.len().min(length)];
        let Some(message) = record::beginning(bytes) else { return Ok(Head::IsNone) };
        let Some(tag) = message.tag(place) else { return Ok(Head::IsNone) };
        let spot = Spot { seed, offset: position.offset() };
        let before_body = &bytes[..bytes.len() - message.body.len()];
        let record = RecordAt::new((position.segment(), oldest), spot, length as u32, before_body);
        if record.body_len() < heads.from_bytes {
            return Ok(Head::IsNone);
        }
        if (heads.messages == 0 || heads.bytes < record.body_len()) && !out.is_empty() {
            return Ok(Head::IsFull);
        }
        heads.messages = heads.messages.saturating_sub(1);
        heads.bytes = heads.bytes.saturating_sub(record.body_len());
        out.push(step.reference.sequence, step.mark, Some(message.body), tag);
        out.is_beginning_of(record);
        Ok(Head::Read)
    }

    /// Reads one message, and nearby next ones into the window.
    fn read_file(
        &mut self,
        plan: &Plan,
        index: usize,
        (seed, end): (u32, u32),
        tag: &Tag,
        limit: Limit,
        out: &mut Messages,
    ) -> Result<(), ReadError> {
        let step = &plan.steps[index];
        let position = step.reference.position;
        let path = || self.disk.path(&log_name(position.segment()));
        let io = |error| ReadError::Io { path: path(), error };
        let window = match &mut self.open {
            Some((segment, window)) if *segment == position.segment() => window,
            open => {
                let file = self.disk.open(&log_name(position.segment())).map_err(io)?;
                &mut open.insert((position.segment(), Window::new(file, 0))).1
            }
        };
        if !window.holds_record(position.offset()) {
            window.read_ahead(plan.window(index, limit.bytes.saturating_sub(out.bytes().len())));
        }
        let damaged = || ReadError::Damaged { path: path(), offset: position.offset() };
        let found = window.record(Spot { seed, offset: position.offset() }, end).map_err(io)?;
        let Found::Record { record: Record::Message(message), .. } = found else { return Err(damaged()) };
        let tag = match tag {
            Tag::Message(place) => message.tag(*place).ok_or_else(damaged)?,
            Tag::Staged(range) => &plan.tags[range.clone()],
            Tag::File(at) => read_tag(&mut self.tags, *at)?,
        };
        out.push(step.reference.sequence, step.mark, Some(message.body), tag);
        Ok(())
    }

    /// Whether a message is still at its planned position; `None` if it was acknowledged since.
    ///
    /// Its segment may have been copied and the file rewritten.
    fn is_still_there(&mut self, reference: &Reference) -> Option<bool> {
        self.open = None;
        self.tags = TagReader::new(self.disk);
        let log = self.shared.log();
        let now = log.index.queue(self.queue)?.get(reference.sequence)?;
        Some(now.position == reference.position && now.kind == reference.kind)
    }
}

fn read_tag<'a>(tags: &'a mut TagReader<'_>, at: MoveAt) -> Result<&'a [u8], ReadError> {
    let path = tags.path(at);
    match tags.tag(at) {
        Ok(Some(tag)) => Ok(tag),
        Ok(None) => Err(ReadError::Damaged { path, offset: at.position.offset() }),
        Err(error) => Err(ReadError::Io { path, error }),
    }
}
