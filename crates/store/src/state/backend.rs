use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;

use super::Table;

/// Minimal interface of a database of tables. Used by one thread at a time.
pub trait Backend: Send {
    /// Applies all changes of `batch` atomically.
    ///
    /// They survive the end of the process from here on, and a power cut after [`Backend::sync`].
    ///
    /// # Errors
    /// The database must not be used any more: it is closed and opened anew.
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError>;

    /// Makes all applied batches durable.
    ///
    /// # Errors
    /// As [`Backend::apply`].
    fn sync(&mut self) -> Result<(), BackendError>;

    /// Visits every key of `table` with its value, in key order.
    ///
    /// # Errors
    /// The table cannot be read.
    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError>;

    /// Describes in one line the torn data that opening has cut off, if any.
    fn cut_off(&self) -> Option<String> {
        None
    }

    /// Makes snapshots of the database for other threads; `None` if it has none.
    fn snapshots(&self) -> Option<Snapshots> {
        None
    }
}

/// Makes a snapshot of a database, which keeps the database open.
pub type Snapshots = Box<dyn Fn() -> Box<dyn TableSnapshot> + Send + Sync>;

/// Content of all tables at one moment.
pub trait TableSnapshot: Send {
    /// Visits all tables, keys and values, until `visit` returns false.
    ///
    /// # Errors
    /// The database cannot be read.
    fn visit(&self, visit: &mut Visit<'_>) -> Result<(), BackendError>;
}

/// Takes a table, a key and its value; false ends the visit.
pub type Visit<'a> = dyn FnMut(Table, &[u8], &[u8]) -> bool + 'a;

/// Function that opens a database.
pub(super) type Opener = Box<dyn Fn(Opening) -> Result<Box<dyn Backend>, BackendError> + Send>;

/// Why a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    First,
    /// A write failed.
    AfterFailedWrite,
    /// A sync failed: data may be lost, although the system still shows it.
    AfterFailedSync,
}

/// A failure of the database. The text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(String);

/// Changes to be written together, at most one for each key.
#[derive(Debug, Default)]
pub struct Batch {
    changes: FxHashMap<Key, Value>,
    bytes: usize,
}

type Key = (Table, Box<[u8]>);
type Value = Option<Box<[u8]>>;

impl Batch {
    /// Memory overhead of a key and its value, in bytes.
    const OVERHEAD: usize = 64;

    pub(crate) fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        self.put((table, key.into()), value.map(Into::into));
    }

    /// Sets a value that may be large, without a copy.
    pub(super) fn set_owned(&mut self, table: Table, key: Box<[u8]>, value: Box<[u8]>) {
        self.put((table, key), Some(value));
    }

    fn put(&mut self, key: Key, value: Value) {
        let len = |value: &Value| value.as_ref().map_or(0, |value| value.len());
        let key_bytes = key.1.len() + Self::OVERHEAD;
        self.bytes += len(&value);
        match self.changes.insert(key, value) {
            Some(before) => self.bytes -= len(&before),
            None => self.bytes += key_bytes,
        }
    }

    /// Adds later changes, which replace earlier ones of the same key.
    pub(super) fn extend(&mut self, later: Self) {
        for (key, value) in later.changes {
            self.put(key, value);
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns table, key and new value of each change, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Table, &[u8], Option<&[u8]>)> {
        self.changes.iter().map(|((table, key), value)| (*table, &**key, value.as_deref()))
    }
}

impl BackendError {
    /// An error with this text.
    pub fn new(words: impl fmt::Display) -> Self {
        Self(words.to_string().replace(['\r', '\n'], " "))
    }
}

/// Turns a panic into an error: fjall panics on some kinds of damage.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let words = words.unwrap_or("no words");
        Err(BackendError::new(format_args!("a file is damaged, which makes the database panic: {words}")))
    })
}

impl From<io::Error> for BackendError {
    fn from(error: io::Error) -> Self {
        Self::new(error)
    }
}
