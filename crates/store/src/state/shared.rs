use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::wakers::Wakers;
use super::{Backend, Batch, Change, Health, Options, Stats, Table, Ticket};

/// State shared by callers and the committer.
pub(super) struct SharedState {
    pub(super) options: Options,
    /// Held by the committer while it writes; `None` after a failure. Lock order: before `work`.
    pub(super) backend: Mutex<Option<Box<dyn Backend>>>,
    work: Mutex<Work>,
    /// Signals work for the committer.
    wanted: Condvar,
    /// Signals a new durable ticket.
    settled: Condvar,
    /// The last durable ticket. The committer stores it (release), anybody loads it (acquire), and so sees that its
    /// changes are made. Stored under `work`, so that waiting on `settled` misses nothing.
    done: AtomicU64,
    /// Whether too much is unwritten; written under `work`, read relaxed as a hint.
    is_congested: AtomicBool,
    pub(super) wakers: Wakers,
}

struct Work {
    pending: Batch,
    last: Ticket,
    /// Bytes that the committer took and that are not durable.
    taken_bytes: usize,
    is_stopping: bool,
    health: Health,
    stats: Stats,
}

/// Work for the committer.
pub(super) struct Taken {
    pub(super) batch: Batch,
    /// The last change in it.
    pub(super) up_to: Ticket,
    pub(super) is_stopping: bool,
}

impl SharedState {
    pub(super) fn new(options: Options, backend: Box<dyn Backend>) -> Self {
        let work = Work {
            pending: Batch::default(),
            last: Ticket::NONE,
            taken_bytes: 0,
            is_stopping: false,
            health: Health::Writing,
            stats: Stats::default(),
        };
        Self {
            options,
            backend: Mutex::new(Some(backend)),
            work: Mutex::new(work),
            wanted: Condvar::new(),
            settled: Condvar::new(),
            done: AtomicU64::new(0),
            is_congested: AtomicBool::new(false),
            wakers: Wakers::default(),
        }
    }

    pub(super) fn change<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Ticket {
        let mut changes = changes.into_iter().peekable();
        if changes.peek().is_none() {
            return Ticket::NONE;
        }
        self.change_pending(|pending| {
            let mut count = 0;
            for Change { table, key, value } in changes {
                debug_assert!(u16::try_from(key.len()).is_ok(), "a key of {} bytes", key.len());
                pending.set(table, key, value);
                count += 1;
            }
            count
        })
    }

    pub(super) fn put(&self, table: Table, key: Box<[u8]>, value: Box<[u8]>) -> Ticket {
        self.change_pending(|pending| {
            pending.set_owned(table, key, value);
            1
        })
    }

    /// Applies changes to the pending batch; `make` returns their number.
    fn change_pending(&self, make: impl FnOnce(&mut Batch) -> u64) -> Ticket {
        let mut work = self.work();
        let was_empty = work.pending.is_empty();
        work.stats.changes += make(&mut work.pending);
        work.last.0 += 1;
        let ticket = work.last;
        self.note_congestion(&work);
        drop(work);
        if was_empty {
            self.wanted.notify_one();
        }
        ticket
    }

    pub(super) fn last(&self) -> Ticket {
        self.work().last
    }

    pub(super) fn done(&self) -> Ticket {
        Ticket(self.done.load(Ordering::Acquire))
    }

    pub(super) fn is_congested(&self) -> bool {
        self.is_congested.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self) -> Health {
        self.work().health.clone()
    }

    pub(super) fn stats(&self) -> Stats {
        let work = self.work();
        Stats { pending_bytes: work.unsaved_bytes(), ..work.stats }
    }

    pub(super) fn wait(&self, ticket: Ticket, patience: Duration) -> bool {
        let work = self.work();
        let waited = self.settled.wait_timeout_while(work, patience, |_| self.done() < ticket);
        let (_work, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.done() >= ticket
    }

    pub(super) fn stop(&self) {
        self.work().is_stopping = true;
        self.wanted.notify_one();
    }

    /// Waits for changes, the end of the state or the time `wake_up`, and takes the pending batch. For the committer.
    pub(super) fn take(&self, wake_up: Option<Instant>) -> Taken {
        let mut work = self.work();
        while work.pending.is_empty() && !work.is_stopping {
            match wake_up.map(|at| at.saturating_duration_since(Instant::now())) {
                None => work = self.wanted.wait(work).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(rest) => work = self.wanted.wait_timeout(work, rest).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
        let batch = mem::take(&mut work.pending);
        work.taken_bytes += batch.bytes();
        Taken { batch, up_to: work.last, is_stopping: work.is_stopping }
    }

    /// Waits before a retry, or until the state closes. For the committer.
    pub(super) fn pause(&self, pause: Duration) {
        let waited = self.wanted.wait_timeout_while(self.work(), pause, |work| !work.is_stopping);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Records that none of the taken changes is durable; they now occupy `bytes`. For the committer.
    pub(super) fn keep(&self, bytes: usize) {
        let mut work = self.work();
        work.taken_bytes = bytes;
        self.note_congestion(&work);
    }

    /// Records that all changes up to `up_to` are durable, of which `kept_bytes` stay in memory nevertheless.
    pub(super) fn settle(&self, up_to: Ticket, written: usize, took: Duration, kept_bytes: usize) {
        let mut work = self.work();
        work.taken_bytes = kept_bytes;
        if written > 0 {
            work.stats.commits += 1;
            work.stats.written += written as u64;
            work.stats.commit_time += took;
        }
        self.note_congestion(&work);
        self.done.store(up_to.0, Ordering::Release);
        drop(work);
        self.settled.notify_all();
        self.wakers.wake_up_to(up_to);
    }

    /// Sets the health. True if its kind changed.
    pub(super) fn set_health(&self, health: &Health) -> bool {
        let mut work = self.work();
        let is_change = mem::discriminant(&work.health) != mem::discriminant(health);
        match (&mut work.health, health) {
            (Health::Failed { error, .. }, Health::Failed { error: newer, .. }) => error.clone_from(newer),
            (old, health) => *old = health.clone(),
        }
        work.stats.failures += u64::from(*health != Health::Writing);
        is_change
    }

    fn note_congestion(&self, work: &Work) {
        self.is_congested.store(work.unsaved_bytes() > self.options.congested_bytes, Ordering::Relaxed);
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn unsaved_bytes(&self) -> usize {
        self.pending.bytes() + self.taken_bytes
    }
}
