//! Space that is given back.

use std::{
    fmt, io, mem,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    disk::Disk,
    log::{Damage, Log},
    names::{Place, Position},
    record::{Entry, Message, Spot},
    segment::{FIRST_RECORD, Segment, log_name, spare_name},
    shared::Shared,
    tags::{MoveAt, TagAt, TagReader, pending_tag},
    window::{Found, Window},
};

/// Segments leave from the oldest one on. So whatever says that something is done leaves after what it is about, and no
/// record is needed to say so again.
///
/// What lives in the oldest one may live long, while nearly all behind it is done. So when more than half of the log is
/// done, the oldest segment's living records are appended again. At most as much is copied so as is appended otherwise,
/// and the log is never much more than twice what lives.
pub(super) struct Reclaim {
    disk: Arc<dyn Disk>,
    /// Segments below may go when the log is safe up to here.
    leaving: Option<(u32, Position)>,
    /// They have left, and their files are to be taken.
    left: Range<u32>,
    copying: Option<Copying>,
    /// Bytes that the last step appended.
    copied: usize,
    /// Copying failed so often in a row; not before this time again.
    failures: u32,
    retry_at: Option<Instant>,
    /// Files that are to be used again, as long as a segment usually is. The last one is only for a log that could not go
    /// on without: with a full disk, what gives space back has to be written first.
    spares: Vec<String>,
    living: Living,
    pieces: Pieces,
}

/// How much is looked at, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Under the lock at once.
    pub(super) block: usize,
    /// Between two writes, at least.
    pub(super) step: usize,
}

const PIECES: Pieces = Pieces { block: 64 << 10, step: 256 << 10 };

/// The oldest segment, as far as it has been looked at.
struct Copying {
    segment: u32,
    offset: u32,
    end: u32,
    seed: u32,
    window: Window,
}

/// A log of fewer segments is not worth any copying.
const SEGMENTS_MIN: usize = 4;
const SPARES_MAX: usize = 2;
/// To remove a file may take a while, and what is appended waits for it.
pub(super) const FILES_A_STEP: u32 = 8;
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(64);
/// What cannot be read is taken for damage after so many failures.
pub(super) const FAILURES_MAX: u32 = 4;

impl Reclaim {
    pub(super) fn new(disk: Arc<dyn Disk>, spares: Vec<String>) -> Self {
        Self {
            disk,
            leaving: None,
            left: 0..0,
            copying: None,
            copied: 0,
            failures: 0,
            retry_at: None,
            spares,
            living: Living::default(),
            pieces: PIECES,
        }
    }

    #[cfg(test)]
    pub(super) fn set_pieces(&mut self, pieces: Pieces) {
        self.pieces = pieces;
    }

    #[cfg(test)]
    pub(super) fn pass_time(&mut self) {
        self.retry_at = self.retry_at.map(|_| Instant::now());
    }

    #[cfg(test)]
    pub(super) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    pub(super) fn take_spare(&mut self) -> Option<String> {
        if self.spares.len() > 1 { self.spares.pop() } else { None }
    }

    pub(super) fn take_last_spare(&mut self) -> Option<String> {
        self.spares.pop()
    }

    /// Spare files that messages may take.
    pub(super) fn spares_for_messages(&self) -> u64 {
        (self.spares.len() as u64).saturating_sub(1)
    }

    pub(super) fn has_spare(&self) -> bool {
        !self.spares.is_empty()
    }

