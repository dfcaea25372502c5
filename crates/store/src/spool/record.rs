//! Encoding of records.
//!
//! ```text
//! 0        4        8      9       10           12        16
//! ┌────────┬────────┬──────┬───────┬────────────┬─────────┬──────────────────────────────┬─────────┐
//! │ length │ crc32c │ type │ flags │ identifier │ places  │ words of 8 bytes, then bytes │ 0 to 8n │
//! └────────┴────────┴──────┴───────┴────────────┴─────────┴──────────────────────────────┴─────────┘
//! length   without the zeros at the end (padding)
//! crc32c   of everything from `type` on, with a seed unique to this offset of this segment
//! places   of a message: number of its queues; otherwise 0
//! ```
//!
//! The remainder of a message's record, after `places`:
//!
//! ```text
//! ┌─────────┬────────────────────────┬────────────────────┬─────────────────────────────────────┬──────┐
//! │ origin? │ queue, sequence … 16 B │ if any: mark … 4 B │ if any: length of a tag … 1 B, tag … │ body │
//! └─────────┴────────────────────────┴────────────────────┴─────────────────────────────────────┴──────┘
//! ```
//!
//! All numbers are little-endian. A record begins at a multiple of 8.

use super::{
    names::{Body, Origin, Place, Position, QueueId, Sequence},
    runs::MarkRun,
};

/// A record of the log. Applying all records in order yields the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// First record of a segment: the oldest segment needed at that time, and the end of the previous segment.
    Begin { oldest: u32, previous_end: u32 },
    /// Everything before this position was on the disk when this record was written.
    Synced(Position),
    /// A message with its entries.
    Message(Message<'a>),
    /// Ends a range of messages.
    Acknowledge { queue: QueueId, from: Sequence, to: Sequence },
    /// Sets ascending marks on consecutive entries.
    Mark(MarkRun),
    /// Holds a Packet Identifier.
    Hold(Origin),
    /// Releases a Packet Identifier.
    Release(Origin),
    /// Moves a message to another entry, with this tag or its present one.
    Move { from: Place, to: Place, tag: Option<&'a [u8]> },
    /// Ends all messages of a queue and releases its Packet Identifiers.
    DropQueue(QueueId),
    /// Segments below this one are not needed.
    Reclaimed { oldest: u32 },
    /// Last record of a log that was closed in order: all of it was confirmed.
    Closed,
}

/// A message's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) origin: Option<Origin>,
    /// 16 bytes each.
    places: &'a [u8],
    /// 4 bytes for each entry; empty if no entry is marked.
    marks: &'a [u8],
    /// 1 byte for each entry; empty if no entry has a tag.
    tag_lengths: &'a [u8],
    tags: &'a [u8],
    pub(super) body: &'a [u8],
}

/// An entry in a message's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) place: Place,
    pub(super) tag: &'a [u8],
    /// Set by copying; 0 when first appended.
    pub(super) mark: u32,
}

impl<'a> Message<'a> {
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let (mut lengths, mut tags) = (self.tag_lengths.iter(), self.tags);
        let mut marks = self.marks.as_chunks().0.iter();
        self.places.chunks_exact(PLACE).map(move |bytes| {
            let length = lengths.next().map_or(0, |&length| usize::from(length));
            let tag = tags.split_off(..length).unwrap_or_default();
            let mark = marks.next().map_or(0, |&mark| u32::from_le_bytes(mark));
            Entry { place: place(word(bytes, 0), word(bytes, 8)), tag, mark }
        })
    }

    /// Returns the tag of an entry; the last one if the record names the entry twice.
    pub(super) fn tag(&self, place: Place) -> Option<&'a [u8]> {
        let mut sought = [0; PLACE];
        sought[..8].copy_from_slice(&place.queue.0.to_le_bytes());
        sought[8..].copy_from_slice(&place.sequence.0.to_le_bytes());
        let index = self.places.chunks_exact(PLACE).rposition(|bytes| bytes == sought)?;
        let Some(&length) = self.tag_lengths.get(index) else { return Some(&[]) };
        let start = tag_bytes(&self.tag_lengths[..index]);
        self.tags.get(start..start + usize::from(length))
    }
}

fn tag_bytes(lengths: &[u8]) -> usize {
    lengths.iter().map(|&length| usize::from(length)).sum()
}

/// Location of a record, and the seed of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) seed: u32,
    pub(super) offset: u32,
}

/// Returns the checksum seed of a segment. It makes old records in a reused file invalid.
pub(super) fn seed_of(segment: u32, salt: u64) -> u32 {
    crc32c::crc32c_append(segment, &salt.to_le_bytes())
}

