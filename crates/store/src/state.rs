//! Tables of bytes with durable changes.
//!
//! ```text
//!   State::change ──► pending: the last change of each key ──► committer, a thread ──► Backend: one batch, on disk
//!        │ Ticket                                                    │ all up to this ticket is durable
//!        └────────── is_done, wake_at, wait ◄────────────────────────┘
//! ```
//!
//! Callers keep their own copy in memory: they read tables at the start, and write changes from then on. Changes become
//! durable in the order in which they were made. While the disk confirms one batch, the next collects; no change waits
//! for others to join it.
//!
//! While the disk is full, read-only or broken, no change becomes durable, and [`State::health`] has the error and its
//! start. The changes stay in memory. The committer retries them on a newly opened database after 1 s, 2 s, and so on
//! up to 8 s. All else continues. [`State::is_congested`] is true if too much is waiting.

mod backend;
mod committer;
mod confirmed;
mod creation;
mod files;
mod fjall_backend;
mod health;
mod journal;
#[cfg(test)]
pub(crate) mod memory_backend;
mod options;
mod shared;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod wakers;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

pub use backend::{Backend, BackendError, Batch, Snapshots, TableSnapshot, Visit};
pub use health::{Health, Stats};
pub use options::Options;
pub use snapshot::{Dropped, Snapshot};
pub use table::Table;
pub use wakers::Wake;

use crate::{LockedDirectory, MessageFiles, Mismatch, StoreId, identity};
pub(crate) use backend::guarded;
use backend::{Opener, Opening};
use committer::Committer;
use fjall_backend::FjallBackend;
use shared::SharedState;

/// Persistent state of a broker: see the module. Dropping it makes one attempt to write pending changes, then closes
/// it.
///
/// This blocks for as long as the disk takes.
pub struct State {
    shared: Arc<SharedState>,
    path: PathBuf,
    /// Checksums of the files at opening.
    sums: files::Sums,
    id: StoreId,
    committer: Option<JoinHandle<()>>,
}

/// Position of a change in the sequence of all changes of a [`State`]: greater tickets are done later or at the same
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A change of one key of one table.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The table.
    pub table: Table,
    /// At most 65,535 bytes.
    pub key: &'a [u8],
    /// The new value; `None` removes the key.
    pub value: Option<&'a [u8]>,
}

/// Why the state cannot be opened. The text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The database cannot be opened, or the thread cannot be started.
    #[error("state in {0}: {1}")]
    Backend(PathBuf, BackendError),
    /// Unknown format version; `None` if there is none.
    #[error("state in {0}: {words}", words = of_version(.1))]
    Version(PathBuf, Option<u32>),
    /// The state is missing, or the messages beside it belong to another store.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// Written data is damaged. Returned only by [`Snapshot::open`].
    #[error("state in {0}: {1}")]
    Damaged(PathBuf, BackendError),
}

fn of_version(version: &Option<u32>) -> String {
    version.map_or("it has data but no format version".to_owned(), |version| {
        format!("format version {version} is unknown, this program writes {FORMAT_VERSION}")
    })
}

impl Ticket {
    /// Ticket of no change: always done.
    pub const NONE: Self = Self(0);
}

/// Files of a state that another process fills.
pub(crate) struct StateFiles;

impl StateFiles {
    /// Replaces the state in a data directory by an empty one, and opens its database.
    pub(crate) fn create_anew(directory: &Path, sync: crate::Sync) -> Result<Box<dyn Backend>, OpenError> {
        let path = directory.join("state");
        creation::create(&path)?;
        let backend = FjallBackend::open(&path, Opening::First, sync);
        Ok(Box::new(backend.map_err(|error| OpenError::Backend(path, error))?))
    }
}

impl State {
    /// Opens the state in `directory`, and creates it if there is none, or only the files of a killed first start.
    ///
    /// `on_health` is called for every change of [`State::health`], on the state's own thread.
    ///
    /// # Errors
    /// The database cannot be opened, or has another format.
    pub fn open(
        directory: &LockedDirectory,
        options: Options,
        on_health: impl Fn(&Health) + Send + 'static,
    ) -> Result<Self, OpenError> {
        Self::open_through(directory, options, |backend| backend, on_health)
    }

