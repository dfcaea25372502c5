//! The leader's state: its batches go to the copy too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use super::channel::Channel;
use super::operation::{Operation as O, encode_batch};
use crate::Sync;
use crate::state::{Backend, BackendError, Batch, Snapshots, Table};

/// A database whose batches a copy applies, too.
pub(crate) struct MirroredBackend {
    inner: Box<dyn Backend>,
    channel: Arc<Channel>,
    snapshots: Arc<SnapshotsOfOpen>,
    /// Whether a batch counts once it is applied, before it is synced.
    counts_when_applied: bool,
    changes: Vec<u8>,
}

impl MirroredBackend {
    pub(super) fn new(
        inner: Box<dyn Backend>,
        channel: Arc<Channel>,
        snapshots: Arc<SnapshotsOfOpen>,
        sync: Sync,
    ) -> Self {
        snapshots.is_closing.store(false, Ordering::Release);
        *snapshots.make.write().unwrap_or_else(PoisonError::into_inner) = inner.snapshots();
        Self { inner, channel, snapshots, counts_when_applied: sync != Sync::Always, changes: Vec::new() }
    }
}

/// Makes snapshots of the leader's database while it is open.
#[derive(Default)]
pub(super) struct SnapshotsOfOpen {
    make: RwLock<Option<Snapshots>>,
    /// The database waits for the end of all snapshots.
    is_closing: AtomicBool,
}

impl SnapshotsOfOpen {
    /// Keeps the database open. A reader of a snapshot holds this, and asks [`is_closing`](Self::is_closing) often.
    pub(super) fn hold(&self) -> RwLockReadGuard<'_, Option<Snapshots>> {
        self.make.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}

impl Drop for MirroredBackend {
    fn drop(&mut self) {
        // The database is to close, and a copier or backup that reads it keeps it open.
        self.snapshots.is_closing.store(true, Ordering::Release);
        let mut snapshots = match self.snapshots.make.try_write() {
            Ok(snapshots) => snapshots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if let Some(join) = self.channel.peer() {
                    self.channel.detach(join);
                }
                self.snapshots.make.write().unwrap_or_else(PoisonError::into_inner)
            }
        };
        *snapshots = None;
    }
}

impl Backend for MirroredBackend {
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let number = sender.next();
        if sender.has_peer() {
            self.changes.clear();
            encode_batch(&mut self.changes, batch);
            sender.send(&O::Apply { number, changes: &self.changes });
            let _ = sender.flush();
            if self.changes.capacity() > KEPT_BYTES {
                self.changes = Vec::new();
            }
        }
        self.channel.disk.perform(|| self.inner.apply(batch))?;
        drop(sender);
        if self.counts_when_applied {
            self.channel.wait(number)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BackendError> {
        let mut sender = self.channel.sender();
        sender.check()?;
        let number = sender.send_numbered(|number| O::SyncState { number });
        drop(sender);
        self.channel.disk.perform(|| self.inner.sync())?;
        Ok(self.channel.wait(number)?)
    }

    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        self.inner.scan(table, visit)
    }

    fn cut_off(&self) -> Option<String> {
        self.inner.cut_off()
    }
}

const KEPT_BYTES: usize = 1 << 20;
