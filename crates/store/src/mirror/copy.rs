//! The copy's side: two threads that perform the leader's operations.

use std::fmt;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::check::{Compare, compare};
use super::log_copy::LogCopy;
use super::moment::{CopyBackup, Moments};
use super::operation::{Operation as O, read_frame};
use super::reading::CopyReader;
use super::state_copy::StateCopy;
use super::stream::Stream;
use crate::spool::{Directory, NoDirectory};
use crate::{DirectoryError, LockedDirectory, Sync};

/// A copy of a leader's store. It holds its data directory until it is sealed or dropped.
pub struct Copy {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<SharedCopy>,
    reader: Arc<CopyReader>,
    moments: Arc<Moments>,
    directory: PathBuf,
    _directory: LockedDirectory,
}

struct SharedCopy {
    streams: Mutex<Vec<Box<dyn Stream>>>,
    is_sealed: AtomicBool,
    has_told: AtomicBool,
    moments: Arc<Moments>,
    on_event: Box<dyn Fn(CopyEvent) + Send + std::marker::Sync>,
}

/// Where the threads of the log and of the state leave work for others.
#[derive(Clone)]
pub(super) struct Passes {
    pub(super) moments: Arc<Moments>,
    pub(super) compare: mpsc::SyncSender<Compare>,
}

impl Passes {
    pub(super) fn compare(&self, what: Compare) {
        // A thread that has panicked compares nothing. One that is far behind leaves the rest to the next comparison, and this
        // one counts as none.
        if self.compare.try_send(what).is_err() {
            self.moments.skip();
        }
    }
}

/// What happened to a copy. All but [`CopyEvent::Checked`] say why it does not follow its leader any more; one of them comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    /// A connection has ended.
    Ended(String),
    /// An operation has failed here.
    Failed(String),
    /// A comparison has found damage here.
    Damaged(String),
    /// A comparison with the leader's data has found no difference.
    Checked,
}

