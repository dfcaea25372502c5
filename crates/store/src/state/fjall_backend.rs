//! Tables in the database `fjall`, all in one keyspace: a key begins with its table's number.
//!
//! Two things that it leaves to its user are done here. It refuses to open a journal whose last batch has a hole, which a
//! power cut can leave where a value is longer than a page of the file; that batch was never confirmed, and is cut off.
//! And after a failed `fdatasync` it would go on in the same journal behind what may not be there: so everything is
//! written into its tables first, and the journal begun anew.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::backend::Opening;
use super::{Backend, BackendError, Batch, Table};

pub(super) struct FjallBackend {
    // Before the database, which waits for nobody who still has one.
    keyspace: Keyspace,
    database: Database,
    /// A key with its table, to be looked up: reused memory.
    key: Vec<u8>,
    torn_batches: usize,
}

impl FjallBackend {
    /// `torn_batches_maximum`: so many at the end of the journal were possibly never confirmed.
    pub(super) fn open(path: &Path, opening: Opening, torn_batches_maximum: usize) -> Result<Self, BackendError> {
        let mut torn_batches = 0;
        let (mut keyspace, mut database) = loop {
            match open(path) {
                Err(fjall::Error::JournalRecovery(_)) if torn_batches < torn_batches_maximum => {
                    if !cut_last_batch(path)? {
                        return Err(BackendError::new("a journal is damaged"));
                    }
                    torn_batches += 1;
                }
                opened => break opened.map_err(|error| explain(&error))?,
            }
        };
        if opening == Opening::AfterFailedSync {
            flush(&keyspace)?;
            drop((keyspace, database));
            File::options().write(true).open(journal(path)?).and_then(|journal| {
                journal.set_len(0)?;
                journal.sync_all()
            })?;
            (keyspace, database) = open(path).map_err(|error| explain(&error))?;
        }
        Ok(Self { keyspace, database, key: Vec::new(), torn_batches })
    }
}

fn open(path: &Path) -> Result<(Keyspace, Database), fjall::Error> {
    let database = Database::builder(path)
        // What is read is read once, at the start.
        .cache_size(CACHE_BYTES)
        .worker_threads(1)
        .max_journaling_size(JOURNAL_BYTES)
        .open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
    Ok((database.keyspace(KEYSPACE, options)?, database))
}

/// Everything into tables. Its own way of waiting for that does not end when it fails.
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

/// The journal that is written to: the one of the highest number.
fn journal(path: &Path) -> Result<PathBuf, BackendError> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jnl"));
        if let Some(number) = name.and_then(|name| name.parse().ok())
            && newest.as_ref().is_none_or(|(newest, _)| *newest < number)
        {
            newest = Some((number, path));
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| BackendError::new("there is no journal"))
}

/// Takes the last byte from the end mark of the journal's last batch: one without an end is dropped when it is opened.
/// Behind it there are zeros or nothing. `false`: there is no batch.
fn cut_last_batch(path: &Path) -> Result<bool, BackendError> {
    let mut file = OpenOptions::new().read(true).write(true).open(journal(path)?)?;
    let mut end = file.metadata()?.len();
    let mut block = vec![0; 64 << 10];
    while end > 0 {
        let from = end.saturating_sub(block.len() as u64);
        let block = &mut block[..(end - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(block)?;
        if let Some(last) = block.iter().rposition(|&byte| byte != 0) {
            file.set_len(from + last as u64)?;
            file.sync_all()?;
            return Ok(true);
        }
        end = from;
    }
    Ok(false)
}

impl Backend for FjallBackend {
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let mut writes = self.database.batch();
        for (table, key, value) in batch.iter() {
            self.key.clear();
            self.key.push(table as u8);
            self.key.extend_from_slice(key);
            match value {
                Some(value) => writes.insert(&self.keyspace, &self.key[..], value),
                None => writes.remove(&self.keyspace, &self.key[..]),
            }
        }
        writes.commit().map_err(|error| explain(&error))
    }

    fn sync(&mut self) -> Result<(), BackendError> {
        self.database.persist(PersistMode::SyncData).map_err(|error| explain(&error))
    }

    fn torn_batches(&self) -> usize {
        self.torn_batches
    }

    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        for entry in self.keyspace.prefix([table as u8]) {
            let (key, value) = entry.into_inner().map_err(|error| explain(&error))?;
            visit(&key[1..], &value);
        }
        Ok(())
    }
}

/// What people can do something about is an error of the system, wherever it is wrapped.
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
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The least that it takes.
const JOURNAL_BYTES: u64 = 64 << 20;

/// For a few MiB of tables.
const FLUSH_MAX: Duration = Duration::from_secs(10);
