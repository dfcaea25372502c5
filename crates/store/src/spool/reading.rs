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
    names::{Place, QueueId, Sequence},
    queue::{Kind, Reference},
    record::{self, Record, Spot},
    segment::log_name,
    shared::Shared,
    tags::{MoveAt, TagAt, TagReader, pending_tag},
    window::{Found, Window},
};

/// The next messages of a queue. The memory is reused from one read to the next.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    tags: Vec<u8>,
    entries: Vec<Stored>,
}

/// A message in [`Messages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence in the queue.
    pub sequence: Sequence,
    /// Its mark; 0 means none.
    pub mark: u32,
    /// Range of its body in [`Messages::bytes`]; `None` if the body was discarded.
    pub body: Option<Range<usize>>,
    /// Range of its tag in [`Messages::tags`]; empty if the body was discarded.
    pub tag: Range<usize>,
}

impl Messages {
    /// Returns the messages in queue order.
    pub fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.entries.iter()
    }

    /// All bodies, concatenated.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All tags, concatenated.
    pub fn tags(&self) -> &[u8] {
        &self.tags
    }

    /// Takes all bodies. The ranges of [`iter`](Self::iter) still refer to them.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.tags.clear();
        self.entries.clear();
    }

    fn push(&mut self, step: &Step, body: Option<&[u8]>, tag: &[u8]) {
        let body = body.map(|body| append(&mut self.bytes, body));
        let tag = append(&mut self.tags, tag);
        self.entries.push(Stored { sequence: Sequence(step.reference.sequence), mark: step.mark, body, tag });
    }

    fn pop(&mut self) {
        let Some(Stored { body, tag, .. }) = self.entries.pop() else { return };
        self.bytes.truncate(body.map_or(self.bytes.len(), |body| body.start));
        self.tags.truncate(tag.start);
    }
}

/// Appends bytes, and returns their range.
fn append(all: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(bytes);
    start..all.len()
}

/// Bounds of one read.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Most messages; values above 4,096 count as 4,096.
    pub messages: usize,
    /// Most bytes of bodies. The first message is always read; the message that exceeds the bound is left out.
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

/// References to read, as of the time when the lock was held.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// Bodies that were in memory only.
    staged: Vec<u8>,
    /// Tags that were in memory only.
    tags: Vec<u8>,
}

struct Step {
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
        let disk = &*self.disk;
        out.clear();
        let mut from = 0;
        loop {
            let plan = Plan::new(&self.shared.log(), queue, (ranges, from), limit, out);
            let mut reader = Reader { shared: &self.shared, disk, queue, open: None, tags: TagReader::new(disk) };
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
        let mut plan = Self::default();
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
            plan.steps.push(Step { reference, mark: references.mark_of(reference.sequence), source });
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
        for Step { reference, .. } in &self.steps[step + 1..] {
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
    shared: &'a Shared,
    disk: &'a dyn Disk,
    queue: QueueId,
    /// The segment of the last read.
    open: Option<(u32, Window)>,
    tags: TagReader<'a>,
}

impl Reader<'_> {
    fn follow(&mut self, plan: &Plan, limit: Limit, out: &mut Messages) -> Result<Outcome, ReadError> {
        for (index, step) in plan.steps.iter().enumerate() {
            let result = match &step.source {
                Source::Nowhere => {
                    out.push(step, None, &[]);
                    Ok(())
                }
                Source::Staged { body, tag } => {
                    let (body, tag) = (&plan.staged[body.clone()], &plan.tags[tag.clone()]);
                    out.push(step, Some(body), tag);
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
            if out.bytes.len() > limit.bytes && out.entries.len() > 1 {
                out.pop();
                return Ok(Outcome::Done);
            }
        }
        Ok(Outcome::Done)
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
            window.read_ahead(plan.window(index, limit.bytes.saturating_sub(out.bytes.len())));
        }
        let damaged = || ReadError::Damaged { path: path(), offset: position.offset() };
        let found = window.record(Spot { seed, offset: position.offset() }, end).map_err(io)?;
        let Found::Record { record: Record::Message(message), .. } = found else { return Err(damaged()) };
        let tag = match tag {
            Tag::Message(place) => message.tag(*place).ok_or_else(damaged)?,
            Tag::Staged(range) => &plan.tags[range.clone()],
            Tag::File(at) => read_tag(&mut self.tags, *at)?,
        };
        out.push(step, Some(message.body), tag);
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
