//! What is kept on disk of the broker's state: see `record` for its form, `load` for the start.
//!
//! Written where it changes, under the lock or lease under which it changes in memory, so that what is on disk has the
//! same order. A [`SafeAt`] says when; nobody waits for it but whoever acknowledges.

pub mod administration;
mod asked_wake;
mod bytes;
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
mod safe_at;
mod secret;
mod session;
mod speeds;
mod spooled;
#[cfg(test)]
mod tests;
mod thread_wakes;
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

use endings::Endings;
use error::Cause;
use message_expiry::RunClock;
use published_wills::PublishedWills;
use tenbin_store::spool::{self, Recovered, Spool};
use tenbin_store::state::{Change, Health, OpenError, Options, State, Stats, Table};
use tenbin_store::{DirectoryError, LockedDirectory, MessageFiles, Sync};
use tokio::sync::oneshot;

pub(crate) use asked_wake::AskedWake;
pub use error::StoreError;
pub(crate) use health::watch_messages;
pub(crate) use load::load;
pub(crate) use queue::{PublisherId, Stored, StoredQueue, as_refused};
pub(crate) use reader::{Page, PageOf, UnderWay, read_again_after};
pub(crate) use retained::EncodedRetained;
pub(crate) use safe_at::SafeAt;
pub(crate) use secret::new_secret;
pub(crate) use session::DurableSession;
pub(crate) use speeds::{keep_speeds, keep_speeds_now};
pub(crate) use spooled::{Outcomes, PLACE_BYTES, RECORD_BYTES, bytes_of, place};
pub(crate) use tenbin_store::spool::{Place, QueueId, Room, Sequence};
pub(crate) use thread_wakes::serve as serve_wakes;
pub(crate) use waiting::Tail;
pub(crate) use will::forget_wills;

/// The broker's state on disk.
#[derive(Debug)]
pub(crate) struct Durable {
    state: State,
    /// Messages.
    spool: Arc<Spool>,
    reader: reader::Reader,
    /// By which messages of this run expire.
    clock: RunClock,
    /// What it had when it was opened.
    recovered: Recovered,
    /// Where the places of this run begin in queues that are empty.
    first_place: AtomicU64,
    numbers: Mutex<Numbers>,
    /// Share groups of the last run that nobody has joined yet, with their queues.
    known_groups: Mutex<HashMap<Vec<u8>, NonZeroU64>>,
    endings: Endings,
    publishers_wait: bool,
    /// Of the disk that all of it may take; 0: no bound.
    bytes_maximum: u64,
    /// More than that is in use. Relaxed: a hint.
    is_over_maximum: AtomicBool,
    published_wills: PublishedWills,
    /// Ours as long as we write there, and the reader has the spool.
    directory: Arc<LockedDirectory>,
}

/// Of sessions: never given twice, whatever becomes of the process.
#[derive(Debug)]
struct Numbers {
    /// The last one given.
    last: u64,
    /// Up to here they are taken, says the disk, or a change that goes before those who have one.
    reserved: u64,
}

/// Changes that are made together.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<(Table, Vec<u8>, Option<Vec<u8>>)>);

impl Durable {
    /// As [`Durable::open_bounded`], without a bound.
    ///
    /// # Errors
    /// As [`Durable::open_bounded`].
    pub(crate) fn open(directory: &Path, sync: Sync) -> Result<Self, StoreError> {
        Self::open_bounded(directory, sync, 0)
    }