impl Copy {
    /// Begins a copy in a data directory, over the connections for the log and the state.
    ///
    /// The log in the directory is compared with the leader's log; the state is replaced. The directory is no whole copy before the
    /// leader has [required](super::Mirror::require) it. `on_event` is called on threads of the copy.
    ///
    /// # Errors
    /// The directory is in use or cannot be used, or the process has no free descriptor or thread.
    pub fn begin(
        directory: &Path,
        sync: Sync,
        log: Box<dyn Stream>,
        state: Box<dyn Stream>,
        on_event: impl Fn(CopyEvent) + Send + std::marker::Sync + 'static,
    ) -> Result<Self, DirectoryError> {
        let failed = |error| DirectoryError::Io(directory.to_owned(), error);
        let locked = LockedDirectory::open(directory)?;
        let spool = directory.join("spool");
        let disk = Directory::locked(&spool).map_err(|error| match error {
            NoDirectory::InUse => DirectoryError::InUse(spool.clone()),
            NoDirectory::Io(error) => DirectoryError::Io(spool.clone(), error),
        })?;
        let mut of_log = LogCopy::new(Arc::new(disk), Some(directory.to_owned()));
        let reader = of_log.reader();
        let mut of_state = StateCopy::new(directory, sync);
        let moments = Arc::<Moments>::default();
        let (to_compare, jobs) = mpsc::sync_channel(COMPARES_MAX);
        let passes = Passes { moments: Arc::clone(&moments), compare: to_compare };
        (of_log.passes, of_state.passes) = (Some(passes.clone()), Some(passes));
        let mut streams = Vec::new();
        for stream in [&log, &state] {
            streams.push(stream.duplicate().map_err(failed)?);
        }
        let shared = Arc::new(SharedCopy {
            streams: Mutex::new(streams),
            is_sealed: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            moments: Arc::clone(&moments),
            on_event: Box::new(on_event),
        });
        let directory = directory.to_owned();
        let mut copy = Self { threads: Vec::new(), shared, reader, moments, directory, _directory: locked };
        let shared = Arc::clone(&copy.shared);
        // It ends with both others.
        copy.spawn("tenbin-copy-check", move || {
            compare(&jobs, &Directory::to_read(&spool), &shared.moments, |event| shared.tell_found(event));
        })
        .map_err(failed)?;
        let shared = Arc::clone(&copy.shared);
        copy.spawn("tenbin-copy-log", move || {
            let done = follow_log(&mut of_log, log, &|| shared.is_sealed.load(Ordering::Acquire));
            drop(of_log);
            shared.tell(done);
        })
        .map_err(failed)?;
        let shared = Arc::clone(&copy.shared);
        copy.spawn("tenbin-copy-state", move || {
            let done = follow(state, |operation| of_state.perform(operation), || (0, 0));
            // Closes the database.
            drop(of_state);
            shared.tell(done);
        })
        .map_err(failed)?;
        Ok(copy)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Reads messages of the copy, as long as it follows.
    pub fn reader(&self) -> Arc<CopyReader> {
        Arc::clone(&self.reader)
    }

    /// Begins a backup of the copy. It waits for the leader to [mark](super::Mirror::mark) its moment.
    ///
    /// # Errors
    /// Another backup is under way.
    pub fn backup(&self) -> io::Result<CopyBackup> {
        CopyBackup::begin(&self.moments, self.directory.clone())
    }

    /// Ends the connections. Once it returns, nothing is performed or confirmed any more, and the directory is free.
    pub fn seal(self) {}

    /// Ends the connections, and waits for nothing. Once it returns, nothing is confirmed any more.
    pub fn hang_up(&self) {
        self.shared.is_sealed.store(true, Ordering::Release);
        self.shared.hang_up();
    }

    fn stop(&mut self) {
        self.hang_up();
        for thread in self.threads.drain(..) {
            // A panic of the thread has printed its message already.
            let _ = thread.join();
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copy").finish_non_exhaustive()
    }
}

impl SharedCopy {
    fn hang_up(&self) {
        self.moments.end();
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|stream| stream.hang_up());
    }

    /// Tells why the copy ends, and ends the other connection.
    fn tell(&self, done: Result<(), Stopped>) {
        self.tell_end(match done {
            Ok(()) => CopyEvent::Ended("the leader has ended the connection".to_owned()),
            Err(Stopped::Connection(error)) => CopyEvent::Ended(error.to_string()),
            Err(Stopped::Operation(error)) => CopyEvent::Failed(error.to_string()),
        });
    }

    fn tell_end(&self, event: CopyEvent) {
        let is_first = !self.is_sealed.load(Ordering::Acquire) && !self.has_told.swap(true, Ordering::AcqRel);
        self.hang_up();
        if is_first {
            (self.on_event)(event);
        }
    }

    /// Tells the result of a comparison.
    fn tell_found(&self, event: CopyEvent) {
        match event {
            CopyEvent::Checked => (self.on_event)(event),
            damage => self.tell_end(damage),
        }
    }
}

/// Why a copy follows no longer.
#[derive(Debug)]
pub(super) enum Stopped {
    Connection(io::Error),
    Operation(io::Error),
}

/// Tells the inventory, and performs the leader's operations on the log until the connection ends.
pub(super) fn follow_log(
    copy: &mut LogCopy,
    stream: Box<dyn Stream>,
    is_over: &dyn Fn() -> bool,
) -> Result<(), Stopped> {
    let mut out = stream.duplicate().map_err(Stopped::Connection)?;
    let mut bytes = Vec::new();
    let mut told = Ok(());
    let read = copy.inventory(is_over, |operation| {
        operation.encode(&mut bytes);
        if bytes.len() >= TELL_BYTES {
            told = out.write_all(&bytes);
            bytes.clear();
        }
        if told.is_err() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    });
    told.map_err(Stopped::Connection)?;
    read.map_err(|error| fail(&mut *out, error))?;
    out.write_all(&bytes).map_err(Stopped::Connection)?;
    let disk = copy.disk();
    let followed = follow(stream, |operation| copy.perform(operation), || disk.space().unwrap_or_default());
    if !matches!(followed, Err(Stopped::Operation(_))) {
        copy.end().map_err(Stopped::Operation)?;
    }
    followed
}

/// Performs operations until the connection ends. `space`: free bytes and size of the disk.
pub(super) fn follow(
    stream: Box<dyn Stream>,
    mut perform: impl FnMut(&O<'_>) -> io::Result<Option<u64>>,
    space: impl Fn() -> (u64, u64),
) -> Result<(), Stopped> {
    let mut out = stream.duplicate().map_err(Stopped::Connection)?;
    let mut from = BufReader::with_capacity(READ_BYTES, stream);
    let (mut frame, mut bytes) = (Vec::new(), Vec::new());
    let (mut looked_at, mut known) = (Instant::now(), space());
    while read_frame(&mut from, &mut frame).map_err(Stopped::Connection)? {
        let done = O::decode(&frame).and_then(|operation| perform(&operation));
        if let Some(number) = done.map_err(|error| fail(&mut *out, error))? {
            if looked_at.elapsed() > LOOK_AGAIN {
                (looked_at, known) = (Instant::now(), space());
            }
            let (free, size) = known;
            bytes.clear();
            O::Confirmed { number, free, size }.encode(&mut bytes);
            out.write_all(&bytes).map_err(Stopped::Connection)?;
        }
    }
    Ok(())
}

/// Tells the leader that an operation failed.
fn fail(out: &mut dyn Stream, error: io::Error) -> Stopped {
    let mut bytes = Vec::new();
    O::Failed { error: &error.to_string() }.encode(&mut bytes);
    // The connection ends anyway.
    let _ = out.write_all(&bytes);
    Stopped::Operation(error)
}

/// Segments that may wait for their comparison. The leader reads them more slowly than this node.
const COMPARES_MAX: usize = 1024;
/// How long the free space of the disk is taken to be the same.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 256 << 10;
const TELL_BYTES: usize = 64 << 10;
