//! A copy at one moment of its leader, for backups.
//!
//! The leader [marks](super::Mirror::mark) the moment in the operations on the log and on the state, while it performs
//! nothing. The copy's threads leave files and a snapshot when they reach it. So everything acknowledged before the mark is
//! in the backup, and the leader does no other work for it.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::backup::{self, Files, Moment, Pinned, Source};
use super::copying::Rate;
use super::lock;
use crate::spool::Disk;
use crate::state::{Backend, BackendError, TableSnapshot, Visit, guarded};

/// State that the threads of a copy share with the readers of its content.
#[derive(Default)]
pub(super) struct Moments {
    /// The copy ends: nothing may be read any more.
    is_over: Arc<AtomicBool>,
    wanted: Mutex<Wanted>,
    pinned: Mutex<Option<Pinned>>,
    /// The present comparison has left something out.
    has_skipped: AtomicBool,
    /// Held by snapshots of the database. It must not close before their end.
    open: Arc<()>,
}

/// The moment that a backup waits for.
#[derive(Default)]
struct Wanted {
    number: Option<u64>,
    files: Option<io::Result<Files>>,
    snapshot: Option<CopySnapshot>,
}

/// A snapshot of a copy's state. The database stays open until it is dropped.
pub(super) struct CopySnapshot {
    snapshot: Box<dyn TableSnapshot>,
    _open: Arc<()>,
}

impl TableSnapshot for CopySnapshot {
    fn visit(&self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        guarded(|| self.snapshot.visit(visit))
    }
}

impl Moments {
    /// Ends all readers.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        *lock(&self.wanted) = Wanted::default();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Notes that the present comparison leaves something out.
    pub(super) fn skip(&self) {
        self.has_skipped.store(true, Ordering::Release);
    }

    /// Ends a comparison. False: it has left something out.
    pub(super) fn has_compared_all(&self) -> bool {
        !self.has_skipped.swap(false, Ordering::AcqRel)
    }

    /// A rate at which a reader waits no longer than it may read.
    pub(super) fn rate(&self, bytes_per_second: u64) -> Rate {
        let is_over = Arc::clone(&self.is_over);
        Rate::new(bytes_per_second).until(move || is_over.load(Ordering::Acquire))
    }

    /// A snapshot of the copy's database, if that makes any.
    pub(super) fn snapshot_of(&self, database: &dyn Backend) -> Option<CopySnapshot> {
        let make = database.snapshots()?;
        Some(CopySnapshot { snapshot: make(), _open: Arc::clone(&self.open) })
    }

    /// Waits until all snapshots of the database are dropped.
    pub(super) fn wait_for_snapshots(&self) {
        while Arc::strong_count(&self.open) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaves the files at a marked moment, if a backup waits for it.
    pub(super) fn leave_files(&self, number: u64, disk: &dyn Disk) {
        if lock(&self.wanted).number != Some(number) {
            return;
        }
        // Without the lock: the end of the copy takes it, and must not wait for the disk.
        let files = Files::open(disk);
        let mut wanted = lock(&self.wanted);
        if wanted.number == Some(number) {
            *lock(&self.pinned) = files.as_ref().ok().map(Pinned::new);
            wanted.files = Some(files);
        }
    }

    /// Leaves the state at a marked moment, if a backup waits for it.
    pub(super) fn leave_state(&self, number: u64, database: &dyn Backend) {
        let mut wanted = lock(&self.wanted);
        if wanted.number == Some(number) {
            wanted.snapshot = self.snapshot_of(database);
        }
    }

    /// Whether a backup reads a file.
    pub(super) fn is_pinned(&self, name: &str) -> bool {
        lock(&self.pinned).as_ref().is_some_and(|pinned| pinned.is_pinned(name))
    }

    /// Notes that a file is to be written.
    pub(super) fn note_write(&self, name: &str, offset: u64) {
        if let Some(pinned) = &mut *lock(&self.pinned) {
            pinned.note_write(name, offset);
        }
    }
}

/// A backup of a copy, which waits for a moment of its leader. One at a time.
pub struct CopyBackup {
    number: u64,
    moments: Arc<Moments>,
    directory: PathBuf,
}

impl CopyBackup {
    pub(super) fn begin(moments: &Arc<Moments>, directory: PathBuf) -> io::Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut wanted = lock(&moments.wanted);
        if wanted.number.is_some() {
            return Err(io::Error::other("another backup is under way"));
        }
        // A mark for an earlier backup does not count.
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        wanted.number = Some(number);
        drop(wanted);
        Ok(Self { number, moments: Arc::clone(moments), directory })
    }

    /// Number of the moment, for [`Mirror::mark`](super::Mirror::mark).
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Writes the backup, as [`Mirror::backup`](super::Mirror::backup) does.
    ///
    /// # Errors
    /// `out` cannot be written, or the copy has ended.
    pub fn write(&self, about: &str, bytes_per_second: u64, out: &mut dyn io::Write) -> io::Result<()> {
        backup::write(self, about, &self.moments.rate(bytes_per_second), out, || self.moment())
    }

    /// Waits for the moment.
    fn moment(&self) -> io::Result<Moment> {
        let begun = Instant::now();
        while begun.elapsed() < LEADER_PATIENCE {
            self.check()?;
            let mut wanted = lock(&self.moments.wanted);
            if wanted.files.is_some()
                && let Some(snapshot) = wanted.snapshot.take()
                && let Some(files) = wanted.files.take()
            {
                return Ok(Moment { files: files?, snapshot: Box::new(snapshot) });
            }
            drop(wanted);
            thread::sleep(LOOK_EVERY);
        }
        Err(io::Error::other("the leader has not marked a moment for the backup in time"))
    }
}

impl Source for CopyBackup {
    fn check(&self) -> io::Result<()> {
        if self.moments.is_over() { Err(io::Error::other("the copy has ended")) } else { Ok(()) }
    }

    fn pinned<T>(&self, work: impl FnOnce(&mut Option<Pinned>) -> T) -> T {
        work(&mut lock(&self.moments.pinned))
    }

    fn directory(&self) -> Option<PathBuf> {
        Some(self.directory.clone())
    }
}

impl Drop for CopyBackup {
    fn drop(&mut self) {
        *lock(&self.moments.wanted) = Wanted::default();
        *lock(&self.moments.pinned) = None;
    }
}

/// Longest wait for the leader's mark.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