    /// That of `directory`, which is made if it is not there; see [`load`]. At most `bytes_maximum` of the disk, 0: no bound.
    ///
    /// # Errors
    /// The directory is in use, or cannot be used, or was written by another version.
    pub(crate) fn open_bounded(directory: &Path, sync: Sync, bytes_maximum: u64) -> Result<Self, StoreError> {
        let directory = Arc::new(LockedDirectory::open(directory).map_err(Cause::Directory)?);
        let options = Options { sync, ..Options::default() };
        let state = State::open(&directory, options, health::log).map_err(Cause::Open)?;
        Self::keep_together(directory.path(), &state)?;
        let options = spool::Options { sync, bytes_maximum, ..spool::Options::default() };
        let (spool, recovered) = Spool::open(&directory.path().join("spool"), options).map_err(Cause::Spool)?;
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
            publishers_wait: false,
            bytes_maximum,
            is_over_maximum: AtomicBool::new(false),
            published_wills: PublishedWills::default(),
            directory,
        })
    }

    /// The messages are those of the state.
    fn keep_together(directory: &Path, state: &State) -> Result<(), StoreError> {
        let failed = |error| Cause::Directory(DirectoryError::Io(directory.to_owned(), error));
        let messages = MessageFiles::of(directory).map_err(failed)?;
        let mut has_run = false;
        let scanned = state.scan(Table::Meta, &mut |key, _| has_run |= key == RUN_KEY);
        scanned.map_err(|error| Cause::Table(Table::Meta.name(), error))?;
        // A run begins when there are files for its messages.
        if has_run {
            messages.require(directory).map_err(|mismatch| Cause::Open(OpenError::Mismatch(mismatch)))?;
        }
        Ok(messages.name(directory, state.id()).map_err(failed)?)
    }

    /// Whether nobody gets what is kept before it is safe.
    pub(crate) fn publishers_wait(self, publishers_wait: bool) -> Self {
        Self { publishers_wait, ..self }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Whether these can be acknowledged.
    #[inline]
    pub(crate) fn is_safe(&self, at: SafeAt) -> bool {
        self.state.is_done(at.state) && self.spool.durable() >= at.spool
    }

    /// Whether these wait for the state, and not for messages alone.
    pub(crate) fn waits_for_state(&self, at: SafeAt) -> bool {
        !self.state.is_done(at.state)
    }

    /// Wakes when they can, or before: then it has to be asked for again. Where there is an answer, as long as that is kept.
    #[must_use]
    pub(crate) fn wake_when_safe(self: &Arc<Self>, at: SafeAt, waker: &Waker) -> Option<AskedWake> {
        if self.state.is_done(at.state) {
            thread_wakes::wake_at(&self.spool, at.spool, waker);
            return None;
        }
        Some(AskedWake { durable: Arc::clone(self), wake: self.state.wake_at(at.state, waker) })
    }

    /// What was appended goes to its receivers now: after the disk, if so configured.
    #[inline]
    pub(crate) fn before_receivers(&self, at: SafeAt) {
        if self.publishers_wait {
            // While the disk fails, publishers wait for their acknowledgements, and nobody else for anything.
            let _ = self.spool.wait(at.spool);
        }
    }

    /// When all of the state is safe that has changed until now.
    pub(crate) fn all(&self) -> SafeAt {
        SafeAt::of_state(self.state.last())
    }

    /// Whether no further changes are to be made for now which nobody waits for: the disk is behind, or fails.
    pub(crate) fn is_congested(&self) -> bool {
        self.state.is_congested() || self.is_over_maximum.load(Ordering::Relaxed)
    }

    /// Tells the log how much the state takes, where both have a common maximum.
    pub(crate) fn note_used_bytes(&self) {
        if self.bytes_maximum > 0 {
            let state = self.state.used_bytes();
            self.spool.set_bytes_elsewhere(state);
            let is_over = state.saturating_add(self.spool.used_bytes()) > self.bytes_maximum;
            self.is_over_maximum.store(is_over, Ordering::Relaxed);
        }
    }

    /// Bytes of the disk that the state and the messages take.
    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        (self.state.used_bytes(), self.spool.used_bytes())
    }

    /// Bytes that the file system still has.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.spool.free_bytes()
    }

    /// 0: no bound.
    pub(crate) fn bytes_maximum(&self) -> u64 {
        self.bytes_maximum
    }

    /// Whether changes do not become safe.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.health() != Health::Writing
    }

    pub(crate) fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// Figures of the messages, and how they are in a word.
    pub(crate) fn message_stats(&self) -> (spool::Stats, &'static str) {
        (self.spool.stats(), health::word(&self.spool.health()))
    }

    /// Of messages.
    pub(crate) fn spool_stats(&self) -> spool::Stats {
        self.spool.stats()
    }

    /// Blocks until all is safe, or `patience` is over.
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

    pub(crate) fn make(&self, changes: &Changes) -> SafeAt {
        if changes.0.is_empty() {
            return SafeAt::NOW;
        }
        let changes = changes.0.iter();
        let state = self.state.change(changes.map(|(table, key, value)| Change {
            table: *table,
            key,
            value: value.as_deref(),
        }));
        SafeAt::of_state(state)
    }

    /// A number for a session. Where it needs more of them to be taken, that is written before anything that has it.
    fn next_number(&self) -> NonZeroU64 {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.last += 1;
        if numbers.last > numbers.reserved {
            numbers.reserved = numbers.last + NUMBERS_RESERVED;
            let value = numbers.reserved.to_le_bytes();
            // Under the lock: who gets the next number may be written before us.
            self.state.change([Change { table: Table::Meta, key: NUMBERS_KEY, value: Some(&value) }]);
        }
        NonZeroU64::new(numbers.last).expect("it begins with 1 and does not come round")
    }

    /// Where places begin in this run: behind all of the runs before, whose highest ones may be forgotten.
    fn first_place(&self) -> u64 {
        self.first_place.load(Ordering::Relaxed)
    }

    /// A queue for a session that ends with its connection, as this one's messages do. Its places are above those of the queue
    /// that the client had `before`. The next start finds that it is nobody's.
    pub(crate) fn temporary_queue(&self, before: Option<&StoredQueue>) -> Arc<StoredQueue> {
        let first = before.map_or(0, StoredQueue::peek).max(self.first_place());
        StoredQueue::temporary(self.next_number(), first)
    }

    /// The run's number, which no run before had.
    fn set_run(&self, run: u64) {
        self.first_place.store(run << PLACES_BITS, Ordering::Relaxed);
    }

    /// The next messages of a queue; nothing where it is closed.
    pub(crate) fn read(&self, page: PageOf) -> oneshot::Receiver<Page> {
        self.reader.page(page)
    }

    /// As [`Durable::read`], for whoever has no task: `take` is called on the thread that reads for all, so that it has to be
    /// short, and may wait for nothing but short locks. Where it panics it is called once more, with a broken page.
    pub(crate) fn read_for(&self, page: PageOf, take: impl Fn(Page) + Send + 'static) {
        self.reader.page_for(page, take);
    }

    /// The messages of a session that were sent and are not wholly acknowledged, in the order of sending; `None`: they cannot
    /// be read now.
    pub(crate) fn read_under_way(&self, queue: &StoredQueue) -> oneshot::Receiver<Option<Vec<UnderWay>>> {
        self.reader.under_way(queue.id())
    }

    /// Nothing more is read from here on; comes when all is given that was read before.
    pub(crate) async fn end_reading(&self) {
        self.reader.end().await;
    }

    /// Goes on behind all numbers that were given.
    fn set_last_number(&self, last: u64) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = Numbers { last, reserved: last };
    }
}

impl Changes {
    pub(super) fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((table, key, Some(value)));
    }

    pub(super) fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.0.push((table, key, None));
    }
}

/// Longest Client Identifier, topic and filter of a broker with a store, in bytes: keys have a limit.
pub(crate) const NAME_BYTES_MAX: u64 = 65_000;

const NUMBERS_KEY: &[u8] = b"session numbers";
/// Of the last run.
const RUN_KEY: &[u8] = b"run";
/// A run has so many places for each queue, as a power of two; there may be 2^23 runs.
const PLACES_BITS: u32 = 40;
/// Numbers that a crash may skip.
const NUMBERS_RESERVED: u64 = 1 << 20;