    pub(super) fn make_spare(&mut self, bytes: u32) -> io::Result<()> {
        // Of no segment.
        let name = spare_name(0);
        if let Err(error) = self.disk.create(&name).and_then(|file| file.allocate(u64::from(bytes))) {
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        self.spares.push(name);
        Ok(())
    }

    /// Does what can be done now, when the log is safe up to `synced` and so many bytes were written in the last write.
    /// Whether it appended something or has to go on.
    pub(super) fn step(&mut self, shared: &Shared, synced: Position, written: usize) -> bool {
        self.begin_copying(shared, synced);
        // What was copied in the last step is in the last write too.
        let appended = written.saturating_sub(mem::take(&mut self.copied));
        if self.copying.is_some() {
            self.copied = self.copy(shared, appended.max(self.pieces.step));
        }
        let is_begun = self.leaving.is_none() && self.begin(shared);
        is_begun || self.copied > 0 || self.copying.is_some()
    }

    /// Says that the oldest segments are not needed.
    fn begin(&mut self, shared: &Shared) -> bool {
        let mut log = shared.log();
        let count = log.index.segments.dead_count();
        if count > 0 {
            let oldest = log.index.segments.oldest() + count;
            self.leaving = Some((oldest, log.reclaim(oldest)));
        }
        count > 0
    }

    /// Takes their files when that is safe, some at a time. Bytes that go back to the file system; `None`: there were no
    /// files.
    pub(super) fn finish(&mut self, shared: &Shared, synced: Position) -> Option<u64> {
        if self.left.is_empty()
            && let Some((oldest, _)) = self.leaving.take_if(|(_, position)| *position <= synced)
        {
            self.left = self.forget(shared, oldest);
        }
        let bytes = shared.segment_bytes();
        let some = self.left.start..self.left.end.min(self.left.start + FILES_A_STEP);
        self.left.start = some.end;
        let mut given = 0;
        for number in some.clone() {
            let name = log_name(number);
            let length = self.disk.open(&name).and_then(|file| file.length()).unwrap_or(0);
            match self.spare(number, bytes) {
                Some(spare) => {
                    self.spares.push(spare);
                    given += length.saturating_sub(bytes.into());
                }
                // A file that stays is removed at the next opening.
                None => given += self.disk.remove(&name).map_or(0, |()| length),
            }
        }
        (!some.is_empty()).then_some(given)
    }

    /// These segments are no more: nobody looks at them again.
    fn forget(&mut self, shared: &Shared, oldest: u32) -> Range<u32> {
        let mut log = shared.log();
        // What is read there from now on may be what was written to the file after it left.
        log.has_rolled |= self.copying.take_if(|copying| copying.segment < oldest).is_some();
        self.failures = 0;
        let leaving = log.index.segments.oldest()..oldest;
        log.index.segments.forget_below(oldest);
        drop(log);
        shared.change_health(|log| drop(log.damage.take_if(|damage| damage.segment < oldest)));
        leaving
    }

    /// A segment's file to be used again, if one is wanted.
    fn spare(&self, number: u32, bytes: u32) -> Option<String> {
        if self.spares.len() >= SPARES_MAX {
            return None;
        }
        let (name, spare) = (log_name(number), spare_name(number));
        let bytes = u64::from(bytes);
        let file = self.disk.open(&name).ok()?;
        match file.length().ok()? {
            length if length > bytes => file.truncate(bytes).ok()?,
            length if length < bytes => file.allocate(bytes).ok()?,
            _ => {}
        }
        self.disk.rename(&name, &spare).ok()?;
        Some(spare)
    }

    fn begin_copying(&mut self, shared: &Shared, synced: Position) {
        if self.copying.is_some() || self.retry_at.is_some_and(|time| time > Instant::now()) {
            return;
        }
        self.retry_at = None;
        let mut log = shared.log();
        let is_short = log.shortage.is_some();
        if !log.is_to_look() && !is_short {
            return;
        }
        let segments = &log.index.segments;
        // The dead ones in front leave on their own.
        let dead = segments.dead_count();
        let oldest = segments.oldest() + dead;
        let is_worth_it = is_worth_copying(segments.iter().skip(dead as usize), is_short);
        // It has to be in its file.
        let is_safe = Position::new(oldest + 1, 0) <= synced;
        // Where there is no room for more, at least what is copied has it: in the last spare, or where the log ends.
        let has_room = |segment: &Segment| !is_short || self.has_spare() || 2 * segment.live_bytes() < log.room();
        let is_safe = is_safe && segments.get(oldest).is_some_and(has_room);
        let segment = segments.get(oldest).filter(|_| is_worth_it && is_safe).copied();
        drop(log);
        let Some(Segment { seed, end, .. }) = segment else {
            // It is in nobody's way, and may be whole.
            return shared.change_health(|log| drop(log.damage.take_if(|damage| damage.is_unreadable)));
        };
        match self.disk.open(&log_name(oldest)) {
            Ok(file) => {
                let window = Window::new(file, self.pieces.block);
                self.copying = Some(Copying { segment: oldest, offset: FIRST_RECORD, end, seed, window });
            }
            Err(error) => self.put_off(shared, oldest, 0, &Stop::Io(error)),
        }
    }

    /// Goes through so many bytes of the oldest segment. Bytes that were appended.
    fn copy(&mut self, shared: &Shared, bytes: usize) -> usize {
        let mut copied = 0;
        let mut looked_at = 0;
        while let Some(mut copying) = self.copying.take() {
            let before = copying.offset;
            let is_done = copying.offset >= copying.end || copying.living(shared) == 0;
            if is_done {
                self.end_copying(shared, &copying);
                break;
            }
            if looked_at >= bytes {
                self.copying = Some(copying);
                break;
            }
            match copying.block(shared, &*self.disk, &mut self.living, self.pieces.block) {
                Ok(count) => copied += count,
                // Where nothing lives any more it does not matter.
                Err(_) if copying.living(shared) == 0 => {}
                Err(stop) => {
                    self.put_off(shared, copying.segment, copying.offset, &stop);
                    break;
                }
            }
            looked_at += (copying.offset - before) as usize;
            self.copying = Some(copying);
        }
        copied
    }

    /// Nothing lives there now; if the log is still more than it should be, the next one is looked at.
    fn end_copying(&mut self, shared: &Shared, copying: &Copying) {
        if copying.living(shared) > 0 {
            let stop = Stop::Damage("its records do not hold what they should");
            return self.put_off(shared, copying.segment, 0, &stop);
        }
        self.failures = 0;
        shared.change_health(|log| {
            log.has_rolled = true;
            log.damage = None;
        });
    }

    /// A passing failure is none of the log: what is there is tried again later.
    fn put_off(&mut self, shared: &Shared, segment: u32, offset: u32, stop: &Stop) {
        self.copying = None;
        self.retry_at = Some(Instant::now() + (RETRY_FIRST * (1 << self.failures.min(6))).min(RETRY_MAX));
        self.failures += 1;
        let is_unreadable = matches!(stop, Stop::Io(_));
        let is_damage = !is_unreadable || self.failures >= FAILURES_MAX;
        let path = self.disk.path(&log_name(segment));
        shared.change_health(|log| {
            log.has_rolled = true;
            if is_damage {
                let error = format!("{}: offset {offset}: {stop}", path.display());
                log.damage = Some(Damage { segment, is_unreadable, error });
            }
        });
    }
}

/// Whether more than half of what is needed is done; where there is no room for more, of the oldest ones, however many.
fn is_worth_copying<'a>(needed: impl Iterator<Item = &'a Segment>, is_short: bool) -> bool {
    let mut halves = needed.scan((0, 0), |(total, live), segment| {
        (*total, *live) = (*total + u64::from(segment.end), *live + segment.live_bytes());
        Some(*total > 2 * *live)
    });
    match is_short {
        true => halves.any(|is_half| is_half),
        false => halves.enumerate().last().is_some_and(|(index, is_half)| index >= SEGMENTS_MIN && is_half),
    }
}

