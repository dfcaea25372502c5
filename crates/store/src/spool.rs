//! Queued messages on disk: a segmented log that stores each message once, even if it is in several queues.
//!
//! Callers name queues and their entries; the spool finds them on disk. An appended [`Batch`] is durable once
//! [`Spool::durable`] has reached its end. Opening a spool reads the log back up to the last confirmed write. Any other
//! damage is an [`OpenError`], never a gap.
//!
//! Format and rationale: `docs/decisions/0011-the-spool.md`.
//!
//! ```
//! use tenbin_store::spool::{Limit, Messages, Options, Place, QueueId, Sequence, Spool};
//!
//! # let directory = std::env::temp_dir().join(format!("tenbin-spool-example-{}", std::process::id()));
//! let (spool, _) = Spool::open(&directory, Options::default())?;
//! let place = Place { queue: QueueId(7), sequence: Sequence(1) };
//! let room = spool.take_room(100, false).ok_or("the disk is full")?;
//! let mut batch = spool.begin();
//! batch.message(&room, &[(place, b"tag")], None, &[b"topic", b"payload"])?;
//! let ticket = batch.end();
//! drop(batch);
//! spool.give_room(room);
//! spool.wait(ticket)?;
//!
//! let mut messages = Messages::default();
//! spool.read(place.queue, Sequence(0), Limit { messages: 100, bytes: 64 << 10 }, &mut messages)?;
//! assert_eq!((messages.bytes(), messages.tags()), (&b"topicpayload"[..], &b"tag"[..]));
//! spool.begin().acknowledge(place.queue, place.sequence..=place.sequence);
//! # drop(spool);
//! # std::fs::remove_dir_all(directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod committer;
mod confirmed;
mod disk;
mod health;
mod index;
mod inspect;
mod log;
mod marks;
mod messages;
mod names;
mod opening;
mod options;
mod pause;
mod pending;
mod queue;
mod reading;
mod reclaim;
mod record;
mod recovery;
mod reference;
mod room;
mod runs;
mod segment;
mod shared;
mod snapshot;
mod space;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod wakers;
mod window;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    io,
    path::Path,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
    thread::{self, JoinHandle},
    time::Duration,
};

pub use batch::{Batch, TooLarge};
pub(crate) use disk::{Directory, Disk, DiskFile, NoDirectory, write_all};
pub use health::{Health, Stats};
pub use inspect::{Checked, CheckedSegment, check, dump};
pub(crate) use inspect::{Sealed, sealed};
pub use messages::{Messages, Stored};
pub use names::{Body, Marked, Origin, Place, Position, QueueId, Sequence};
pub use options::Options;
pub use reading::{Heads, Limit, ReadError};
pub(crate) use recovery::verify;
pub use recovery::{OpenError, Recovered};
pub use reference::{NoPayload, Payload, RecordAt, Reference};
pub use room::Room;
pub use segment::VERSION as FORMAT_VERSION;
pub(crate) use segment::{FIRST_RECORD, log_name, number_of};
pub use snapshot::Snapshot;
pub(crate) use space::is_full;

use committer::Committer;
use log::Log;
use opening::Beginning;
use recovery::Examined;
use segment::Header;
use shared::SharedLog;
use space::Space;

/// An open spool. Dropping it writes all appended records and ends its thread.
pub struct Spool {
    shared: Arc<SharedLog>,
    disk: Arc<dyn Disk>,
    committer: Option<JoinHandle<()>>,
}

/// Content of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueContent {
    /// Queued messages, including those with a mark or without a body.
    pub waiting: usize,
    /// Total size of their bodies.
    ///
    /// Approximate while messages of different sizes are acknowledged or moved from the middle of the queue: they count
    /// as the average of their chunk of at most 1,024 messages. Exact again once the chunk is done.
    pub bytes: u64,
    /// The first and the last queued message.
    pub ends: Option<(Sequence, Sequence)>,
    /// Held Packet Identifiers, in ascending order.
    pub held: Vec<u16>,
}

impl Spool {
    /// Opens the spool in a directory and reads all of it. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// [`OpenError`]. No record was changed, and no needed file was removed.
    pub fn open(directory: &Path, options: Options) -> Result<(Self, Recovered), OpenError> {
        Self::open_through(directory, options, |disk| disk)
    }

    /// As [`open`](Self::open); `through` shows the log its files.
    pub(crate) fn open_through(
        directory: &Path,
        options: Options,
        through: impl FnOnce(Arc<dyn Disk>) -> Arc<dyn Disk>,
    ) -> Result<(Self, Recovered), OpenError> {
        let disk = Directory::locked(directory).map_err(|error| match error {
            NoDirectory::InUse => OpenError::InUse(directory.to_owned()),
            NoDirectory::Io(error) => OpenError::Io { path: directory.to_owned(), error },
        })?;
        let (mut spool, committer, recovered) = Self::open_on(through(Arc::new(disk)), options)?;
        let thread = thread::Builder::new().name("tenbin-spool".to_owned()).spawn(|| committer.run());
        let thread = thread.map_err(|error| OpenError::Io { path: directory.to_owned(), error })?;
        spool.committer = Some(thread);
        Ok((spool, recovered))
    }

