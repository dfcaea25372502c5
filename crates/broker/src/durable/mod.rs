//! The broker's state on disk. See `record` for its format and `load` for the start.
//!
//! Each change is written under the lock or lease that protects it in memory, so that disk and memory have the same
//! order. A [`CommitPoint`] says when a change is durable; only acknowledgements wait for it.
//!
//! A *run* is the time from one start of the broker to the next.

pub mod administration;
mod asked_wake;
mod bytes;
mod commit_point;
mod ended;
mod endings;
mod error;
mod groups;
mod health;
pub mod inspection;
mod load;
mod message;
mod message_expiry;
mod published_wills;
mod queue;
mod reader;
mod realms;
mod record;
mod retained;
mod secret;
mod session;
mod speeds;
mod spooled;
mod stored_rules;
#[cfg(test)]
mod tests;
mod waiting;
mod wall_clock;
mod will;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ended::EndCounters;
use endings::Endings;
use error::Cause;
use groups::GroupRecord;
use message_expiry::RunClock;
use published_wills::PublishedWills;
use tenbin_store::mirror::Mirror;
use tenbin_store::spool::{self, Recovered, Spool};
use tenbin_store::state::{BackendError, Change, Health, OpenError, Options, State, Stats, Table};
use tenbin_store::{DirectoryError, LockedDirectory, MessageFiles, Sync};

use tokio::sync::watch;

pub(crate) use asked_wake::AskedWake;
pub(crate) use commit_point::CommitPoint;
pub(crate) use ended::Ended;
pub use error::StoreError;
pub(crate) use groups::{KnownAge, KnownWait};
pub(crate) use load::{RestoredSession, RestoredWill, Restoring};
pub(crate) use message_expiry::DUE_MOST;
pub(crate) use queue::{PublisherId, QueueKind, StoredQueue, as_refused};
pub(crate) use reader::{
    ByReference, EntryRanges, PAGE_MESSAGES, Page, PageOf, REFERENCED_BYTES_MAX, REFERENCES_MAX, UnderWay,
};
pub(crate) use retained::EncodedRetained;
pub(crate) use secret::new_secret;
pub(crate) use session::{ClientOnDisk, DurableSession};
pub(crate) use spooled::{Outcomes, PLACE_BYTES, RECORD_BYTES, bytes_of};
pub(crate) use tenbin_session::Location;
pub(crate) use tenbin_store::spool::{Place, QueueId, Room, Sequence};
pub(crate) use waiting::WaitingEntries;

/// The store of the broker: state, log of messages, and the thread that reads from the log.
#[derive(Debug)]
pub(crate) struct Durable {
    state: State,
    /// The log of messages.
    spool: Arc<Spool>,
    pub(crate) reader: reader::Reader,
    /// Clock by which messages expire that this run stored.
    clock: RunClock,
    /// Contents of the log when it was opened.
    recovered: Recovered,
    /// First offset of this run, for queues that are empty.
    first_place: AtomicU64,
    numbers: Mutex<Numbers>,
    /// Share groups of the last run that do not exist in this one so far.
    known_groups: Mutex<HashMap<Vec<u8>, GroupRecord>>,
    endings: Endings,
    ended: EndCounters,
    publishers_wait: bool,
    /// Maximum of disk bytes for state and log together; 0: no bound.
    bytes_maximum: u64,
    /// More than `bytes_maximum` is in use. Relaxed: a hint.
    is_over_maximum: AtomicBool,
    published_wills: PublishedWills,
    /// For small files beside the store.
    mirror: Option<Arc<Mirror>>,
    /// Keeps the directory locked while this writes there and while the reader has the spool.
    directory: Arc<HeldDirectory>,
}

/// The locked directory, for tasks that wait for its release.
#[derive(Debug)]
struct HeldDirectory {
    locked: LockedDirectory,
    /// Dropped after the lock.
    released: watch::Sender<()>,
}