/// Length of the fixed header.
pub(super) const HEADER: usize = 16;
const PLACE: usize = 16;
pub(super) const BEGIN_BYTES: u32 = HEADER as u32 + 8;
pub(super) const SYNCED_BYTES: u32 = HEADER as u32 + 8;

/// Longest record. Fits any MQTT message; an offset has 32 bits.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 30;

const BEGIN: u8 = 1;
const SYNCED: u8 = 2;
const MESSAGE: u8 = 3;
const ACKNOWLEDGE: u8 = 4;
const MARK: u8 = 5;
const HOLD: u8 = 6;
const RELEASE: u8 = 7;
const MOVE: u8 = 8;
const DROP_QUEUE: u8 = 9;
const RECLAIMED: u8 = 10;
const CLOSED: u8 = 11;

/// Flag of a message: the first word is the queue of its origin.
const HAS_ORIGIN: u8 = 1;
/// Flag of a message: its entries have tags. Flag of a move: it gives a tag.
const HAS_TAGS: u8 = 2;
/// Flag of a message: its entries have marks.
const HAS_MARKS: u8 = 4;
const FLAGS: u8 = HAS_ORIGIN | HAS_TAGS | HAS_MARKS;

/// Longest tag, in bytes.
pub(super) const TAG_BYTES_MAX: usize = 255;

/// Sizes of the parts of a message's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    places: usize,
    tags: usize,
    has_marks: bool,
    has_origin: bool,
    body: usize,
}

impl Shape {
    pub(super) fn new<'a>(entries: impl Iterator<Item = Entry<'a>>, has_origin: bool, body: usize) -> Self {
        entries.fold(Self { places: 0, tags: 0, has_marks: false, has_origin, body }, |shape, entry| Self {
            places: shape.places + 1,
            tags: shape.tags + entry.tag.len(),
            has_marks: shape.has_marks || entry.mark != 0,
            ..shape
        })
    }

    /// Length of the record, without padding.
    pub(super) fn bytes(&self) -> usize {
        let each = PLACE + 4 * usize::from(self.has_marks) + usize::from(self.has_tags());
        let before = HEADER + 8 * usize::from(self.has_origin) + each * self.places + self.tags;
        before.saturating_add(self.body)
    }

    pub(super) fn has_places(&self) -> bool {
        self.places > 0
    }

    pub(super) fn body_bytes(&self) -> usize {
        self.body
    }

    fn has_tags(&self) -> bool {
        self.tags > 0
    }
}

/// Length of any record except a message.
pub(super) fn plain_bytes(record: &Record<'_>) -> usize {
    let words = words_of(record);
    HEADER + 8 * words.count + words.tag.map_or(0, <[u8]>::len)
}

/// Appends a message of this shape. No tag may exceed [`TAG_BYTES_MAX`].
pub(super) fn write_message<'a>(
    out: &mut Vec<u8>,
    spot: Spot,
    shape: Shape,
    entries: impl Iterator<Item = Entry<'a>> + Clone,
    origin: Option<Origin>,
    body: &[&[u8]],
) {
    let start = out.len();
    let identifier = origin.map_or(0, |origin| origin.identifier);
    let flags = [(origin.is_some(), HAS_ORIGIN), (shape.has_tags(), HAS_TAGS), (shape.has_marks, HAS_MARKS)];
    let flags = flags.into_iter().fold(0, |flags, (has, flag)| if has { flags | flag } else { flags });
    write_header(out, MESSAGE, flags, identifier, shape.places as u32);
    if let Some(origin) = origin {
        out.extend_from_slice(&origin.queue.0.to_le_bytes());
    }
    for Entry { place, .. } in entries.clone() {
        out.extend_from_slice(&place.queue.0.to_le_bytes());
        out.extend_from_slice(&place.sequence.0.to_le_bytes());
    }
    if shape.has_marks {
        entries.clone().for_each(|entry| out.extend_from_slice(&entry.mark.to_le_bytes()));
    }
    if shape.has_tags() {
        out.extend(entries.clone().map(|entry| entry.tag.len() as u8));
        entries.for_each(|entry| out.extend_from_slice(entry.tag));
    }
    for part in body {
        out.extend_from_slice(part);
    }
    finish(out, start, spot);
}

/// Appends any record except a message.
pub(super) fn write_plain(out: &mut Vec<u8>, spot: Spot, record: &Record<'_>) {
    let start = out.len();
    let words = words_of(record);
    let flags = if words.tag.is_some() { HAS_TAGS } else { 0 };
    write_header(out, words.kind, flags, words.identifier, 0);
    for word in &words.words[..words.count] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(words.tag.unwrap_or_default());
    finish(out, start, spot);
}

