use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashMap;

use super::Table;

/// A database of tables, as little as is needed of one. Used by one thread at a time.
pub trait Backend: Send {
    /// Makes all changes of `batch` or, after a crash, none. They survive the end of the process from here on, and that
    /// of the system once [`Backend::sync`] has been called.
    ///
    /// # Errors
    /// The database is not to be used any more: it is closed and opened anew.
    fn apply(&mut self, batch: &Batch) -> Result<(), BackendError>;

    /// Makes what was applied durable.
    ///
    /// # Errors
    /// As [`Backend::apply`].
    fn sync(&mut self) -> Result<(), BackendError>;

    /// Shows every key of `table` with its value, in the order of the keys.
    ///
    /// # Errors
    /// Something cannot be read.
    fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError>;

    /// What was dropped when it was opened, since a crash had torn it, in one line.
    fn cut_off(&self) -> Option<String> {
        None
    }
}

/// Opens a database.
pub(super) type Opener = Box<dyn Fn(Opening) -> Result<Box<dyn Backend>, BackendError> + Send>;

/// Why a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    First,
    /// Something was not written.
    AfterFailedWrite,
    /// The system has not confirmed what it was given, and may have forgotten it though it still shows it.
    AfterFailedSync,
}

/// The database failed; the text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendError(String);

/// The last change of each key.
#[derive(Debug, Default)]
pub struct Batch {
    changes: FxHashMap<Key, Value>,
    bytes: usize,
}

type Key = (Table, Box<[u8]>);
type Value = Option<Box<[u8]>>;

impl Batch {
    /// Of a key and what goes with it, in bytes of memory.
    const OVERHEAD: usize = 64;

    pub(super) fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        self.put((table, key.into()), value.map(Into::into));
    }

    /// Takes what may be large as it is.
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

    /// Adds what came later, which counts where both have a key.
    pub(super) fn extend(&mut self, later: Self) {
        for (key, value) in later.changes {
            self.put(key, value);
        }
    }

    /// Of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Table, key, and what is there from now on; each key once, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Table, &[u8], Option<&[u8]>)> {
        self.changes.iter().map(|((table, key), value)| (*table, &**key, value.as_deref()))
    }
}

impl BackendError {
    /// With these words.
    pub fn new(words: impl fmt::Display) -> Self {
        Self(words.to_string().replace(['\r', '\n'], " "))
    }
}

/// The database panics where it finds some kinds of damage.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let words = words.unwrap_or("no words");
        Err(BackendError::new(format_args!("a file is damaged, which makes the database panic: {words}")))
    })
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BackendError {}

impl From<io::Error> for BackendError {
    fn from(error: io::Error) -> Self {
        Self::new(error)
    }
}
