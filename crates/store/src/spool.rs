//! Messages on disk that wait for their receivers: a log in segments, each message once, however many queues it is in.
//!
//! Callers name queues and places in them; where something is, is the spool's own affair. What is appended is durable when
//! [`Spool::durable`] has come to the end of the [`Batch`]. What a log comes to is found again by reading it, to the last
//! write that was confirmed; anything else that is wrong with it is an [`OpenError`], never a gap.
//!
//! The format and the reasons for it: `docs/decisions/0011-the-spool.md`.
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
mod room;
mod runs;
mod segment;
mod shared;
mod snapshot;
mod space;
mod tags;
#[cfg(test)]
mod tests;
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
pub use health::{Health, Stats};
pub use inspect::{Checked, CheckedSegment, check, dump};
pub use names::{Body, Marked, Origin, Place, Position, QueueId, Sequence};
pub use options::Options;
pub use reading::{Limit, Messages, ReadError, Stored};
pub use recovery::{OpenError, Recovered};
pub use room::Room;
pub use snapshot::Snapshot;

use committer::Committer;
use disk::{Directory, Disk, NoDirectory};
use log::Log;
use opening::Beginning;
use recovery::Examined;
use segment::Header;
use shared::Shared;

/// A spool that is open. Dropped, it writes what was appended, and ends its thread.
pub struct Spool {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    committer: Option<JoinHandle<()>>,
}

/// What a queue has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueContent {
    /// Messages that wait, marked ones and those without a body included.
    pub waiting: usize,
    /// Bytes of their bodies. What was acknowledged or moved out of the middle of a stretch of at most 1,024 messages
    /// counted as the average of that stretch, so this is right where those are of one size, and right again when the
    /// stretch is done.
    pub bytes: u64,
    /// The first and the last of them.
    pub ends: Option<(Sequence, Sequence)>,
    /// Packet Identifiers that are held, from the smallest on.
    pub held: Vec<u16>,
}

impl Spool {
    /// Opens the spool in a directory, which is made if it is not there, and reads all of it.
    ///
    /// # Errors
    /// [`OpenError`]; no record was changed, and nothing removed that is needed.
    pub fn open(directory: &Path, options: Options) -> Result<(Self, Recovered), OpenError> {
        let disk = Directory::locked(directory).map_err(|error| match error {
            NoDirectory::InUse => OpenError::InUse(directory.to_owned()),
            NoDirectory::Io(error) => OpenError::Io { path: directory.to_owned(), error },
        })?;
        let (mut spool, committer, recovered) = Self::open_on(Arc::new(disk), options)?;
        let thread = thread::Builder::new().name("tenbin-spool".to_owned()).spawn(|| committer.run());
        let thread = thread.map_err(|error| OpenError::Io { path: directory.to_owned(), error })?;
        spool.committer = Some(thread);
        Ok((spool, recovered))
    }