    /// As [`open`](Self::open); `through` shows the state its database, at each opening of it.
    pub(crate) fn open_through(
        directory: &LockedDirectory,
        options: Options,
        through: impl Fn(Box<dyn Backend>) -> Box<dyn Backend> + Send + 'static,
        on_health: impl Fn(&Health) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let path = directory.path().join("state");
        let messages =
            MessageFiles::of(directory.path()).map_err(|error| OpenError::Backend(path.clone(), error.into()))?;
        if creation::is_due(&path, messages).map_err(|error| OpenError::Backend(path.clone(), error))? {
            // First, since the old state's files may be restored.
            messages.check(directory.path(), identity::StateIdentity::New).map_err(OpenError::Mismatch)?;
            creation::create(&path)?;
        }
        let check = |state| messages.check(directory.path(), state).map_err(OpenError::Mismatch);
        let at = path.clone();
        let open = move |opening: Opening| -> Result<Box<dyn Backend>, BackendError> {
            Ok(through(Box::new(FjallBackend::open(&at, opening, options.sync)?)))
        };
        Self::open_with(Box::new(open), &path, options, Box::new(on_health), check)
    }

    /// Whether a first start would begin in this directory: nothing was ever stored there. Changes nothing.
    ///
    /// # Errors
    /// It cannot be read, or another program's files are where the state would be.
    pub fn is_blank(directory: &Path) -> Result<bool, OpenError> {
        let path = directory.join("state");
        let messages = MessageFiles::of(directory).map_err(BackendError::from);
        let is_due = messages.and_then(|messages| Ok((creation::is_due(&path, messages)?, messages)));
        let (is_due, messages) = is_due.map_err(|error| OpenError::Backend(path, error))?;
        if is_due {
            messages.check(directory, identity::StateIdentity::New).map_err(OpenError::Mismatch)?;
        }
        Ok(is_due)
    }

    fn open_with(
        open: Opener,
        path: &Path,
        options: Options,
        on_health: Box<dyn Fn(&Health) + Send>,
        check: impl FnOnce(identity::StateIdentity) -> Result<(), OpenError>,
    ) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Backend(path.to_owned(), error);
        let sums = files::sums(path).unwrap_or_default();
        let mut backend =
            guarded(|| open(Opening::First)).map_err(|error| failed(files::name_damaged(path, &error)))?;
        let id = check_version(&mut *backend, path, check)?;
        let shared = Arc::new(SharedState::new(options, backend));
        let committer = Committer::new(Arc::clone(&shared), open, on_health);
        let thread = std::thread::Builder::new().name("tenbin-state".to_owned());
        let committer = thread.spawn(move || committer.run()).map_err(|error| failed(error.into()))?;
        Ok(Self { shared, path: path.to_owned(), sums, id, committer: Some(committer) })
    }

    /// Visits every key of `table` and its value on disk, in key order.
    ///
    /// Use it before the first change: it may or may not show changes that are not durable.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        let backend = self.shared.backend.lock().unwrap_or_else(PoisonError::into_inner);
        match &*backend {
            Some(backend) => {
                guarded(|| backend.scan(table, visit)).map_err(|error| files::name_damaged(&self.path, &error))
            }
            None => Err(BackendError::new("the database is closed after a failure")),
        }
    }

    /// Makes these changes atomically. Returns their ticket; [`Ticket::NONE`] if there are none.
    ///
    /// Only short work in memory, under the innermost lock.
    pub fn change<'a>(&self, changes: impl IntoIterator<Item = Change<'a>>) -> Ticket {
        self.shared.change(changes)
    }

    /// As [`State::change`], for one key whose value may be large: it is not copied.
    pub fn put(&self, table: Table, key: Box<[u8]>, value: Box<[u8]>) -> Ticket {
        self.shared.put(table, key, value)
    }

    /// Describes in one line the torn data that opening the state has cut off, if any.
    ///
    /// With [`Sync::Always`](crate::Sync::Always) it was never confirmed. With another policy it is everything from the
    /// first torn change on.
    pub fn cut_off(&self) -> Option<String> {
        let backend = self.shared.backend.lock().unwrap_or_else(PoisonError::into_inner);
        backend.as_ref().and_then(|backend| backend.cut_off())
    }

    /// The ticket of the last change.
    pub fn last(&self) -> Ticket {
        self.shared.last()
    }

    /// Whether the changes up to this one are durable, as [`Sync`](crate::Sync) defines it.
    #[inline]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        ticket <= self.shared.done()
    }

    /// Wakes a task once the changes up to this one are durable, at once if they are.
    ///
    /// The waker stays until then, unless [`State::forget_wake`] removes it.
    pub fn wake_at(&self, ticket: Ticket, waker: &Waker) -> Wake {
        self.shared.wakers.add(ticket, waker, || ticket <= self.shared.done())
    }

    /// Removes the waker of a [`State::wake_at`].
    pub fn forget_wake(&self, wake: Wake) {
        self.shared.wakers.forget(wake);
    }

    /// Blocks until the changes up to this one are durable, or `patience` has passed. True if they are.
    pub fn wait(&self, ticket: Ticket, patience: std::time::Duration) -> bool {
        self.shared.wait(ticket, patience)
    }

    /// Whether callers should make no more changes, because too much is unwritten: see [`Options::congested_bytes`].
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.shared.is_congested()
    }

    /// Whether changes become durable.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Records that all tables were read and are intact: if a file is damaged later, the next start can name it.
    pub fn found_whole(&self) {
        // Without the checksums an error names no file.
        let _ = files::keep_sums(&self.path, &self.sums);
    }

    /// Id of the store that it belongs to.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Bytes of disk that it occupies now.
    pub fn used_bytes(&self) -> u64 {
        crate::directory::used_bytes(&self.path).unwrap_or(0)
    }

    /// Statistics since opening.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(committer) = self.committer.take() {
            // A panic of the thread has printed its message already.
            let _ = committer.join();
            // Without the checksums an error at the next start names no file.
            let _ = files::sums(&self.path).and_then(|sums| files::keep_sums(&self.path, &sums));
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// Version of tables and keys. The writers of the values define their formats.
pub const FORMAT_VERSION: u32 = 1;
/// Key of the version, in [`Table::Meta`].
pub const VERSION_KEY: &[u8] = b"format version";

