//! Reclaiming of log space.

use std::{
    io, mem,
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
    shared::SharedLog,
    tags::{MoveAt, TagAt, TagReader, pending_tag},
    window::{Found, Window},
};

/// Reclaims segments from the oldest on.
///
/// A record that ends a message is newer than the message, so it leaves the log later, and needs no copy.
///
/// Living records can keep the oldest segment while nearly all later records are done. So once more than half of the
/// log is done, the oldest segment's living records are appended again. Copying appends no more bytes than callers do,
/// and the log stays not much larger than twice its living data.
pub(super) struct Reclaim {
    disk: Arc<dyn Disk>,
    /// Lower segments may be removed once the log is durable up to this position.
    leaving: Option<(u32, Position)>,
    /// Segments that left the log and whose files are still to be removed or reused.
    left: Range<u32>,
    copying: Option<Copying>,
    /// Bytes that the last step appended.
    copied: usize,
    /// Consecutive copying failures; no new attempt before `retry_at`.
    failures: u32,
    retry_at: Option<Instant>,
    /// Spare segments for reuse, each of the usual segment length.
    ///
    /// Only a log that cannot continue otherwise takes the last one: on a full disk, acknowledgements must be written
    /// before space can be reclaimed.
    spares: Vec<String>,
    living: Living,
    pieces: Pieces,
}

/// Amounts of log to process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Per acquisition of the lock.
    pub(super) block: usize,
    /// Between two writes, at least.
    pub(super) step: usize,
}

const PIECES: Pieces = Pieces { block: 64 << 10, step: 256 << 10 };

/// Progress in the oldest segment.
struct Copying {
    segment: u32,
    offset: u32,
    end: u32,
    seed: u32,
    window: Window,
}