/// Why a segment cannot be copied.
enum Stop {
    Io(io::Error),
    Damage(&'static str),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Damage(what) => f.write_str(what),
        }
    }
}

impl Copying {
    fn living(&self, shared: &Shared) -> u32 {
        shared.log().index.segments.get(self.segment).map_or(0, |segment| segment.live)
    }

    /// One block, under the lock. Bytes that were appended.
    fn block(&mut self, shared: &Shared, disk: &dyn Disk, living: &mut Living, bytes: usize) -> Result<usize, Stop> {
        // Has it read before the lock is taken.
        if let Found::Bad(bad) = self.window.record(self.spot(), self.end)? {
            return Err(Stop::Damage(bad.text()));
        }
        let mut copied = 0;
        let mut log = shared.log();
        let positions = Position::new(self.segment, self.offset)..Position::new(self.segment, self.window.end());
        let moves = Living::moves_in_files(&log, positions);
        if !moves.is_empty() {
            drop(log);
            living.read_tags(disk, moves)?;
            log = shared.log();
        }
        while self.offset < self.end && copied < bytes && self.window.holds_record(self.offset) {
            match self.window.record(self.spot(), self.end)? {
                Found::Record { record, next } => {
                    let position = Position::new(self.segment, self.offset);
                    let missing = Stop::Damage("the tag of a message that was moved is not known");
                    copied += log.copy(&record, position, living).ok_or(missing)?;
                    self.offset = next;
                }
                Found::Bad(bad) => return Err(Stop::Damage(bad.text())),
            }
        }
        shared.note_pending(&log);
        Ok(copied)
    }

