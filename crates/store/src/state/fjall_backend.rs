//! Tables in the database `fjall`, all in one keyspace: a key begins with its table's number.
//!
//! fjall leaves two tasks to its user. `journal` cuts off or refuses a journal that a crash has torn, before fjall
//! opens it. And after a failed `fdatasync`, fjall would continue the same journal behind data that may be lost. So
//! this module first flushes everything into tables, and then begins a new journal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _};

use super::backend::Opening;
use super::confirmed::{self, Confirmed};
use super::files;
use super::journal::{self, Cut, Unconfirmed};
use super::{Backend, BackendError, Batch, Snapshots, Table, TableSnapshot, Visit};
use crate::Sync;
use crate::directory::{private, sync_parent};

pub(super) struct FjallBackend {
    // Declared before the database, which does not wait for its users when it is dropped.
    keyspace: Keyspace,
    database: Database,
    /// Reused buffer: a key with its table prefix.
    key: Vec<u8>,
    cut: Option<Cut>,
    confirmed: Confirmed,
}

impl FjallBackend {
    pub(super) fn open(path: &Path, opening: Opening, sync: Sync) -> Result<Self, BackendError> {
        let cut = match opening {
            Opening::First => mend(path, sync)?,
            Opening::AfterFailedWrite | Opening::AfterFailedSync => {
                let is_each_confirmed = sync == Sync::Always;
                let unconfirmed = if is_each_confirmed { Unconfirmed::LastBatch } else { Unconfirmed::Any };
                journal::cut_failed_write(path, unconfirmed)?;
                None
            }
        };
        let (mut keyspace, mut database) = open(path).map_err(|error| explain(&error))?;
        if opening == Opening::First {
            sync_parent(path)?; // The directory may be new.
        }
        if opening == Opening::AfterFailedSync {
            flush(&keyspace)?;
            drop((keyspace, database));
            confirmed::forget(path)?;
            journal::clear(path)?;
            (keyspace, database) = open(path).map_err(|error| explain(&error))?;
        }
        Ok(Self { keyspace, database, key: Vec::new(), cut, confirmed: Confirmed::of(path) })
    }
}

/// Cuts off the torn end of the journal. The policy of the run that wrote it decides which changes may be torn.
///
/// A run that does not confirm each change leaves a marker file. The next run that does removes it, after it has
/// confirmed everything that it found.
fn mend(path: &Path, sync: Sync) -> Result<Option<Cut>, BackendError> {
    if path.join("keyspaces").exists() {
        files::require(path)?;
    }
    let mark = mark(path);
    let is_marked = mark.try_exists()?;
    let unconfirmed = if is_marked { Unconfirmed::Any } else { Unconfirmed::LastBatch };
    let cut = journal::mend(path, unconfirmed)?;
    match (sync == Sync::Always, is_marked) {
        (true, true) => fs::remove_file(&mark)?,
        (false, false) => private().create(true).truncate(true).write(true).open(&mark)?.sync_all()?,
        (true, false) | (false, true) => return Ok(cut),
    }
    sync_parent(&mark)?;
    Ok(cut)
}

pub(super) fn mark(path: &Path) -> PathBuf {
    path.with_extension("unconfirmed")
}

fn open(path: &Path) -> Result<(Keyspace, Database), fjall::Error> {
    let database = Database::builder(path)
        // Tables are read only once, at the start.
        .cache_size(CACHE_BYTES)
        .max_cached_files(Some(OPEN_FILES))
        .worker_threads(1)
        .max_journaling_size(JOURNAL_BYTES)
        .open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
    Ok((database.keyspace(KEYSPACE, options)?, database))
}

/// Flushes everything into tables. fjall's own way to wait for this does not end if it fails.
fn flush(keyspace: &Keyspace) -> Result<(), BackendError> {
    keyspace.rotate_memtable().map_err(|error| explain(&error))?;
    let until = Instant::now() + FLUSH_MAX;
    while keyspace.sealed_memtable_count() > 0 {
        if Instant::now() > until {
            return Err(BackendError::new("the database cannot write its tables"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Backend for FjallBackend {
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let mut writes = self.database.batch();
        let mut bytes = journal::BATCH_BYTES;
        for (table, key, value) in batch.iter() {
            self.key.clear();
            self.key.push(table as u8);
            self.key.extend_from_slice(key);
            bytes += journal::ITEM_BYTES + self.key.len() + value.map_or(0, <[u8]>::len);
            match value {
                Some(value) => writes.insert(&self.keyspace, &self.key[..], value),
                None => writes.remove(&self.keyspace, &self.key[..]),
            }
        }
        writes.commit().map_err(|error| explain(&error))?;
        self.confirmed.grow(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BackendError> {
        self.database.persist(PersistMode::SyncData).map_err(|error| explain(&error))?;
        self.confirmed.write();
        Ok(())
    }

    fn cut_off(&self) -> Option<String> {
        self.cut.as_ref().map(ToString::to_string)
    }

    fn snapshots(&self) -> Option<Snapshots> {
        let (keyspace, database) = (self.keyspace.clone(), self.database.clone());
        Some(Box::new(move || Box::new(FjallSnapshot { snapshot: database.snapshot(), keyspace: keyspace.clone() })))
    }

    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        for entry in self.keyspace.prefix([table as u8]) {
            let (key, value) = entry.into_inner().map_err(|error| explain(&error))?;
            visit(&key[1..], &value);
        }
        Ok(())
    }
}

struct FjallSnapshot {
    snapshot: fjall::Snapshot,
    keyspace: Keyspace,
}

impl TableSnapshot for FjallSnapshot {
    fn visit(&self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        for table in Table::ALL {
            for entry in self.snapshot.prefix(&self.keyspace, [table as u8]) {
                let (key, value) = entry.into_inner().map_err(|error| explain(&error))?;
                if !visit(table, &key[1..], &value) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Describes an error. Operators can act on a system error, so it is unwrapped.
fn explain(error: &fjall::Error) -> BackendError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => BackendError::new(error),
        fjall::Error::Locked => BackendError::new("another process uses it"),
        fjall::Error::Poisoned => BackendError::new("the database has stopped after a failure"),
        error => BackendError::new(error),
    }
}

const KEYSPACE: &str = "tables";
const CACHE_BYTES: u64 = 1 << 20;
/// Tables kept open at a time; the broker reserves descriptors for them.
const OPEN_FILES: usize = 32;
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The least that fjall accepts.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Enough for a few MiB of tables.
const FLUSH_MAX: Duration = Duration::from_secs(10);
