//! State shared by callers and the committer.

use std::{
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::SystemTime,
};

use super::{
    log::{Failure, Log},
    names::Position,
    wakers::Wakers,
};

pub(super) struct SharedLog {
    log: Mutex<Log>,
    /// Durable position. The committer stores it (release) after the disk has confirmed; anybody loads it (acquire).
    durable: AtomicU64,
    /// Copy of [`Pending`](super::pending::Pending) bytes, updated under the lock; only a hint.
    pending_bytes: AtomicUsize,
    congested_bytes: usize,
    segment_bytes: AtomicU32,
    /// The next segment's file cannot be made; also only a hint.
    has_shortage: AtomicBool,
    /// Copy of [`Log::appended`], updated under the lock.
    appended: AtomicU64,
    /// Booked bytes of messages that are not appended yet.
    booked: AtomicU64,
    /// Value of `appended` at which messages stop: for new messages, and for those already accepted.
    limits: [AtomicU64; 2],
    /// Bytes of other files that count toward the maximum.
    pub(super) bytes_elsewhere: AtomicU64,
    pub(super) wakers: Wakers,
    /// Signals new records or closing. A batch notifies only if the committer does not work.
    pub(super) work: Condvar,
    /// Signals that the log advanced or failed.
    pub(super) progress: Condvar,
}

impl SharedLog {
    pub(super) fn new(log: Log) -> Self {
        Self {
            durable: AtomicU64::new(log.synced.bits()),
            congested_bytes: log.options.congested_bytes,
            segment_bytes: AtomicU32::new(log.options.segment_bytes),
            has_shortage: AtomicBool::new(false),
            appended: AtomicU64::new(0),
            booked: AtomicU64::new(0),
            limits: [const { AtomicU64::new(u64::MAX) }; 2],
            bytes_elsewhere: AtomicU64::new(0),
            log: Mutex::new(log),
            pending_bytes: AtomicUsize::new(0),
            wakers: Wakers::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    /// Locks the log. A panic under the lock leaves at most one caller's batch incomplete, as a crash does.
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
        self.segment_bytes.load(Ordering::Relaxed)
    }

    /// Sets the usual size of segments that begin from now on.
    pub(super) fn grow(&self, segment_bytes: u32) {
        self.log().options.segment_bytes = segment_bytes;
        self.segment_bytes.store(segment_bytes, Ordering::Relaxed);
    }

    pub(super) fn is_congested(&self) -> bool {
        self.pending_bytes.load(Ordering::Relaxed) > self.congested_bytes || self.has_shortage()
    }

    pub(super) fn has_shortage(&self) -> bool {
        self.has_shortage.load(Ordering::Relaxed)
    }

    /// Sets why the next segment's file cannot be made; `None` if it can.
    pub(super) fn set_shortage(&self, error: Option<String>) {
        self.has_shortage.store(error.is_some(), Ordering::Relaxed);
        self.change_health(|log| {
            let since = log.shortage.as_ref().map_or_else(SystemTime::now, |shortage| shortage.since);
            log.shortage = error.map(|error| Failure { error, since, is_full: true });
        });
    }

    /// Changes the log, and wakes the watchers if the kind of health differs afterwards.
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
        self.appended.store(log.appended, Ordering::Relaxed);
    }

    /// Books bytes for messages, unless they would take space reserved for acknowledgements.
    pub(super) fn take_room(&self, bytes: u64, must: bool) -> bool {
        let limit = self.limits[usize::from(must)].load(Ordering::Relaxed);
        let booked = self.booked.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let has_room = self.appended.load(Ordering::Relaxed).saturating_add(booked) <= limit;
        if !has_room {
            self.give_room(bytes);
        }
        has_room
    }

    /// Ends a booking: the messages are appended or discarded.
    pub(super) fn give_room(&self, bytes: u64) {
        self.booked.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sets how many more bytes new messages may take, and messages already accepted.
    pub(super) fn set_room(&self, log: &Log, room: [u64; 2]) {
        for (limit, room) in self.limits.iter().zip(room) {
            limit.store(log.appended.saturating_add(room), Ordering::Relaxed);
        }
    }
}