    fn spot(&self) -> Spot {
        Spot { seed: self.seed, offset: self.offset }
    }
}

/// Where a message lives, with all that is stored for these places. Its memory is used again.
#[derive(Default)]
pub(super) struct Living {
    places: Vec<(Place, Range<usize>, u32)>,
    tags: Vec<u8>,
    /// Tags of moves that were read from their files.
    read: FxHashMap<Position, Vec<u8>>,
}

impl Living {
    /// Nothing if a tag is missing.
    pub(super) fn find(&mut self, log: &Log, message: &Message<'_>, position: Position) -> Option<()> {
        self.places.clear();
        self.tags.clear();
        for Entry { place, tag, .. } in message.entries().filter(|entry| log.index.is_living(entry.place, position)) {
            push(&mut self.places, &mut self.tags, place, tag, log.index.mark_of(place));
        }
        for (place, tag) in log.index.moved(position..position.next()) {
            let tag = match tag {
                TagAt::Message(place) => message.tag(place)?,
                // What was moved since the others were read is still in memory: nobody else takes it from there.
                TagAt::Move(position) => {
                    pending_tag(log, position).or_else(|| self.read.get(&position).map(Vec::as_slice))?
                }
            };
            push(&mut self.places, &mut self.tags, place, tag, log.index.mark_of(place));
        }
        Some(())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> + Clone {
        self.places.iter().map(|(place, tag, mark)| Entry { place: *place, tag: &self.tags[tag.clone()], mark: *mark })
    }

    /// Moves that gave tags to messages of a stretch of the log, and are not in memory.
    fn moves_in_files(log: &Log, messages: Range<Position>) -> Vec<MoveAt> {
        let moves = log.index.moved(messages).filter_map(|(_, tag)| match tag {
            TagAt::Move(position) if log.pending.at(position).is_none() => Some(MoveAt::new(log, position)),
            _ => None,
        });
        moves.collect()
    }

    fn read_tags(&mut self, disk: &dyn Disk, moves: Vec<MoveAt>) -> io::Result<()> {
        self.read.clear();
        let mut reader = TagReader::new(disk);
        for at in moves {
            if let Some(tag) = reader.tag(at)? {
                self.read.insert(at.position, tag.to_vec());
            }
        }
        Ok(())
    }
}

fn push(places: &mut Vec<(Place, Range<usize>, u32)>, tags: &mut Vec<u8>, place: Place, tag: &[u8], mark: u32) {
    let start = tags.len();
    tags.extend_from_slice(tag);
    places.push((place, start..tags.len(), mark));
}
