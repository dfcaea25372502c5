use std::fmt;

use tenbin_store::state::{BackendError, OpenError};
use tenbin_store::{DirectoryError, spool};

/// Why the store cannot be opened. The text is one line, and names directory, table and key.
#[derive(Debug)]
pub struct StoreError(Cause);

#[derive(Debug)]
pub(super) enum Cause {
    Directory(DirectoryError),
    Open(OpenError),
    Spool(spool::OpenError),
    /// The system gives no thread for reading.
    Thread(std::io::Error),
    /// A table cannot be read.
    Table(&'static str, BackendError),
    /// A record cannot be read: table, key, and problem.
    Record(&'static str, String, String),
}

impl From<Cause> for StoreError {
    fn from(cause: Cause) -> Self {
        Self(cause)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Directory(error) => error.fmt(f),
            Cause::Open(error) => error.fmt(f),
            Cause::Spool(error) => write!(f, "messages: {error}"),
            Cause::Thread(error) => write!(f, "no thread to read messages with: {error}"),
            Cause::Table(table, error) => write!(f, "state: table {table} cannot be read: {error}"),
            Cause::Record(table, key, error) => write!(f, "state: table {table}, key \"{key}\": {error}"),
        }
    }
}

impl std::error::Error for StoreError {}