/// Name of the first spare segment of the full size; none of the others has it.
const GROWN_SPARE: &str = "grown.spare";
/// Logs of fewer segments are not copied.
const SEGMENTS_MIN: usize = 4;
const SPARES_MAX: usize = 2;
/// Bounds the files removed in one step: removing a file may take a while, and delays appended records.
pub(super) const FILES_A_STEP: u32 = 8;
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(64);
/// After this many failures an unreadable record counts as damage.
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

    /// Spare segments that messages may take.
    pub(super) fn spares_for_messages(&self) -> u64 {
        (self.spares.len() as u64).saturating_sub(1)
    }

    pub(super) fn has_spare(&self) -> bool {
        !self.spares.is_empty()
    }

    pub(super) fn make_spare(&mut self, bytes: u32) -> io::Result<()> {
        // It belongs to no segment.
        self.make_spare_named(spare_name(0), bytes)
    }

    fn make_spare_named(&mut self, name: String, bytes: u32) -> io::Result<()> {
        if let Err(error) = self.disk.create(&name).and_then(|file| file.allocate(u64::from(bytes))) {
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        self.spares.push(name);
        Ok(())
    }

    /// Makes a spare segment of another size in place of all spare segments.
    ///
    /// # Errors
    /// It cannot be made. Then the others stay.
    pub(super) fn replace_spares(&mut self, bytes: u32) -> io::Result<()> {
        let old = mem::take(&mut self.spares);
        if let Err(error) = self.make_spare_named(GROWN_SPARE.to_owned(), bytes) {
            self.spares = old;
            return Err(error);
        }
        for spare in old {
            // The next opening removes a file that stays.
            let _ = self.disk.remove(&spare);
        }
        Ok(())
    }

    /// Does the reclaiming that is possible now. True if it appended something or has more to do.
    ///
    /// The log is durable up to `synced`, and the last write had `written` bytes.
    pub(super) fn step(&mut self, shared: &SharedLog, synced: Position, written: usize) -> bool {
        self.begin_copying(shared, synced);
        // The last write includes the records that the last step copied.
        let appended = written.saturating_sub(mem::take(&mut self.copied));
        if self.copying.is_some() {
            self.copied = self.copy(shared, appended.max(self.pieces.step));
        }
        let is_begun = self.leaving.is_none() && self.begin(shared);
        is_begun || self.copied > 0 || self.copying.is_some()
    }

    /// Appends a record that the oldest segments are not needed.
    fn begin(&mut self, shared: &SharedLog) -> bool {
        let mut log = shared.log();
        let count = log.index.segments.dead_count();
        if count > 0 {
            let oldest = log.index.segments.oldest() + count;
            self.leaving = Some((oldest, log.reclaim(oldest)));
        }
        count > 0
    }

    /// Removes or reuses the files of such segments once that record is durable, some at a time.
    ///
    /// Returns the bytes given back to the file system; `None` if there were no files.
    pub(super) fn finish(&mut self, shared: &SharedLog, synced: Position) -> Option<u64> {
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
                // The next opening removes a file that stays.
                None => given += self.disk.remove(&name).map_or(0, |()| length),
            }
        }
        (!some.is_empty()).then_some(given)
    }

    /// Removes segments from the index, so that nothing reads them again.
    fn forget(&mut self, shared: &SharedLog, oldest: u32) -> Range<u32> {
        let mut log = shared.log();
        // Their files may be reused, so further reads could return other records.
        log.has_rolled |= self.copying.take_if(|copying| copying.segment < oldest).is_some();
        self.failures = 0;
        let leaving = log.index.segments.oldest()..oldest;
        log.index.segments.forget_below(oldest);
        drop(log);
        shared.change_health(|log| drop(log.damage.take_if(|damage| damage.segment < oldest)));
        leaving
    }

    /// Turns a segment's file into a spare segment, if one is wanted.
    fn spare(&self, number: u32, bytes: u32) -> Option<String> {
        if self.spares.len() >= SPARES_MAX {
            return None;
        }
        let (name, spare) = (log_name(number), spare_name(number));
        if self.disk.is_pinned(&name) {
            return None;
        }
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

    fn begin_copying(&mut self, shared: &SharedLog, synced: Position) {
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
        // Dead segments in front are removed without copying.
        let dead = segments.dead_count();
        let oldest = segments.oldest() + dead;
        let is_worth_it = is_worth_copying(segments.iter().skip(dead as usize), is_short);
        // The segment must be completely in its file.
        let is_safe = Position::new(oldest + 1, 0) <= synced;
        // On a short disk, the copied records at least need room: in the last spare, or in the current segment.
        let has_room = |segment: &Segment| !is_short || self.has_spare() || 2 * segment.live_bytes() < log.room();
        let is_safe = is_safe && segments.get(oldest).is_some_and(has_room);
        let segment = segments.get(oldest).filter(|_| is_worth_it && is_safe).copied();
        drop(log);
        let Some(Segment { seed, end, .. }) = segment else {
            // An unreadable segment that need not be copied blocks nothing, and may be intact.
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

    /// Processes up to `bytes` of the oldest segment. Returns the appended bytes.
    fn copy(&mut self, shared: &SharedLog, bytes: usize) -> usize {
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
                // A failure does not matter once nothing in the segment lives.
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

    /// Ends the copying of a segment in which nothing lives now. The next step considers the next segment.
    fn end_copying(&mut self, shared: &SharedLog, copying: &Copying) {
        if copying.living(shared) > 0 {
            let stop = Stop::Damage("its records are not those of the index");
            return self.put_off(shared, copying.segment, 0, &stop);
        }
        self.failures = 0;
        shared.change_health(|log| {
            log.has_rolled = true;
            log.damage = None;
        });
    }

    /// Ends an attempt to copy, and schedules the next one.
    ///
    /// A read error counts as damage only after [`FAILURES_MAX`] attempts.
    fn put_off(&mut self, shared: &SharedLog, segment: u32, offset: u32, stop: &Stop) {
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

/// Whether copying pays: more than half of the needed log is done.
///
/// On a short disk it is enough that this holds for the oldest segments, however few.
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
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damage(&'static str),
}

impl Copying {
    fn living(&self, shared: &SharedLog) -> u32 {
        shared.log().index.segments.get(self.segment).map_or(0, |segment| segment.live)
    }

    /// Copies one block, under the lock. Returns the appended bytes.
    fn block(&mut self, shared: &SharedLog, disk: &dyn Disk, living: &mut Living, bytes: usize) -> Result<usize, Stop> {
        // Reads the block before taking the lock.
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

/// The entries for which a message lives, with their tags and marks. Its memory is reused.
#[derive(Default)]
pub(super) struct Living {
    places: Vec<(Place, Range<usize>, u32)>,
    tags: Vec<u8>,
    /// Tags of moves that were read from files.
    read: FxHashMap<Position, Vec<u8>>,
}

impl Living {
    /// Finds the living entries of a message; `None` if a tag is missing.
    pub(super) fn find(&mut self, log: &Log, message: &Message<'_>, position: Position) -> Option<()> {
        self.places.clear();
        self.tags.clear();
        for Entry { place, tag, .. } in message.entries().filter(|entry| log.index.is_living(entry.place, position)) {
            push(&mut self.places, &mut self.tags, place, tag, log.index.mark_of(place));
        }
        for (place, tag) in log.index.moved(position..position.next()) {
            let tag = match tag {
                TagAt::Message(place) => message.tag(place)?,
                // A move since the tags were read is still in memory: only this thread writes it to disk.
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

    /// Returns the moves that gave tags to messages of this stretch and are not in memory.
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