    /// Without a thread: whoever calls lets the committer do its steps.
    fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, Committer, Recovered), OpenError> {
        let examined = recovery::examine(&*disk)?;
        let options = options.clamped();
        let spares = recovery::settle(&*disk, &examined, options.segment_bytes)?;
        let salt = RandomState::new().hash_one((examined.index.segments.newest(), examined.end));
        let header = Header { number: 0, salt, file_bytes: options.segment_bytes };
        let beginning = Beginning::make(&*disk, &examined, header, spares)?;
        Ok(Self::over(disk, examined, options, salt, beginning))
    }

    /// On what was found.
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
        let shared = Arc::new(Shared::new(log));
        let committer = Committer::new(Arc::clone(&shared), Arc::clone(&disk), last, beginning);
        (Self { shared, disk, committer: None }, committer, examined.recovered)
    }

    /// Takes the right to append; waits for nobody but those who have it.
    pub fn begin(&self) -> Batch<'_> {
        Batch::new(&self.shared)
    }

    /// Everything before this position is safe, in the sense of [`Options::sync`].
    pub fn durable(&self) -> Position {
        self.shared.durable()
    }

    /// Wakes a task when [`durable`](Self::durable) has come to a position: at once if it has. Also when the log fails, and
    /// each time that it was tried again in vain, every few seconds: see [`health`](Self::health).
    ///
    /// A task has one place here, whatever it waits for, and is woken for the first of its positions. Then it has to ask
    /// again for the others, as a future does that is polled. Who does not ask again is forgotten.
    pub fn wake_at(&self, position: Position, waker: &Waker) {
        self.shared.wakers.add(position, waker, || self.durable() >= position);
    }

    /// Blocks until a position is durable.
    ///
    /// # Errors
    /// The log fails. What was appended is not lost: it may become durable later.
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

    /// Reads messages of a queue in order, from a sequence on, into `out`, whose content before is forgotten. Nothing is
    /// taken out of the queue. What is not written yet is read too. Blocks for the disk, and holds the lock for what is
    /// found without it.
    ///
    /// # Errors
    /// [`ReadError`]; what is before the message that cannot be read is in `out`.
    pub fn read(&self, queue: QueueId, from: Sequence, limit: Limit, out: &mut Messages) -> Result<(), ReadError> {
        reading::read(&self.shared, &*self.disk, queue, from, limit, out)
    }

    /// All queues that have or hold something, in no order.
    pub fn queues(&self) -> Vec<QueueId> {
        let log = self.shared.log();
        log.index.queues().filter(|(_, queue)| !queue.is_empty()).map(|(id, _)| id).collect()
    }

    /// What a queue has; nothing if it has and holds nothing.
    pub fn queue(&self, queue: QueueId) -> Option<QueueContent> {
        let log = self.shared.log();
        let queue = log.index.queue(queue).filter(|queue| !queue.is_empty())?;
        let mut held: Vec<u16> = queue.held().map(|(identifier, _)| identifier).collect();
        held.sort_unstable();
        let ends = queue.first().zip(queue.last()).map(|(first, last)| (Sequence(first), Sequence(last)));
        Some(QueueContent { waiting: queue.len(), bytes: queue.bytes(), ends, held })
    }

    /// The marks of a queue's messages, in order. Those that have none are not told, with a body or without.
    pub fn marks(&self, queue: QueueId) -> Vec<Marked> {
        let log = self.shared.log();
        let marks = log.index.queue(queue).into_iter().flat_map(|queue| queue.marks());
        let marked = marks.map(|(sequence, mark)| {
            let sequence = Sequence(sequence);
            Marked { sequence, mark, has_body: log.index.is_message(Place { queue, sequence }) }
        });
        marked.collect()
    }

    /// Drops all queues that `is_known` does not want. How many those were.
    pub fn retain_queues(&self, mut is_known: impl FnMut(QueueId) -> bool) -> usize {
        let mut unknown = self.queues();
        unknown.retain(|&queue| !is_known(queue));
        let mut batch = self.begin();
        unknown.into_iter().filter(|&queue| batch.drop_queue(queue)).count()
    }

    /// More than [`Options::congested_bytes`] are not on the disk, or there is [`Health::NoRoom`] for much more: the caller
    /// should take in less, and go on to acknowledge what it can. Without a lock.
    pub fn is_congested(&self) -> bool {
        self.shared.is_congested()
    }

    /// Whether there is [`Health::NoRoom`] for much more. Without a lock.
    pub fn has_shortage(&self) -> bool {
        self.shared.has_shortage()
    }

    /// Books room in the log for a message of about so many bytes, with all that is stored beside it; `None`: the disk is
    /// short, or the log at its maximum, and the message has to be refused. What ends messages is appended all the same,
    /// and needs no booking. Without a lock.
    ///
    /// `must`: somebody was promised this message. It may take what was made ahead on a disk that is short, too.
    ///
    /// What is booked is given back with [`give_room`](Self::give_room) when the message is appended, or is not going to be.
    pub fn take_room(&self, bytes: u64, must: bool) -> Option<Room> {
        // A large record may leave the end of a segment empty.
        let is_large = bytes > u64::from(self.shared.segment_bytes()) / 16;
        let bytes = if is_large { bytes.saturating_mul(2) } else { bytes };
        self.shared.take_room(bytes, must).then(|| Room::new(bytes))
    }

    /// See [`take_room`](Self::take_room).
    pub fn give_room(&self, room: Room) {
        self.shared.give_room(room.into_bytes());
    }

    /// Files beside the log take so many bytes, which count for [`Options::bytes_maximum`].
    pub fn set_bytes_elsewhere(&self, bytes: u64) {
        self.shared.bytes_elsewhere.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Bytes of the disk that the log takes now, files made ahead included.
    pub fn used_bytes(&self) -> u64 {
        self.disk.used().unwrap_or(0)
    }

    /// Bytes that the file system still has, if it says so.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk.space().map(|(free, _)| free)
    }

    /// Whether what is appended becomes durable.
    pub fn health(&self) -> Health {
        self.shared.log().health()
    }

    /// The health when it is not of the kind any more that was seen; until then the task is woken at the next change, and
    /// when the spool is closed. A failure that goes on with other words is the same kind.
    ///
    /// The spool logs nothing: one task that waits here has a line to write for each change. It may miss one that was over
    /// before it looked; [`Stats::failures`] counts all. Who waits for a position need not wait here as well:
    /// [`wake_at`](Self::wake_at) wakes when the log fails, too.
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

    /// Figures.
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
        // Where it panicked, its message is out.
        let _ = committer.join();
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool").field("durable", &self.durable()).finish_non_exhaustive()
    }
}