    /// Opens a spool without a thread: the caller runs the committer's steps.
    fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, Committer, Recovered), OpenError> {
        let examined = recovery::examine(&*disk)?;
        let options = options.clamped();
        let used = if options.bytes_maximum == 0 { 0 } else { disk.used().unwrap_or(0) };
        let entries = examined.index.references();
        let space = Space::of(&*disk, options.segment_bytes, entries, options.bytes_maximum, used);
        let has_spares = |bytes| examined.left_over.iter().any(|name| recovery::is_spare_of(&*disk, name, bytes));
        let first = options.first_segment_bytes();
        let has_small_spares = has_spares(first) && !has_spares(options.segment_bytes);
        let is_small = options.begins_small(examined.bytes(), space.available, has_small_spares);
        let grows_to = is_small.then_some(options.segment_bytes);
        let options = if is_small { Options { segment_bytes: first, ..options } } else { options };
        let spares = recovery::settle(&*disk, &examined, options.segment_bytes)?;
        let salt = RandomState::new().hash_one((examined.index.segments.newest(), examined.end));
        let header = Header { number: 0, salt, file_bytes: options.segment_bytes };
        let beginning = Beginning { grows_to, ..Beginning::make(&*disk, &examined, header, spares)? };
        Ok(Self::over(disk, examined, options, salt, beginning))
    }

    /// Makes a spool from the result of [`recovery::examine`].
    fn over(
        disk: Arc<dyn Disk>,
        examined: Examined,
        options: Options,
        salt: u64,
        beginning: Beginning,
    ) -> (Self, Committer, Recovered) {
        let segments = &examined.index.segments;
        let last = (segments.len() > 0).then(|| (segments.newest(), examined.end));
        let log = Log::new(examined.index, examined.end, salt, options, beginning.rest);
        let shared = Arc::new(SharedLog::new(log));
        let committer = Committer::new(Arc::clone(&shared), Arc::clone(&disk), last, beginning);
        (Self { shared, disk, committer: None }, committer, examined.recovered)
    }

    /// Takes the exclusive right to append. Blocks only while another caller has it, never for the disk.
    pub fn begin(&self) -> Batch<'_> {
        Batch::new(&self.shared)
    }

    /// Returns the position up to which all records are durable, as [`Options::sync`] defines it.
    pub fn durable(&self) -> Position {
        self.shared.durable()
    }

    /// Wakes a task once [`durable`](Self::durable) reaches a position, at once if it already has.
    ///
    /// Also wakes it when the log fails, and after each failed retry, every few seconds: see [`health`](Self::health).
    ///
    /// A task has one registration here, and the earliest of its positions wakes it. It must register again for the
    /// others, as a polled future does. Without a new registration it is not woken again.
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        self.shared.wakers.add(position, waker, || self.durable() >= position);
    }

    /// Blocks until a position is durable.
    ///
    /// # Errors
    /// The log fails. Appended records are not lost: they may become durable later.
    pub fn wait(&self, position: Position) -> io::Result<()> {
        let mut log = self.shared.log();
        while self.durable() < position {
            log.is_waited_for |= !log.pending.is_empty();
            self.shared.work.notify_one();
            if let Some(failure) = &log.failure {
                return Err(io::Error::other(failure.error.clone()));
            }
            log = self.shared.progress.wait(log).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Reads messages of a queue in order, from a sequence on, into `out`: see [`read_ranges`](Self::read_ranges).
    ///
    /// # Errors
    /// [`ReadError`]. `out` has the messages before the unreadable one.
    pub fn read(&self, queue: QueueId, from: Sequence, limit: Limit, out: &mut Messages) -> Result<(), ReadError> {
        self.read_ranges(queue, &[from..=Sequence(u64::MAX)], limit, out)
    }

    /// Returns all queues that have messages or hold Packet Identifiers, in no order.
    pub fn queues(&self) -> Vec<QueueId> {
        let log = self.shared.log();
        log.index.queues().filter(|(_, queue)| !queue.is_empty()).map(|(id, _)| id).collect()
    }

    /// Returns the content of a queue; `None` if it is empty.
    pub fn queue(&self, queue: QueueId) -> Option<QueueContent> {
        let log = self.shared.log();
        let queue = log.index.queue(queue).filter(|queue| !queue.is_empty())?;
        let mut held: Vec<u16> = queue.held().map(|(identifier, _)| identifier).collect();
        held.sort_unstable();
        let ends = queue.first().zip(queue.last()).map(|(first, last)| (Sequence(first), Sequence(last)));
        Some(QueueContent { waiting: queue.len(), bytes: queue.bytes(), ends, held })
    }

    /// Returns the marked messages of a queue, in order, with a body or without.
    pub fn marks(&self, queue: QueueId) -> Vec<Marked> {
        let log = self.shared.log();
        let marks = log.index.queue(queue).into_iter().flat_map(|queue| queue.marks());
        let marked = marks.map(|(sequence, mark)| {
            let sequence = Sequence(sequence);
            Marked { sequence, mark, has_body: log.index.is_message(Place { queue, sequence }) }
        });
        marked.collect()
    }

    /// Drops all queues that `is_known` rejects, and returns their number.
    pub fn retain_queues(&self, mut is_known: impl FnMut(QueueId) -> bool) -> usize {
        let mut unknown = self.queues();
        unknown.retain(|&queue| !is_known(queue));
        let mut batch = self.begin();
        unknown.into_iter().filter(|&queue| batch.drop_queue(queue)).count()
    }

    /// Whether the caller should slow its intake, and go on to acknowledge messages.
    ///
    /// True if more than [`Options::congested_bytes`] are not on the disk, or if the next segment's file cannot be made
    /// ([`Health::NoRoom`]). Takes no lock.
    pub fn is_congested(&self) -> bool {
        self.shared.is_congested()
    }

    /// Whether the next segment's file cannot be made ([`Health::NoRoom`]). Takes no lock.
    pub fn has_shortage(&self) -> bool {
        self.shared.has_shortage()
    }

    /// Books room in the log for a message of about `bytes`, its metadata included.
    ///
    /// `None` means that the disk is short or the log has reached its maximum: refuse the message. Records that end
    /// messages need no booking. Takes no lock.
    ///
    /// `must`: the broker has already accepted this message. It may use space made ahead even on a disk that is short.
    ///
    /// Return the room with [`give_room`](Self::give_room) once the message is appended or discarded.
    pub fn take_room(&self, bytes: u64, must: bool) -> Option<Room> {
        // A large record may leave the end of a segment empty.
        let is_large = bytes > u64::from(self.shared.segment_bytes()) / 16;
        let bytes = if is_large { bytes.saturating_mul(2) } else { bytes };
        self.shared.take_room(bytes, must).then(|| Room::new(bytes))
    }

    /// Returns booked room: see [`take_room`](Self::take_room).
    pub fn give_room(&self, room: Room) {
        self.shared.give_room(room.into_bytes());
    }

    /// Sets the size of other files that count toward [`Options::bytes_maximum`].
    pub fn set_bytes_elsewhere(&self, bytes: u64) {
        self.shared.bytes_elsewhere.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Bytes of disk that the log occupies now, including files made ahead.
    pub fn used_bytes(&self) -> u64 {
        self.disk.used().unwrap_or(0)
    }

    /// Free bytes of the file system, if it reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk.space().map(|(free, _)| free)
    }

    /// Whether appended records become durable.
    pub fn health(&self) -> Health {
        self.shared.log().health()
    }

    /// Returns the health once its kind differs from `seen`. Until then, wakes the task at the next change, and at
    /// closing.
    ///
    /// A failure that continues with another error text is of the same kind.
    ///
    /// The spool itself logs nothing: one task that polls this can log each change. It may miss a change that ended
    /// before it polled; [`Stats::failures`] counts all. A task in [`wake_at`](Self::wake_at) need not poll this as
    /// well, since a failure wakes it, too.
    ///
    /// ```
    /// # use std::future::poll_fn;
    /// # use tenbin_store::spool::{Health, Spool};
    /// async fn watch(spool: &Spool, mut tell: impl FnMut(&Health)) {
    ///     let mut seen = Health::Writing;
    ///     loop {
    ///         seen = poll_fn(|context| spool.poll_health(&seen, context)).await;
    ///         tell(&seen);
    ///     }
    /// }
    /// ```
    pub fn poll_health(&self, seen: &Health, context: &mut Context<'_>) -> Poll<Health> {
        self.shared.log().poll_health(seen, context.waker())
    }

    /// Statistics since opening, and current sizes.
    pub fn stats(&self) -> Stats {
        let log = self.shared.log();
        let (counters, segments) = (&log.counters, &log.index.segments);
        Stats {
            messages: counters.messages,
            message_bytes: counters.message_bytes,
            acknowledged: counters.acknowledgements,
            commits: counters.commits,
            written_bytes: counters.written_bytes,
            copied_bytes: counters.copied_bytes,
            sync_time: Duration::from_nanos(counters.sync_ns),
            failures: counters.failures,
            segments: segments.len(),
            log_bytes: segments.iter().map(|segment| u64::from(segment.end)).sum(),
            live_bytes: segments.iter().map(|segment| segment.live_bytes()).sum(),
            pending_bytes: log.pending.bytes(),
            queues: log.index.queue_count(),
            waiting: log.index.references(),
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let Some(committer) = self.committer.take() else { return };
        self.shared.log().is_closing = true;
        self.shared.work.notify_one();
        // A panic of the thread has printed its message already.
        let _ = committer.join();
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("durable", &self.durable()).finish_non_exhaustive()
    }
}
