//! The thread that writes the log.

mod ahead;
mod syncing;

use std::{
    io, mem,
    ops::Range,
    sync::{Arc, PoisonError},
    task::Waker,
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::{
    confirmed::Confirmed,
    disk::{Disk, DiskFile, write_all},
    log::{CommitterState, Failure},
    names::Position,
    opening::Beginning,
    options::Options,
    pause::Pause,
    pending::Part,
    reclaim::Reclaim,
    record::Spot,
    recovery::copy_in_place,
    segment::{FIRST_RECORD, log_name, prepare},
    shared::SharedLog,
    window::{Found, Window},
};
use crate::Sync;

/// Writes appended records, syncs them, and announces the new durable position.
///
/// Records that arrive during the write, or in the [`Pause`] that follows, form the next write.
///
/// After a failure, only data confirmed earlier counts. The committer closes the file, because a later `fdatasync` on
/// the same descriptor would report success for lost data. It writes all bytes from the last confirmed position on
/// again, to the same offsets, through a new descriptor. Only that descriptor's `fdatasync` makes them durable. The
/// bytes stay in memory for this; under [`Sync::Never`] the committer reads them back.
pub(super) struct Committer {
    shared: Arc<SharedLog>,
    disk: Arc<dyn Disk>,
    options: Options,
    /// Size of segments, once the log is no longer small.
    grows_to: Option<u32>,
    /// The segment of the last write.
    open: Option<OpenSegment>,
    /// The file of the next segment, made ahead of time.
    prepared: Option<(u32, Box<dyn DiskFile>)>,
    /// When to try again after making that file failed.
    prepare_after: Option<Instant>,
    /// The newest segment that has a file, and the length of that file.
    made: (u32, u32),
    /// Bytes of all files: last measured value plus later changes. Used only if there is a maximum.
    used: Option<(Instant, u64)>,
    /// The last segment of the previous run and its end; the rest of its file is to be truncated.
    to_cut: Option<(u32, u32)>,
    reclaim: Reclaim,
    written: Position,
    synced: Position,
    /// The position that `confirmed` has recorded.
    announced: Position,
    /// A stretch of a segment that was written, is not in memory, and may be lost after a failed `fdatasync`.
    unconfirmed: Option<(u32, Range<u32>)>,
    confirmed: Confirmed,
    last_sync: Instant,
    sync_ns: u64,
    pause: Pause,
    /// Batches of the last write whose callers wait for it.
    batches: usize,
    /// The last step wrote records.
    has_written: bool,
    retry_after: Option<Duration>,
    is_closing: bool,
    woken: Vec<Waker>,
}

struct OpenSegment {
    number: u32,
    file: Box<dyn DiskFile>,
    unsynced_bytes: usize,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitStep {
    /// There is more to do.
    More,
    /// Nothing to do now.
    Idle,
    /// A step failed; try again after this time.
    Failed(Duration),
}

/// Unconfirmed bytes stay in memory, and a power cut loses them.
const UNSYNCED_BYTES_MAX: usize = 8 << 20;
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

impl Committer {
    /// `last` is the last segment that the previous run wrote, and its end.
    pub(super) fn new(
        shared: Arc<SharedLog>,
        disk: Arc<dyn Disk>,
        last: Option<(u32, u32)>,
        beginning: Beginning,
    ) -> Self {
        let (options, synced) = {
            let log = shared.log();
            (log.options, log.synced)
        };
        let confirmed = Confirmed::of(&*disk);
        let Beginning { prepared, rest, spares, grows_to } = beginning;
        let last_number = last.map_or(0, |(number, _)| number);
        let made = match (&prepared, rest) {
            (Some((number, _)), _) => (*number, options.segment_bytes),
            (None, Some(header)) => (last_number, header.file_bytes),
            (None, None) => (last_number, 0),
        };
        Self {
            reclaim: Reclaim::new(Arc::clone(&disk), spares),
            shared,
            disk,
            options,
            grows_to,
            open: None,
            prepared,
            prepare_after: None,
            made,
            used: None,
            to_cut: last.filter(|_| rest.is_none()),
            written: synced,
            synced,
            announced: synced,
            unconfirmed: None,
            confirmed,
            last_sync: Instant::now(),
            sync_ns: 0,
            pause: Pause::default(),
            batches: 0,
            has_written: false,
            retry_after: None,
            is_closing: false,
            woken: Vec::new(),
        }
    }

    /// Runs until the spool is closed.
    pub(super) fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        loop {
            let wait = match self.step() {
                CommitStep::Failed(retry) => Some(retry),
                step => {
                    self.pause();
                    if step == CommitStep::More {
                        continue;
                    }
                    self.until_due()
                }
            };
            let has_failed = self.retry_after.is_some();
            if self.sleep(wait, has_failed) {
                return self.close();
            }
        }
    }

    /// Writes all appended records, then makes, copies and removes segments.
    pub(super) fn step(&mut self) -> CommitStep {
        let work = {
            let mut log = self.shared.log();
            self.is_closing |= log.is_closing;
            if self.retry_after.is_some() {
                log.pending.taken()
            } else {
                self.batches = mem::take(&mut log.waited_batches);
                log.take()
            }
        };
        let is_again = self.retry_after.is_some();
        let bytes = work.iter().map(|part| part.bytes.len()).sum();
        self.has_written = !work.is_empty();
        if !work.is_empty() || is_again || self.is_sync_due() {
            let result = self.commit(work);
            self.publish(result, bytes);
        }
        // Also after a failure: the files that `finish` removes may free the space that the write needs.
        let given = if self.is_closing { None } else { self.reclaim.finish(&self.shared, self.synced) };
        let has_given = given.is_some();
        self.note_used(|used| used.saturating_sub(given.unwrap_or(0)));
        if has_given {
            self.prepare_after = None;
        }
        if let Some(retry) = self.retry_after {
            self.tell_room();
            return CommitStep::Failed(if has_given { Duration::ZERO } else { retry });
        }
        self.prepare_next();
        self.tell_room();
        self.cut();
        let has_more = !self.is_closing && self.reclaim.step(&self.shared, self.synced, bytes);
        let is_wanted = {
            let log = self.shared.log();
            // No caller waits for records that the committer itself appended.
            log.is_waited_for || (!log.pending.is_empty() && log.not_waited_since.is_none())
        };
        if has_given || has_more || is_wanted { CommitStep::More } else { CommitStep::Idle }
    }

    /// Writes the remaining records, and then the record of an orderly end.
    pub(super) fn close(mut self) {
        self.is_closing = true;
        while self.step() == CommitStep::More {}
        if self.retry_after.is_none() {
            self.shared.log().say_closed();
            self.step();
        }
        self.shared.wakers.wake_all();
        let watchers = self.shared.log().take_watchers();
        watchers.into_iter().for_each(Waker::wake);
    }

    fn commit(&mut self, work: Vec<Arc<Part>>) -> io::Result<()> {
        self.rewrite_unconfirmed()?;
        for part in &work {
            self.open_segment(part)?;
            let Some(open) = &mut self.open else { continue };
            open.unsynced_bytes += part.bytes.len();
            let written = write_all(&*open.file, &part.bytes, u64::from(part.offset));
            written.map_err(|error| self.named(part.segment, &error))?;
            self.written = part.end();
        }
        let is_due = self.options.sync == Sync::Always || self.is_closing || self.is_sync_due();
        if is_due { self.sync() } else { self.settle() }
    }

    /// Opens the segment of a part, after all segments before it are confirmed: only the last segment can lose data.
    fn open_segment(&mut self, part: &Part) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.number == part.segment) {
            return Ok(());
        }
        self.sync()?;
        let number = part.segment;
        if self.made.0 == number && self.made.1 < part.file_bytes {
            self.remove_unused(number)?;
        }
        let prepared = self.prepared.take_if(|(prepared, _)| *prepared == number).map(|(_, file)| file);
        let file = match prepared {
            Some(file) => Ok(file),
            None if number <= self.made.0 => self.disk.open(&log_name(number)),
            None => self.make_now(part),
        };
        let file = file.map_err(|error| self.named(number, &error))?;
        self.open = Some(OpenSegment { number, file, unsynced_bytes: 0 });
        Ok(())
    }

    /// Removes a file made ahead that is too short for its first record. Nothing was written to it.
    ///
    /// Its header states its length, so the file must be made anew.
    fn remove_unused(&mut self, number: u32) -> io::Result<()> {
        self.prepared = None;
        self.disk.remove(&log_name(number)).map_err(|error| self.named(number, &error))?;
        self.used = None;
        self.made = (number - 1, 0);
        Ok(())
    }

    fn make(&mut self, number: u32, bytes: u32) -> io::Result<Box<dyn DiskFile>> {
        let spare = self.reclaim.take_spare();
        self.make_from(number, bytes, spare)
    }

    fn make_from(&mut self, number: u32, bytes: u32, spare: Option<String>) -> io::Result<Box<dyn DiskFile>> {
        let header = self.shared.log().header(number, bytes);
        let file = prepare(&*self.disk, header, spare.as_deref())?;
        if spare.is_none() {
            self.note_used(|used| used + u64::from(bytes));
        }
        self.made = (number, bytes);
        Ok(file)
    }

    /// Makes a segment when none was made ahead; on a full disk, from the last spare segment.
    ///
    /// Messages take the last spare only if it has room for all records behind them. They were booked before another
    /// program took the space, and acknowledgements must not wait for them.
    fn make_now(&mut self, part: &Part) -> io::Result<Box<dyn DiskFile>> {
        let (number, bytes) = (part.segment, part.file_bytes);
        let may_take_last =
            bytes <= self.options.segment_bytes && (!part.has_messages || number == self.shared.log().end().segment());
        if may_take_last
            && self.space().is_at_maximum()
            && let Some(spare) = self.reclaim.take_last_spare()
        {
            return self.make_from(number, bytes, Some(spare));
        }
        let made = self.make(number, bytes);
        if made.is_ok() || !may_take_last {
            return made;
        }
        let Some(spare) = self.reclaim.take_last_spare() else { return made };
        self.make_from(number, bytes, Some(spare))
    }

    /// Writes a stretch again that may be lost and is not in memory, and syncs it before more is appended behind it.
    ///
    /// Opening does the same.
    fn rewrite_unconfirmed(&mut self) -> io::Result<()> {
        let Some((number, stretch)) = self.unconfirmed.clone() else { return Ok(()) };
        let seed = self.shared.log().header(number, 0).seed();
        let end = Position::new(number, stretch.end);
        let written = self.disk.open(&log_name(number)).and_then(|file| {
            let mut window = Window::new(file, READ_BYTES);
            require_records(&mut window, seed, stretch.clone())?;
            copy_in_place(&mut window, stretch)
        });
        written.map_err(|error| self.named(number, &error))?;
        self.unconfirmed = None;
        (self.written, self.synced) = (end, end);
        Ok(())
    }

    /// Truncates the previous run's last file, once the next segment records where it ends.
    ///
    /// Until then the file's length proves that it is whole.
    fn cut(&mut self) {
        let synced = self.synced.segment();
        if let Some((number, end)) = self.to_cut.take_if(|(number, _)| *number < synced) {
            // A failure only wastes space until the segment is reclaimed.
            let _ = self.disk.open(&log_name(number)).and_then(|file| file.truncate(u64::from(end)));
        }
    }

    /// Makes every postponed action due.
    #[cfg(test)]
    pub(super) fn pass_time(&mut self) {
        self.prepare_after = self.prepare_after.map(|_| Instant::now());
        self.reclaim.pass_time();
    }

    #[cfg(test)]
    pub(super) fn reclaim(&mut self) -> &mut Reclaim {
        &mut self.reclaim
    }

    /// Publishes the result of a commit: the durable position, counters and health.
    fn publish(&mut self, result: io::Result<()>, bytes: usize) {
        let is_failed = result.is_err();
        self.retry_after = is_failed.then(|| {
            // Data that was written but not confirmed may be lost.
            if self.options.sync == Sync::Never && self.written > self.synced {
                let number = self.written.segment();
                let from = if self.synced.segment() == number { self.synced.offset() } else { 0 };
                self.unconfirmed = Some((number, from.max(FIRST_RECORD)..self.written.offset()));
            }
            (self.open, self.prepared) = (None, None);
            self.written = self.synced;
            self.retry_after.map_or(RETRY_FIRST, |before| (before * 2).min(RETRY_MAX))
        });
        if self.synced > self.announced {
            self.announced = self.synced;
            self.confirmed.write(self.synced);
        }
        let mut log = self.shared.log();
        log.synced = self.synced;
        // `Never` keeps no bytes for a failed `fdatasync`.
        let kept_from = if self.options.sync == Sync::Never && !is_failed { self.written } else { self.synced };
        log.pending.forget(kept_from);
        log.counters.commits += u64::from(!is_failed);
        log.counters.written_bytes += if is_failed { 0 } else { bytes as u64 };
        log.counters.failures += u64::from(is_failed);
        log.counters.sync_ns += mem::take(&mut self.sync_ns);
        let has_changed = is_failed != log.failure.is_some();
        log.failure = result.err().map(|error| {
            let since = log.failure.as_ref().map_or_else(SystemTime::now, |failure| failure.since);
            Failure { is_full: is_full(&error), error: error.to_string(), since }
        });
        let durable = if self.options.sync == Sync::Always { self.synced } else { self.written };
        let durable = durable.max(self.shared.durable());
        self.shared.set_durable(durable);
        self.shared.note_pending(&log);
        let watchers = if has_changed { log.take_watchers() } else { Vec::new() };
        drop(log);
        watchers.into_iter().for_each(Waker::wake);
        self.shared.progress.notify_all();
        match is_failed {
            true => self.shared.wakers.wake_all(),
            false => self.shared.wakers.wake_until(durable, &mut self.woken),
        }
    }

    /// Waits for more messages to share the next write, if that pays.
    fn pause(&mut self) {
        let batches = mem::take(&mut self.batches);
        if batches > 0 && self.options.sync == Sync::Always {
            self.pause.wait(&self.shared, batches);
        }
    }

    fn named(&self, segment: u32, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.disk.path(&log_name(segment)).display()))
    }

    /// Sleeps until there is work or `wait` has passed; after a failure, always for all of `wait`. True if the spool
    /// closes.
    ///
    /// After a write it dozes for [`WITHOUT_HURRY`]. So records for which no caller waits, for example of receivers'
    /// acknowledgements, join the next write, mostly without a wake-up.
    fn sleep(&mut self, wait: Option<Duration>, has_failed: bool) -> bool {
        let begun = Instant::now();
        let (deadline, dozes_until) = (wait.map(|wait| begun + wait), begun + WITHOUT_HURRY);
        let mut log = self.shared.log();
        loop {
            if log.is_closing {
                return true;
            }
            let now = Instant::now();
            if !has_failed && (log.is_waited_for || log.pending.bytes() >= self.options.write_bytes) {
                return false;
            }
            let dozes = self.has_written && now < dozes_until;
            let not_waited = log.not_waited_since.filter(|_| !has_failed).map(|since| since + WITHOUT_HURRY);
            let next = deadline.into_iter().chain(not_waited).min();
            if next.is_some_and(|next| next <= now) {
                return false;
            }
            let next = next.into_iter().chain(dozes.then_some(dozes_until)).min();
            log.committer = match (has_failed, dozes) {
                (true, _) => CommitterState::Works,
                (false, true) => CommitterState::Dozes,
                (false, false) => CommitterState::Sleeps,
            };
            log = match next {
                Some(next) => self.shared.work.wait_timeout(log, next - now).unwrap_or_else(PoisonError::into_inner).0,
                None => self.shared.work.wait(log).unwrap_or_else(PoisonError::into_inner),
            };
            log.committer = CommitterState::Works;
        }
    }
}

const READ_BYTES: usize = 1 << 20;
/// How long records that no caller waits for may be collected.
const WITHOUT_HURRY: Duration = Duration::from_millis(5);

/// Whether more space would help.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Checks that whole records fill a stretch.
fn require_records(window: &mut Window, seed: u32, stretch: Range<u32>) -> io::Result<()> {
    let mut offset = stretch.start;
    while offset < stretch.end {
        match window.record(Spot { seed, offset }, stretch.end)? {
            Found::Record { next, .. } => offset = next,
            Found::Bad(bad) => return Err(io::Error::other(format!("offset {offset}: {}", bad.text()))),
        }
    }
    Ok(())
}

/// Panic guard: if the writing thread panics, wakes all tasks and reports a failure.
struct PanicGuard(Arc<SharedLog>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = "the thread that writes has panicked".to_owned();
            let mut log = self.0.log();
            log.failure = Some(Failure { error, since: SystemTime::now(), is_full: false });
            let watchers = log.take_watchers();
            drop(log);
            watchers.into_iter().for_each(Waker::wake);
            self.0.progress.notify_all();
            self.0.wakers.wake_all();
        }
    }
}