fn write_header(out: &mut Vec<u8>, kind: u8, flags: u8, identifier: u16, places: u32) {
    let mut header = [0; HEADER];
    header[8] = kind;
    header[9] = flags;
    header[10..12].copy_from_slice(&identifier.to_le_bytes());
    header[12..16].copy_from_slice(&places.to_le_bytes());
    out.extend_from_slice(&header);
}

fn finish(out: &mut Vec<u8>, start: usize, spot: Spot) {
    let length = (out.len() - start) as u32;
    let crc = checksum(spot, length, &out[start + 8..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + padded(length as usize), 0);
}

/// Length with padding.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Computes the checksum. It includes length and offset, so a truncated or misplaced record is invalid.
fn checksum(spot: Spot, length: u32, from_type_on: &[u8]) -> u32 {
    crc32c::crc32c_append(spot.seed ^ length ^ spot.offset.rotate_left(13), from_type_on)
}

/// Checksum of a record that is read in parts.
pub(super) struct Checksum(u32);

impl Checksum {
    /// Begins with the first bytes of the record, of at least the size of [`HEADER`].
    pub(super) fn begin(spot: Spot, length: u32, head: &[u8]) -> Self {
        Self(checksum(spot, length, &head[8..]))
    }

    pub(super) fn add(&mut self, next: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, next);
    }

    /// Whether the record states this checksum.
    pub(super) fn is_right(&self, head: &[u8]) -> bool {
        head[4..8] == self.0.to_le_bytes()
    }
}

/// Parses the beginning of a message's record, which verifies nothing. Its body is as long as the beginning permits.
pub(super) fn beginning(bytes: &[u8]) -> Option<Message<'_>> {
    let rest = bytes.get(HEADER..).filter(|_| bytes[8] == MESSAGE)?;
    message(bytes, u16::from_le_bytes([bytes[10], bytes[11]]), rest)
}

/// Fields of any record except a message.
struct Words<'a> {
    kind: u8,
    identifier: u16,
    words: [u64; 4],
    count: usize,
    tag: Option<&'a [u8]>,
}

fn words_of<'a>(record: &Record<'a>) -> Words<'a> {
    let tag = if let Record::Move { tag, .. } = record { *tag } else { None };
    let (kind, identifier, words, count) = match *record {
        Record::Begin { oldest, previous_end } => {
            (BEGIN, 0, [u64::from(oldest) << 32 | u64::from(previous_end), 0, 0, 0], 1)
        }
        Record::Synced(position) => (SYNCED, 0, [position.bits(), 0, 0, 0], 1),
        Record::Acknowledge { queue, from, to } => (ACKNOWLEDGE, 0, [queue.0, from.0, to.0, 0], 3),
        Record::Mark(MarkRun { queue, from, to, first, body }) => {
            let body = u64::from(body == Body::Done) << 32;
            (MARK, 0, [queue.0, from.0, to.0, body | u64::from(first)], 4)
        }
        Record::Hold(origin) => (HOLD, origin.identifier, [origin.queue.0, 0, 0, 0], 1),
        Record::Release(origin) => (RELEASE, origin.identifier, [origin.queue.0, 0, 0, 0], 1),
        Record::Move { from, to, .. } => (MOVE, 0, [from.queue.0, from.sequence.0, to.queue.0, to.sequence.0], 4),
        Record::DropQueue(queue) => (DROP_QUEUE, 0, [queue.0, 0, 0, 0], 1),
        Record::Reclaimed { oldest } => (RECLAIMED, 0, [u64::from(oldest), 0, 0, 0], 1),
        Record::Closed => (CLOSED, 0, [0; 4], 0),
        Record::Message(_) => unreachable!("messages are written by `write_message`"),
    };
    Words { kind, identifier, words, count, tag }
}

/// Returns the length in the header at the start of `bytes`, if it is possible.
pub(super) fn length_at(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (HEADER..=RECORD_BYTES_MAX).contains(&length).then_some(length)
}

/// Whether these bytes can be a `Synced` record. A cheap test before the checksum.
pub(super) fn may_be_synced(bytes: &[u8]) -> bool {
    length_at(bytes) == Some(SYNCED_BYTES as usize) && bytes.get(8) == Some(&SYNCED)
}

/// Whether these bytes can be any record. A cheap test before the checksum.
pub(super) fn may_be_record(bytes: &[u8]) -> bool {
    let kind = bytes.get(8).copied().unwrap_or(0);
    length_at(bytes).is_some() && (BEGIN..=CLOSED).contains(&kind) && bytes.get(9).is_some_and(|&flags| flags <= FLAGS)
}

