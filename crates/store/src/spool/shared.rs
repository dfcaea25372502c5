//! What callers and the committer have in common.

use std::{
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::SystemTime,
};

use super::{
    log::{Failure, Log},
    names::Position,
    wakers::Wakers,
};

pub(super) struct Shared {
    log: Mutex<Log>,
    /// Written by the committer after the disk has confirmed, read by everybody; what it vouches for is on the disk.
    durable: AtomicU64,
    /// As it was when somebody last looked, under the lock; only ever a hint.
    pending_bytes: AtomicUsize,
    congested_bytes: usize,
    segment_bytes: u32,
    /// The next segment's file cannot be made: a hint too.
    has_shortage: AtomicBool,
    pub(super) wakers: Wakers,
    /// Something was appended, or the spool is closing. Only where `committer_sleeps`.
    pub(super) work: Condvar,
    /// The log moved on or failed.
    pub(super) progress: Condvar,
}

impl Shared {
    pub(super) fn new(log: Log) -> Self {
        Self {
            durable: AtomicU64::new(log.synced.bits()),
            congested_bytes: log.options.congested_bytes,
            segment_bytes: log.options.segment_bytes,
            has_shortage: AtomicBool::new(false),
            log: Mutex::new(log),
            pending_bytes: AtomicUsize::new(0),
            wakers: Wakers::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    /// A panic of somebody who held it would leave at most one caller's batch half done, as a crash does.
    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn durable(&self) -> Position {
        Position::from_bits(self.durable.load(Ordering::Acquire))
    }

    pub(super) fn set_durable(&self, position: Position) {
        self.durable.store(position.bits(), Ordering::Release);
    }

    pub(super) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    pub(super) fn is_congested(&self) -> bool {
        self.pending_bytes.load(Ordering::Relaxed) > self.congested_bytes || self.has_shortage()
    }

    pub(super) fn has_shortage(&self) -> bool {
        self.has_shortage.load(Ordering::Relaxed)
    }

    /// Why the next segment's file cannot be made, if it cannot.
    pub(super) fn set_shortage(&self, error: Option<String>) {
        self.has_shortage.store(error.is_some(), Ordering::Relaxed);
        self.change_health(|log| {
            let since = log.shortage.as_ref().map_or_else(SystemTime::now, |shortage| shortage.since);
            log.shortage = error.map(|error| Failure { error, since });
        });
    }

    /// Tells those who watch, if it is another one then.
    pub(super) fn change_health(&self, change: impl FnOnce(&mut Log)) {
        let mut log = self.log();
        let before = mem::discriminant(&log.health());
        change(&mut log);
        let has_changed = before != mem::discriminant(&log.health());
        let watchers = if has_changed { log.take_watchers() } else { Vec::new() };
        drop(log);
        watchers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn note_pending(&self, log: &Log) {
        self.pending_bytes.store(log.pending.bytes(), Ordering::Relaxed);
    }
}