/// Numbers of sessions and share groups. No number is given twice, even after a crash.
#[derive(Debug)]
struct Numbers {
    /// The last number given.
    last: u64,
    /// Numbers up to here are reserved, on disk or by a change that precedes every change with such a number.
    reserved: u64,
}

/// State changes that are made together.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<(Table, Vec<u8>, Option<Vec<u8>>)>);

impl Durable {
    /// Opens or creates the store in `directory`; see [`load`]. `bytes_maximum`: bound on its disk bytes, 0: none.
    ///
    /// # Errors
    /// The directory is in use, or cannot be used, or was written by another version.
    pub(crate) fn open(directory: &Path, sync: Sync, bytes_maximum: u64) -> Result<Self, StoreError> {
        Self::open_mirrored(directory, sync, bytes_maximum, None)
    }

    /// As [`open`](Self::open); a copy on another machine gets all changes, too.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub(crate) fn open_mirrored(
        directory: &Path,
        sync: Sync,
        bytes_maximum: u64,
        mirror: Option<&Arc<Mirror>>,
    ) -> Result<Self, StoreError> {
        let locked = LockedDirectory::open(directory).map_err(Cause::Directory)?;
        let directory = Arc::new(HeldDirectory { locked, released: watch::Sender::new(()) });
        let options = Options { sync, ..Options::default() };
        let state = match mirror {
            Some(mirror) => mirror.open_state(&directory.locked, options, health::log),
            None => State::open(&directory.locked, options, health::log),
        };
        let state = state.map_err(Cause::Open)?;
        let path = directory.locked.path();
        Self::keep_together(path, &state)?;
        let options = spool::Options { sync, bytes_maximum, ..spool::Options::default() };
        let spool = path.join("spool");
        let opened = mirror.map_or_else(|| Spool::open(&spool, options), |mirror| mirror.open_spool(&spool, options));
        let (spool, recovered) = opened.map_err(Cause::Spool)?;
        let spool = Arc::new(spool);
        let clock = RunClock::begin();
        let reader = reader::Reader::start(Arc::clone(&spool), Arc::clone(&directory), clock).map_err(Cause::Thread)?;
        let numbers = Mutex::new(Numbers { last: 0, reserved: 0 });
        Ok(Self {
            state,
            spool,
            reader,
            clock,
            recovered,
            first_place: AtomicU64::new(1),
            numbers,
            known_groups: Mutex::default(),
            endings: Endings::default(),
            ended: EndCounters::default(),
            publishers_wait: false,
            bytes_maximum,
            is_over_maximum: AtomicBool::new(false),
            published_wills: PublishedWills::default(),
            mirror: mirror.cloned(),
            directory,
        })
    }

    /// Checks that the log belongs to the state.
    ///
    /// If no file in the log's directory names the store yet, it writes one.
    fn keep_together(directory: &Path, state: &State) -> Result<(), StoreError> {
        let failed = |error| Cause::Directory(DirectoryError::Io(directory.to_owned(), error));
        let messages = MessageFiles::of(directory).map_err(failed)?;
        let run = meta(state, RUN_KEY).map_err(|error| Cause::Table(Table::Meta.name(), error))?;
        // A run creates the log's files before it writes its number.
        if run.is_some() {
            messages.require(directory).map_err(|mismatch| Cause::Open(OpenError::Mismatch(mismatch)))?;
        }
        Ok(messages.name(directory, state.id()).map_err(failed)?)
    }

    /// Sets whether receivers get a stored message only once it is durable.
    pub(crate) fn publishers_wait(self, publishers_wait: bool) -> Self {
        Self { publishers_wait, ..self }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.locked.path()
    }

    /// Tells a copy on another machine of a small file of the directory, which the caller has replaced. Returns the number
    /// for [`Durable::is_copied`]; `None`: there is no cluster.
    ///
    /// # Errors
    /// This node does not lead any more.
    pub(crate) fn replaced(&self, file: &str, bytes: &[u8]) -> std::io::Result<Option<u64>> {
        self.mirror.as_ref().map(|mirror| mirror.replaced(file, bytes)).transpose()
    }

    /// Waits until a copy on another machine has a replaced file, if commits wait for a copy. False: not within this time.
    ///
    /// # Errors
    /// This node does not lead any more.
    pub(crate) fn is_copied(&self, number: u64, within: Duration) -> std::io::Result<bool> {
        self.mirror.as_ref().map_or(Ok(true), |mirror| mirror.is_copied(number, within))
    }

    /// Its `changed` ends with an error once nothing writes to the directory any more, and the lock is released.
    pub(crate) fn released(&self) -> watch::Receiver<()> {
        self.directory.released.subscribe()
    }

    /// Whether `at` is durable, so that it may be acknowledged.
    #[inline]
    pub(crate) fn is_safe(&self, at: CommitPoint) -> bool {
        self.state.is_done(at.state) && self.spool.durable() >= at.spool
    }

    /// Whether `at` still waits for the state, and not only for the log.
    pub(crate) fn waits_for_state(&self, at: CommitPoint) -> bool {
        !self.state.is_done(at.state)
    }

    /// Wakes `waker` once `at` is durable, or earlier: the task has to check, and to ask again. Dropping the returned
    /// [`AskedWake`] cancels the wake-up.
    #[must_use]
    pub(crate) fn wake_when_safe(self: &Arc<Self>, at: CommitPoint, waker: &Waker) -> Option<AskedWake> {
        if self.state.is_done(at.state) {
            crate::threads::wake_at(&self.spool, at.spool, waker);
            return None;
        }
        Some(AskedWake { durable: Arc::clone(self), wake: self.state.wake_at(at.state, waker) })
    }

    /// Waits until `at` is durable.
    pub(crate) async fn safe(self: &Arc<Self>, at: CommitPoint) {
        // Keeps the registration for as long as this future lives.
        let mut _waiting = None;
        std::future::poll_fn(|context| {
            if self.is_safe(at) {
                return std::task::Poll::Ready(());
            }
            _waiting = self.wake_when_safe(at, context.waker());
            std::task::Poll::Pending
        })
        .await;
    }

    /// Waits for the disk between append and delivery, if `publishers_wait` is set.
    #[inline]
    pub(crate) fn before_receivers(&self, at: CommitPoint) {
        if self.publishers_wait {
            // An error is ignored: while the disk fails, only acknowledgements to publishers wait.
            let _ = self.spool.wait(at.spool);
        }
    }

    /// Commit point that covers every state change made so far.
    pub(crate) fn all(&self) -> CommitPoint {
        CommitPoint::of_state(self.state.last())
    }

    /// Whether to refuse new state for now: the disk is behind or fails, or the store is over its maximum.
    pub(crate) fn is_congested(&self) -> bool {
        self.state.is_congested() || self.is_over_maximum.load(Ordering::Relaxed)
    }

    /// Tells the log the size of the state, where both have a common maximum.
    pub(crate) fn note_used_bytes(&self) {
        if self.bytes_maximum > 0 {
            let state = self.state.used_bytes();
            self.spool.set_bytes_elsewhere(state);
            let is_over = state.saturating_add(self.spool.used_bytes()) > self.bytes_maximum;
            self.is_over_maximum.store(is_over, Ordering::Relaxed);
        }
    }

    /// Disk bytes of the state, and of the messages.
    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        (self.state.used_bytes(), self.spool.used_bytes())
    }

    /// Free bytes of the file system.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.spool.free_bytes()
    }

    /// Maximum of disk bytes; 0: no bound.
    pub(crate) fn bytes_maximum(&self) -> u64 {
        self.bytes_maximum
    }

    /// Whether state changes cannot become durable at present.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.health() != Health::Writing
    }

    pub(crate) fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// Figures of the log, and its health in a word.
    pub(crate) fn message_stats(&self) -> (spool::Stats, &'static str) {
        (self.spool.stats(), health::word(&self.spool.health()))
    }

    /// Number of messages that have ended for this cause since the start.
    pub(crate) fn ended_messages(&self, cause: Ended) -> u64 {
        self.ended.get(cause)
    }

    /// Figures of the log.
    pub(crate) fn spool_stats(&self) -> spool::Stats {
        self.spool.stats()
    }

    /// Blocks until all changes and messages are durable, or `patience` is over. Returns whether they are.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let messages = self.all_messages();
        let is_written = self.state.wait(self.state.last(), patience);
        while !self.is_safe(messages) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.forget_published_wills();
        let left = end.saturating_duration_since(Instant::now());
        is_written && self.is_safe(messages) && self.state.wait(self.state.last(), left)
    }

    pub(crate) fn make(&self, changes: &Changes) -> CommitPoint {
        let changes = changes.0.iter();
        let state = self.state.change(changes.map(|(table, key, value)| Change {
            table: *table,
            key,
            value: value.as_deref(),
        }));
        CommitPoint::of_state(state)
    }

    fn remove(&self, table: Table, key: &[u8]) {
        self.state.change([Change { table, key, value: None }]);
    }

    /// Returns a new number. A change that reserves more numbers precedes every change that contains one of them.
    fn next_number(&self) -> NonZeroU64 {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.last += 1;
        if numbers.last > numbers.reserved {
            numbers.reserved = numbers.last + NUMBERS_RESERVED;
            let value = numbers.reserved.to_le_bytes();
            // Under the lock: else a change with the next number could be written before this one.
            self.state.change([Change { table: Table::Meta, key: NUMBERS_KEY, value: Some(&value) }]);
        }
        NonZeroU64::new(numbers.last).expect("it begins with 1 and does not come round")
    }

    /// First offset of this run: above the offsets of all earlier runs, of which the highest may be forgotten.
    fn first_place(&self) -> u64 {
        self.first_place.load(Ordering::Relaxed)
    }

    /// Creates the queue of a session that ends with its connection.
    ///
    /// Its offsets are above the offsets of the client's queue `before`. The next start drops it, since no session owns it
    /// then.
    pub(crate) fn temporary_queue(&self, before: Option<&StoredQueue>) -> Arc<StoredQueue> {
        let first = before.map_or(0, StoredQueue::peek).max(self.first_place());
        StoredQueue::new(QueueKind::Temporary, self.next_number(), first)
    }

    /// Sets the number of this run, which no earlier run had.
    fn set_run(&self, run: u64) {
        assert!(run < Location::OFFSETS_END >> PLACES_BITS, "a broker is not started that often");
        self.first_place.store(run << PLACES_BITS, Ordering::Relaxed);
    }

    /// Sets the highest number given so far.
    fn set_last_number(&self, last: u64) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = Numbers { last, reserved: last };
    }
}

/// The value of a key in [`Table::Meta`].
fn meta(state: &State, wanted: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
    let mut found = None;
    state.scan(Table::Meta, &mut |key, value| {
        if key == wanted {
            found = Some(value.to_vec());
        }
    })?;
    Ok(found)
}

impl Changes {
    pub(super) fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((table, key, Some(value)));
    }

    pub(super) fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.0.push((table, key, None));
    }
}

/// Longest Client Identifier, topic and filter with a store, in bytes: the state bounds its keys.
pub(crate) const NAME_BYTES_MAX: u64 = 65_000;

const NUMBERS_KEY: &[u8] = b"session numbers";
/// Key of the last run's number.
const RUN_KEY: &[u8] = b"run";
/// Offsets of one run for each queue, as a power of two; there may be 2^22 runs.
const PLACES_BITS: u32 = 40;
/// Numbers that are reserved at once, which a crash may skip.
const NUMBERS_RESERVED: u64 = 1 << 20;