/// Why bytes are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// No length, or one beyond the end of the file.
    Length,
    Checksum,
    /// The checksum is right, but this version does not know the record.
    Unknown,
}

impl Bad {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Length => "no record",
            Self::Checksum => "a record with a wrong checksum",
            Self::Unknown => "a record of a kind that this version does not know",
        }
    }
}

/// Parses a record from exactly [`length_at`] bytes.
pub(super) fn parse(bytes: &[u8], spot: Spot) -> Result<Record<'_>, Bad> {
    let crc = u32::from_le_bytes(*bytes.get(4..).and_then(<[u8]>::first_chunk).ok_or(Bad::Length)?);
    let rest = bytes.get(8..).ok_or(Bad::Length)?;
    if checksum(spot, bytes.len() as u32, rest) != crc {
        return Err(Bad::Checksum);
    }
    understand(bytes).ok_or(Bad::Unknown)
}

fn understand(bytes: &[u8]) -> Option<Record<'_>> {
    let identifier = u16::from_le_bytes(*bytes.get(10..)?.first_chunk()?);
    let rest = bytes.get(HEADER..)?;
    let kind = bytes[8];
    if kind == MESSAGE {
        return message(bytes, identifier, rest).map(Record::Message);
    }
    let (rest, tag) = match bytes[9] {
        0 => (rest, None),
        HAS_TAGS if kind == MOVE => rest.split_at_checked(32).map(|(rest, tag)| (rest, Some(tag)))?,
        _ => return None,
    };
    let is_whole = rest.len().is_multiple_of(8) && rest.len() <= 32;
    let number = |index: usize| word(rest, 8 * index);
    let origin = || Origin { queue: QueueId(number(0)), identifier };
    Some(match (kind, rest.len() / 8) {
        _ if !is_whole => return None,
        (BEGIN, 1) => Record::Begin { oldest: (number(0) >> 32) as u32, previous_end: number(0) as u32 },
        (SYNCED, 1) => Record::Synced(Position::from_bits(number(0))),
        (ACKNOWLEDGE, 3) => {
            Record::Acknowledge { queue: QueueId(number(0)), from: Sequence(number(1)), to: Sequence(number(2)) }
        }
        (MARK, 4) => {
            let body = match number(3) >> 32 {
                0 => Body::Kept,
                1 => Body::Done,
                _ => return None,
            };
            let (from, to, first) = (Sequence(number(1)), Sequence(number(2)), number(3) as u32);
            let run = MarkRun { queue: QueueId(number(0)), from, to, first, body };
            run.last().map(|_| Record::Mark(run))?
        }
        (HOLD, 1) => Record::Hold(origin()),
        (RELEASE, 1) => Record::Release(origin()),
        (MOVE, 4) => Record::Move { from: place(number(0), number(1)), to: place(number(2), number(3)), tag },
        (DROP_QUEUE, 1) => Record::DropQueue(QueueId(number(0))),
        (CLOSED, 0) => Record::Closed,
        (RECLAIMED, 1) => Record::Reclaimed { oldest: u32::try_from(number(0)).ok()? },
        _ => return None,
    })
}

fn message<'a>(bytes: &[u8], identifier: u16, rest: &'a [u8]) -> Option<Message<'a>> {
    let count = u32::from_le_bytes(*bytes.get(12..)?.first_chunk()?) as usize;
    let has = |flag| bytes[9] & flag != 0;
    if bytes[9] & !FLAGS != 0 {
        return None;
    }
    let (queue, rest) = rest.split_at_checked(if has(HAS_ORIGIN) { 8 } else { 0 })?;
    let origin = has(HAS_ORIGIN).then(|| Origin { queue: QueueId(word(queue, 0)), identifier });
    let (places, rest) = rest.split_at_checked(count.checked_mul(PLACE)?)?;
    let (marks, rest) = rest.split_at_checked(if has(HAS_MARKS) { count.checked_mul(4)? } else { 0 })?;
    let (tag_lengths, rest) = rest.split_at_checked(if has(HAS_TAGS) { count } else { 0 })?;
    let (tags, body) = rest.split_at_checked(tag_bytes(tag_lengths))?;
    Some(Message { origin, places, marks, tag_lengths, tags, body })
}

fn place(queue: u64, sequence: u64) -> Place {
    Place { queue: QueueId(queue), sequence: Sequence(sequence) }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller looked at the length"))
}

#[cfg(test)]
mod tests;
