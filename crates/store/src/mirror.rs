//! A second copy of a store, on another machine.
//!
//! ```text
//!   leader                                                          copy
//!   Spool ─► MirroredDisk ────► Channel ── operations ──► thread ─► files of the log
//!              └► its own disk     ▲ └─── confirmations ◄──┘
//!   State ─► MirroredBackend ──► Channel ── operations ──► thread ─► its own database
//! ```
//!
//! The leader passes each operation on its files to the copy. Each has a connection for the log and one for the state, so
//! that neither delays the other. A commit returns once both disks have it, while the copy is
//! [required](Mirror::require). So at every moment the copy is a directory that a power cut of the leader could have left,
//! and it opens like one.
//!
//! A copy joins while the leader works: files are compared in pieces by their hashes, and pieces that differ are sent, at a
//! bounded rate. Operations are sent from the beginning of the join on. The state is sent whole, from a snapshot.
//!
//! A copy is compared with the leader's data from time to time ([`Mirror::check`]). Leader and copy can both be backed up:
//! the copy at a moment that the leader [marks](Mirror::mark).
//!
//! This module decides nothing: who leads, and whether a copy is waited for, is the caller's matter.

mod backend;
mod backup;
mod channel;
mod check;
mod closed;
mod copy;
mod copying;
mod disk;
mod disk_calls;
mod filed;
mod log_copy;
mod moment;
mod operation;
mod reading;
mod restore;
mod small;
mod state_copy;
mod stream;
#[cfg(test)]
mod tests;
mod traffic;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use closed::backup_closed;
pub use copy::{Copy, CopyEvent};
pub use moment::CopyBackup;
pub use reading::{CopyReader, ReferenceStream};
pub use restore::{BackupError, Contents, check_backup, restore};
pub use small::is_small_file;
pub use stream::Stream;
pub use traffic::{TrafficStats, WAIT_BOUNDS};

use crate::spool::{self, Disk, Spool, is_full};
use crate::state::{self, Backend, Health, State};
use crate::{LockedDirectory, Sync};
use backend::{MirroredBackend, SnapshotsOfOpen};
use channel::Channel;
use disk::MirroredDisk;
use operation::Operation;

/// The leader's side of a second copy.
pub struct Mirror {
    log: Arc<Channel>,
    state: Arc<Channel>,
    /// The leader's files of the log, while its spool is open.
    disk: Mutex<Option<Weak<dyn Disk>>>,
    snapshots: Arc<SnapshotsOfOpen>,
    /// The data directory, while the state is open.
    directory: Mutex<Option<PathBuf>>,
    joins: Mutex<Joins>,
    /// A comparison with the copy is under way.
    is_checking: AtomicBool,
    on_event: Box<dyn Fn(Event) + Send + std::marker::Sync>,
}

#[derive(Default)]
struct Joins {
    /// The present join, and how many of its parts are not copied yet.
    present: Option<(JoinId, u32)>,
    /// Joins up to this one have begun, or will not.
    over: JoinId,
    copied_bytes: u64,
    /// Length of the log's files when their copy began, without what was found empty.
    log_bytes: u64,
    threads: Vec<JoinHandle<()>>,
}

/// A copy's connection, from its join to its end. The caller of [`Mirror::join`] chooses numbers, which grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinId(pub u64);

/// What happened to a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The copy has everything from before its join; later operations have been sent to it.
    CaughtUp(JoinId),
    /// The copy has confirmed everything from before the call of [`Mirror::require`].
    Confirmed(JoinId),
    /// The connection has ended, or the copy has told that its disk fails.
    Lost(JoinId, String),
    /// [`Mirror::check`] has found damage of the leader's own data.
    Damaged(String),
}

/// Which one of both disks is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The leader's.
    Leader,
    /// The copy's.
    Copy,
}

/// Figures of a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorStats {
    /// Operations of the log that the copy has not confirmed.
    pub log_behind: u64,
    /// Operations of the state that the copy has not confirmed.
    pub state_behind: u64,
    /// Number of the log's last confirmed operation.
    pub log_confirmed: u64,
    /// Number of the state's last confirmed operation.
    pub state_confirmed: u64,
    /// Commits wait for the copy.
    pub is_required: bool,
    /// Bytes that the present join has copied or compared.
    pub copied_bytes: u64,
    /// Bytes of the log that it has to copy or to compare; 0 = it is not known yet. The state comes in addition. Space that
    /// segments have booked and not used counts until it is found.
    pub log_bytes: u64,
    /// Operations of the log, and waits for their confirmation.
    pub log: TrafficStats,
    /// Operations of the state, and waits for their confirmation.
    pub state: TrafficStats,
}

