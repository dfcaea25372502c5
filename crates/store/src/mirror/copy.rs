//! The copy's side: two threads that perform the leader's operations.

use std::fmt;
use std::io::{self, BufReader, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::log_copy::LogCopy;
use super::operation::{Operation as O, read_frame};
use super::state_copy::StateCopy;
use super::stream::Stream;
use crate::spool::{Directory, NoDirectory};
use crate::{DirectoryError, LockedDirectory, Sync};

/// A copy of a leader's store. It holds its data directory until it is sealed or dropped.
pub struct Copy {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    _directory: LockedDirectory,
}

struct Shared {
    streams: Mutex<Vec<Box<dyn Stream>>>,
    is_sealed: AtomicBool,
    has_told: AtomicBool,
    on_event: Box<dyn Fn(CopyEvent) + Send + std::marker::Sync>,
}

/// Why a copy does not follow its leader any more. It comes once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    /// A connection has ended.
    Ended(String),
    /// An operation has failed here.
    Failed(String),
}

impl Copy {
    /// Begins a copy in a data directory, over the connections for the log and the state.
    ///
    /// What the directory has is compared with the leader's; the state is replaced. The directory is no whole copy before the
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
        let mut of_state = StateCopy::new(directory, sync);
        let mut streams = Vec::new();
        for stream in [&log, &state] {
            streams.push(stream.duplicate().map_err(failed)?);
        }
        let shared = Arc::new(Shared {
            streams: Mutex::new(streams),
            is_sealed: AtomicBool::new(false),
            has_told: AtomicBool::new(false),
            on_event: Box::new(on_event),
        });
        let mut copy = Self { threads: Vec::new(), shared, _directory: locked };
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

    /// Ends the connections. Once it returns, nothing is performed or confirmed any more, and the directory is free.
    pub fn seal(self) {}

    fn stop(&mut self) {
        self.shared.is_sealed.store(true, Ordering::Release);
        self.shared.hang_up();
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

impl Shared {
    fn hang_up(&self) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|stream| stream.hang_up());
    }

    /// Tells why the copy ends, and ends the other connection.
    fn tell(&self, done: Result<(), Stopped>) {
        self.hang_up();
        if self.is_sealed.load(Ordering::Acquire) || self.has_told.swap(true, Ordering::AcqRel) {
            return;
        }
        (self.on_event)(match done {
            Ok(()) => CopyEvent::Ended("the leader has ended the connection".to_owned()),
            Err(Stopped::Connection(error)) => CopyEvent::Ended(error.to_string()),
            Err(Stopped::Operation(error)) => CopyEvent::Failed(error.to_string()),
        });
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

/// How long the free space of the disk is taken to be the same.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 256 << 10;
const TELL_BYTES: usize = 64 << 10;