/// Checks the version and the id. Writes the version if the state is empty, and an id if there is none. Returns the id.
fn check_version(
    backend: &mut dyn Backend,
    path: &Path,
    check: impl FnOnce(identity::StateIdentity) -> Result<(), OpenError>,
) -> Result<StoreId, OpenError> {
    let failed = |error| OpenError::Backend(path.to_owned(), files::name_damaged(path, &error));
    let mut batch = Batch::default();
    let mut found = None;
    if guarded(|| has_known_version(backend, path)).map_err(failed)?? {
        found = guarded(|| id_in(backend)).map_err(failed)?;
        check(found.map_or(identity::StateIdentity::Unnamed, identity::StateIdentity::Named))?;
    } else {
        check(identity::StateIdentity::New)?;
        batch.set(Table::Meta, VERSION_KEY, Some(&FORMAT_VERSION.to_le_bytes()));
    }
    if let Some(id) = found {
        return Ok(id);
    }
    let id = StoreId::random();
    batch.set(Table::Meta, ID_KEY, Some(&id.to_bytes()));
    backend.apply(&batch).and_then(|()| backend.sync()).map_err(failed)?;
    Ok(id)
}

/// Key of the store's id, in [`Table::Meta`].
pub(crate) const ID_KEY: &[u8] = b"store id";

/// Returns the store's id; `None` if the state was written before states had ids.
pub(crate) fn id_in(backend: &dyn Backend) -> Result<Option<StoreId>, BackendError> {
    let mut found = None;
    let mut visit = |key: &[u8], value: &[u8]| {
        if key == ID_KEY {
            found = StoreId::from_bytes(value);
        }
    };
    backend.scan(Table::Meta, &mut visit)?;
    Ok(found)
}

/// Whether the state has this version; false if it is empty.
fn has_known_version(backend: &dyn Backend, path: &Path) -> Result<Result<bool, OpenError>, BackendError> {
    let (mut found, mut is_empty) = (None, true);
    for table in Table::ALL {
        let mut visit = |key: &[u8], value: &[u8]| {
            is_empty = false;
            if table == Table::Meta && key == VERSION_KEY {
                found = Some(value.try_into().map(u32::from_le_bytes).ok());
            }
        };
        backend.scan(table, &mut visit)?;
        if found.is_some() {
            break;
        }
    }
    Ok(match found {
        Some(Some(FORMAT_VERSION)) => Ok(true),
        None if is_empty => Ok(false),
        version => Err(OpenError::Version(path.to_owned(), version.flatten())),
    })
}