impl Mirror {
    /// A mirror without a copy. `on_event` is called on threads of the mirror, and must not block.
    pub fn new(on_event: impl Fn(Event) + Send + std::marker::Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            log: Arc::default(),
            state: Arc::default(),
            disk: Mutex::default(),
            snapshots: Arc::default(),
            directory: Mutex::default(),
            joins: Mutex::default(),
            is_checking: AtomicBool::new(false),
            on_event: Box::new(on_event),
        })
    }

    /// Lets a copy join over these connections, one for the log and one for the state. Another copy is dropped.
    ///
    /// Commits do not wait for it before [`require`](Self::require). `bytes_per_second` bounds the rate of copying.
    ///
    /// # Errors
    /// The store is not open, or the process has no free file descriptor or thread.
    pub fn join(
        self: &Arc<Self>,
        join: JoinId,
        log: Box<dyn Stream>,
        state: Box<dyn Stream>,
        bytes_per_second: u64,
    ) -> io::Result<()> {
        let not_open = || io::Error::other("the store is not open");
        let disk = lock(&self.disk).as_ref().and_then(Weak::upgrade).ok_or_else(not_open)?;
        {
            let mut joins = lock(&self.joins);
            if join <= joins.over {
                return Err(io::Error::other("the join has been given up"));
            }
            (joins.present, joins.over) = (Some((join, 2)), join);
            (joins.copied_bytes, joins.log_bytes) = (0, 0);
        }
        for stream in [&log, &state] {
            // Commits wait while an operation is being sent: a copy that takes none is dropped.
            stream.set_write_timeout(SEND_PATIENCE)?;
        }
        self.log.expect(join, log.duplicate()?);
        self.state.expect(join, state.duplicate()?);
        // The state is small beside the log.
        let rate = |part, channel: &Arc<Channel>| {
            let channel = Arc::clone(channel);
            copying::Rate::new(bytes_per_second / 8 * part).until(move || channel.peer() != Some(join))
        };
        let (rate, second_rate) = (rate(7, &self.log), rate(1, &self.state));
        let mirror = Arc::clone(self);
        let of_log = move || copying::serve_log(&mirror, join, &disk, log, &rate);
        let mirror = Arc::clone(self);
        let of_state = move || copying::serve_state(&mirror, join, state, &second_rate);
        self.spawn("tenbin-copy-log", of_log)?;
        self.spawn("tenbin-copy-state", of_state)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        let threads = &mut lock(&self.joins).threads;
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Lets commits wait for the copy from here on. [`Event::Confirmed`] follows once it has all earlier ones, too.
    ///
    /// # Errors
    /// The process can start no thread.
    pub fn require(self: &Arc<Self>, join: JoinId) -> io::Result<()> {
        self.set_required(true);
        let mirror = Arc::clone(self);
        // The sender's lock may be held for as long as the disk takes.
        self.spawn("tenbin-copy-wait", move || {
            let log = mirror.log.sender().send_numbered(|number| Operation::Settle { number });
            let state = mirror.state.sender().send_numbered(|number| Operation::SyncState { number });
            if mirror.log.wait_for_copy(join, log) && mirror.state.wait_for_copy(join, state) {
                (mirror.on_event)(Event::Confirmed(join));
            }
        })
    }

    /// Marks a moment in the operations for the copy, which waits for it to make a [`CopyBackup`].
    ///
    /// # Errors
    /// The process can start no thread.
    pub fn mark(self: &Arc<Self>, number: u64) -> io::Result<()> {
        let mirror = Arc::clone(self);
        // The senders' locks may be held for as long as the disk takes.
        self.spawn("tenbin-copy-mark", move || {
            let (mut log, mut state) = (mirror.log.sender(), mirror.state.sender());
            for sender in [&mut log, &mut state] {
                sender.send(&Operation::Moment { number });
                // Without a connection the copy waits in vain.
                let _ = sender.flush();
            }
        })
    }

    /// Lets commits go on without the copy of a join, and drops it. The join does not begin any more, if it has not begun.
    pub fn release(&self, join: JoinId) {
        let mut joins = lock(&self.joins);
        joins.over = joins.over.max(join);
        drop(joins);
        self.set_required(false);
        self.drop_copy();
    }

    /// Lets commits wait, even for confirmed changes, until [`unhold`](Self::unhold) is called.
    pub fn hold(&self) {
        self.log.set_held(true);
        self.state.set_held(true);
    }

    /// Lets commits wait for no more than the copy, if that is [required](Self::require).
    pub fn unhold(&self) {
        self.log.set_held(false);
        self.state.set_held(false);
    }

    /// Fails all operations from here on, also those that wait. For a node that does not lead any more.
    ///
    /// Waits for the threads of a join.
    pub fn end(&self) {
        self.log.end(ENDED);
        self.state.end(ENDED);
        // A thread may have started another one.
        loop {
            let Some(thread) = lock(&self.joins).threads.pop() else { return };
            // A panic of the thread has printed its message already.
            let _ = thread.join();
        }
    }

    /// Drops the copy of a join. Commits that wait for it go on waiting.
    pub fn drop_copy(&self) {
        let present = lock(&self.joins).present;
        if let Some((join, _)) = present {
            self.log.detach(join);
            self.state.detach(join);
        }
    }

    /// Present figures.
    pub fn stats(&self) -> MirrorStats {
        let (log, state) = (self.log.numbers(), self.state.numbers());
        let (copied_bytes, log_bytes) = {
            let joins = lock(&self.joins);
            (joins.copied_bytes, joins.log_bytes)
        };
        MirrorStats {
            log_behind: log.0.saturating_sub(log.1),
            state_behind: state.0.saturating_sub(state.1),
            log_confirmed: log.1,
            state_confirmed: state.1,
            is_required: self.log.is_required() || self.state.is_required(),
            copied_bytes,
            log_bytes,
            log: self.log.traffic(),
            state: self.state.traffic(),
        }
    }

    /// The one of both disks that has no room for messages, if the other one has plenty.
    pub fn full_disk(&self) -> Option<Full> {
        let own = lock(&self.disk).as_ref().and_then(Weak::upgrade)?.space()?;
        let copy = self.log.space_of_any_copy()?;
        if is_full(own, 1) && !is_full(copy, PLENTY) {
            Some(Full::Leader)
        } else if is_full(copy, 1) && !is_full(own, PLENTY) {
            Some(Full::Copy)
        } else {
            None
        }
    }

    /// Whether both disks lack room for messages: the copy is no better place for them.
    pub fn are_both_full(&self) -> bool {
        let own = lock(&self.disk).as_ref().and_then(Weak::upgrade).and_then(|disk| disk.space());
        let copy = self.log.space_of_any_copy();
        [own, copy].into_iter().all(|space| space.is_some_and(|space| is_full(space, 1)))
    }

    /// How long the leader's own disk has not answered a call that writes, or reads messages; `None` = no call waits for it.
    pub fn disk_waits(&self) -> Option<Duration> {
        [&self.log, &self.state].into_iter().filter_map(|channel| channel.disk.longest()).max()
    }

    /// Tells the copy the whole content of a small file, which the caller has replaced durably. It does not wait:
    /// [`is_copied`](Self::is_copied) takes the returned number. `path` is below the data directory: [`is_small_file`].
    ///
    /// # Errors
    /// The node may confirm nothing any more.
    pub fn replaced(&self, path: &str, bytes: &[u8]) -> io::Result<u64> {
        debug_assert!(is_small_file(path), "{path}");
        let mut sender = self.log.sender();
        sender.check()?;
        let number = sender.next();
        sender.send(&Operation::Replace { number, path, bytes });
        // A failure shows in the wait.
        let _ = sender.flush();
        Ok(number)
    }

    /// Waits until the copy has a [replaced](Self::replaced) file, if commits wait for the copy. False: not within this time.
    ///
    /// # Errors
    /// The node may confirm nothing any more.
    pub fn is_copied(&self, number: u64, within: Duration) -> io::Result<bool> {
        self.log.wait_within(number, within)
    }

    /// As [`replaced`](Self::replaced), for a file whose change is not acknowledged.
    pub fn replaced_soon(&self, path: &str, bytes: &[u8]) {
        // A leader that has ended has no copy.
        let _ = self.replaced(path, bytes);
    }

    /// Tells the copy which bytes the caller has written to a small file at an offset. It does not wait.
    pub fn wrote(&self, path: &str, offset: u64, bytes: &[u8]) {
        debug_assert!(is_small_file(path), "{path}");
        let mut sender = self.log.sender();
        sender.send(&Operation::WriteSmall { path, offset, bytes });
        let _ = sender.flush();
    }

    /// As [`State::open`]; the copy gets all changes, too.
    ///
    /// # Errors
    /// As of [`State::open`].
    pub fn open_state(
        self: &Arc<Self>,
        directory: &LockedDirectory,
        options: state::Options,
        on_health: impl Fn(&Health) + Send + 'static,
    ) -> Result<State, state::OpenError> {
        *lock(&self.directory) = Some(directory.path().to_owned());
        let mirror = Arc::clone(self);
        State::open_through(directory, options, move |backend| mirror.backend(backend, options.sync), on_health)
    }

    /// As [`Spool::open`]; the copy gets all records, too.
    ///
    /// # Errors
    /// As of [`Spool::open`].
    pub fn open_spool(
        &self,
        directory: &Path,
        options: spool::Options,
    ) -> Result<(Spool, spool::Recovered), spool::OpenError> {
        Spool::open_through(directory, options, |disk| self.disk(disk))
    }

    /// The files of the log, with a copy.
    fn disk(&self, inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        *lock(&self.disk) = Some(Arc::downgrade(&inner));
        Arc::new(MirroredDisk::new(inner, Arc::clone(&self.log)))
    }

    /// The state's database, with a copy.
    fn backend(&self, inner: Box<dyn Backend>, sync: Sync) -> Box<dyn Backend> {
        Box::new(MirroredBackend::new(inner, Arc::clone(&self.state), Arc::clone(&self.snapshots), sync))
    }

    fn set_required(&self, is_required: bool) {
        self.log.set_required(is_required);
        self.state.set_required(is_required);
    }

    /// Notes that the log or the state of a join is copied.
    fn part_is_copied(&self, join: JoinId) {
        let is_whole = {
            let mut joins = lock(&self.joins);
            let Some((_, parts)) = joins.present.as_mut().filter(|(present, _)| *present == join) else { return };
            *parts -= 1;
            *parts == 0
        };
        if is_whole {
            self.log.is_whole(join);
            self.state.is_whole(join);
            (self.on_event)(Event::CaughtUp(join));
        }
    }

    /// Notes the end of one of a copy's connections, and ends the other one.
    fn lost(&self, join: JoinId, reason: &str) {
        let was_first = {
            let mut joins = lock(&self.joins);
            joins.present.take_if(|(present, _)| *present == join).is_some()
        };
        self.log.detach(join);
        self.state.detach(join);
        if was_first {
            (self.on_event)(Event::Lost(join, reason.to_owned()));
        }
    }

    /// Notes the length of the log that the present join copies.
    fn log_has(&self, bytes: u64) {
        lock(&self.joins).log_bytes = bytes;
    }

    /// Notes that bytes of the log are empty: nothing of them is copied or compared.
    fn has_less(&self, bytes: u64) {
        let mut joins = lock(&self.joins);
        joins.log_bytes = joins.log_bytes.saturating_sub(bytes);
    }

    fn copied(&self, bytes: u64) {
        lock(&self.joins).copied_bytes += bytes;
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Times the reserve of a log that a disk has if it is far from full.
const PLENTY: u64 = 2;
/// Version of the operations between a leader and its copy.
pub const OPERATIONS_VERSION: u32 = 1;
/// Version of the small files: bans of operators, and topic ids of MQTT-SN.
pub const SMALL_FILES_VERSION: u32 = 1;

/// Longest wait of a commit for the copy to take an operation.
const SEND_PATIENCE: Duration = Duration::from_secs(2);

/// Why operations of a leader fail once its mirror has [ended](Mirror::end).
pub const ENDED: &str = "this node does not lead any more";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic occurs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
