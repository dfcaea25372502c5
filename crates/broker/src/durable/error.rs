use tenbin_store::state::{BackendError, OpenError, Table};
use tenbin_store::{DirectoryError, spool};

use super::bytes::RecordError;

/// Why the store cannot be opened. The text is one line, and names directory, table and key.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(#[from] Cause);

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("{0}")]
    Directory(DirectoryError),
    #[error("{0}")]
    Open(OpenError),
    #[error("messages: {0}")]
    Spool(spool::OpenError),
    /// The system gives no thread for reading.
    #[error("no thread to read messages with: {0}")]
    Thread(std::io::Error),
    /// A table cannot be read.
    #[error("state: table {0} cannot be read: {1}")]
    Table(&'static str, BackendError),
    /// A record cannot be read: table, key, and problem.
    #[error("state: table {0}, key \"{1}\": {2}")]
    Record(&'static str, String, String),
}

/// Decodes the records of a table that `scan` visits, up to the first that is illegal.
pub(super) fn decode_each(
    table: Table,
    scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError>,
    mut decode: impl FnMut(&[u8], &[u8]) -> Result<(), RecordError>,
) -> Result<(), Cause> {
    let mut decoded = Ok(());
    let scanned = scan(&mut |key, value| {
        if decoded.is_ok() {
            decoded = decode(key, value)
                .map_err(|error| Cause::Record(table.name(), key.escape_ascii().to_string(), error.to_string()));
        }
    });
    scanned.map_err(|error| Cause::Table(table.name(), error))?;
    decoded
}
