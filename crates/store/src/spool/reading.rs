//! Messages read back.

use std::{error::Error, fmt, io, ops::Range, path::PathBuf};

use super::{
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

/// The next messages of a queue. Its memory is used again from one reading to the next.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    tags: Vec<u8>,
    entries: Vec<Stored>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its place in the queue.
    pub sequence: Sequence,
    /// Its mark; 0 is none.
    pub mark: u32,
    /// Where its body is in [`Messages::bytes`]; none if it was given up.
    pub body: Option<Range<usize>>,
    /// Where its tag is in [`Messages::tags`]; that goes with the body.
    pub tag: Range<usize>,
}

impl Messages {
    /// In the order of the queue.
    pub fn iter(&self) -> impl Iterator<Item = &Stored> {
        self.entries.iter()
    }

    /// All bodies, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All tags, one behind the other.
    pub fn tags(&self) -> &[u8] {
        &self.tags
    }

    /// All bodies, to be kept; their places in it are still told by [`iter`](Self::iter).
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
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

/// Where it is then.
fn append(all: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(bytes);
    start..all.len()
}

/// How much is read at once.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Most messages; at most 4,096 count.
    pub messages: usize,
    /// Bytes of bodies: the message that goes beyond is left for the next time, unless it is the first.
    pub bytes: usize,
}

/// Why a message cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system said no.
    Io {
        /// The segment.
        path: PathBuf,
        /// Its words.
        error: io::Error,
    },
    /// It is not what was written.
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where, in bytes.
        offset: u32,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Damaged { path, offset } => {
                write!(f, "{}: offset {offset}: a message that is not what was written", path.display())
            }
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Damaged { .. } => None,
        }
    }
}

/// The lock is held for so many at most.
const MESSAGES_MAX: usize = 4096;
/// Neighbours that are no further apart are read together, since another system call takes as long.
const GAP_MAX: u32 = 16 << 10;
const WINDOW_MAX: u32 = 256 << 10;
/// Of the last message of a window only the beginning is known.
const WINDOW_MIN: u32 = 4 << 10;

/// What is to be read, as it was under the lock.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// Bodies that were only in memory.
    staged: Vec<u8>,
    /// Tags that were.
    tags: Vec<u8>,
}

struct Step {
    reference: Reference,
    mark: u32,
    source: Source,
}

enum Source {
    /// There is no body.
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
    /// With the message, at this place.
    Message(Place),
    Staged(Range<usize>),
    File(MoveAt),
}

/// Whether all of a plan was read.
enum Outcome {
    Done,
    /// From this message on the plan is not true any more: the segment went away.
    Again(u64),
}

/// Reads messages of a queue from a sequence on. See [`Spool::read`](super::Spool::read).
pub(super) fn read(
    shared: &Shared,
    disk: &dyn Disk,
    queue: QueueId,
    from: Sequence,
    limit: Limit,
    out: &mut Messages,
) -> Result<(), ReadError> {
    out.clear();
    let mut from = from.0;
    loop {
        let plan = Plan::new(&shared.log(), queue, from, limit, out);
        let mut reader = Reader { shared, disk, queue, open: None, tags: TagReader::new(disk) };
        match reader.follow(&plan, limit, out)? {
            Outcome::Done => return Ok(()),
            Outcome::Again(sequence) => from = sequence,
        }
    }
}

impl Plan {
    fn new(log: &Log, queue: QueueId, from: u64, limit: Limit, out: &Messages) -> Self {
        let mut plan = Self::default();
        let count = limit.messages.min(MESSAGES_MAX).saturating_sub(out.len());
        let Some(references) = log.index.queue(queue) else { return plan };
        for reference in references.from(from).take(count) {
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

    /// How much is read at once from this step on, if no more than so many bytes are wanted.
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
    /// The segment that was read from last.
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

    /// Reads one message, and as much of the next ones as is near it.
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

    /// Nothing if it was acknowledged meanwhile, else whether it is where it was: its segment may have been copied
    /// forward and its file written anew.
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
