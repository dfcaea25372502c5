use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::backend::Opening;
use super::fjall_backend::{FjallBackend, mark};
use super::journal::{self, Seen, Unconfirmed};
use super::{Backend as _, BackendError, OpenError, Table, backend::guarded, creation, has_known_version, id_in};
use crate::{LockedDirectory, MessageFiles, Mismatch, Sync, identity};

/// Content of a directory's state as an opening would find it. Changes nothing in the directory.
///
/// fjall writes when it opens a database: it truncates journals and removes unneeded files. So this opens a copy, in
/// the system's directory for temporary files. Table files are never rewritten, so the copy has symbolic links to them.
/// Of the journals, some 64 MiB, the copy has the intact part.
pub struct Snapshot {
    // Declared before the copy, so that it is dropped first.
    backend: FjallBackend,
    dropped: Vec<Dropped>,
    path: PathBuf,
    pub(super) id: identity::StateIdentity,
    _copy: TempDir,
}

/// End of a journal that the snapshot omits, since it is not intact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// The journal.
    pub path: PathBuf,
    /// Start of the omitted end, in bytes.
    pub offset: u64,
    /// Length of the omitted end.
    pub bytes: u64,
    /// True if it was never confirmed: opening the state omits it, too. Otherwise opening fails.
    pub is_torn: bool,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, bytes, is_torn } = self;
        let path = path.display();
        if *is_torn {
            let what = "changes that were not wholly written, which a broker leaves out";
            return write!(f, "{path}: offset {offset}: the last {bytes} bytes are {what}");
        }
        write!(
            f,
            "{path}: offset {offset}: confirmed changes are damaged; nothing of the last {bytes} bytes can be read"
        )
    }
}

impl Snapshot {
    /// Opens a snapshot of the state in `directory`.
    ///
    /// # Errors
    /// The state cannot be read, is damaged, or has another format.
    pub fn open(directory: &LockedDirectory) -> Result<Self, OpenError> {
        let path = directory.path().join("state");
        let unreadable = |error| OpenError::Backend(path.clone(), error);
        let damaged = |error| OpenError::Damaged(path.clone(), error);
        if let Ok(messages) = MessageFiles::of(directory.path())
            && creation::is_due(&path, messages).map_err(unreadable)?
        {
            messages.check(directory.path(), identity::StateIdentity::New).map_err(OpenError::Mismatch)?;
            let missing = "nothing is stored yet: no first start was finished here, and the next start begins anew";
            return Err(unreadable(BackendError::new(missing)));
        }
        let (copy, dropped) = copy(&path).map_err(unreadable)?;
        let at = copy.path().join(COPY);
        let backend = guarded(|| FjallBackend::open(&at, Opening::First, Sync::Always)).map_err(|error| {
            // The copy is gone when the error is read.
            let text = error.to_string().replace(&at.display().to_string(), &path.display().to_string());
            damaged(BackendError::new(text))
        })?;
        guarded(|| has_known_version(&backend, &path)).map_err(damaged)??;
        let id = guarded(|| id_in(&backend)).map_err(damaged)?;
        let id = id.map_or(identity::StateIdentity::Unnamed, identity::StateIdentity::Named);
        Ok(Self { backend, dropped, path, id, _copy: copy })
    }

    /// Checks that the messages in the directory belong to this state. `had_run`: a broker has stored the number of a run.
    ///
    /// # Errors
    /// They are another store's, or missing, or the file with their id is damaged or unreadable.
    pub fn check_messages(&self, directory: &LockedDirectory, had_run: bool) -> Result<(), Mismatch> {
        let messages = MessageFiles::of(directory.path()).map_err(|error| Mismatch(error.to_string()))?;
        messages.check(directory.path(), self.id)?;
        if had_run { messages.require(directory.path()) } else { Ok(()) }
    }

    /// Path of the state.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the omitted ends of journals.
    pub fn dropped(&self) -> &[Dropped] {
        &self.dropped
    }

    /// Visits every key of `table` with its value, in key order.
    ///
    /// # Errors
    /// The table cannot be read any further.
    pub fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        guarded(|| self.backend.scan(table, visit))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Copies the database. Returns the copy and the omitted ends of journals.
fn copy(path: &Path) -> Result<(TempDir, Vec<Dropped>), BackendError> {
    let is_each_confirmed = !mark(path).try_exists()?;
    let unconfirmed = if is_each_confirmed { Unconfirmed::LastBatch } else { Unconfirmed::Any };
    let journals = journal::look(path, unconfirmed)?;
    let copy = TempDir::new()?;
    let to = copy.path().join(COPY);
    copy_database(path, &to, &journals)?;
    let is_left_out = |seen: &Seen| seen.whole < seen.end;
    let dropped = journals.into_iter().filter(is_left_out).map(|Seen { journal, whole, end, is_torn }| Dropped {
        path: journal,
        offset: whole as u64,
        bytes: (end - whole) as u64,
        is_torn,
    });
    Ok((copy, dropped.collect()))
}

fn copy_database(from: &Path, to: &Path, journals: &[Seen]) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_database(&from, &to, journals)?;
        } else if from.parent().is_some_and(|folder| folder.ends_with("tables")) {
            // Checks readability now, not at the first access.
            File::open(&from)?;
            symlink(fs::canonicalize(&from)?, to)?;
        } else {
            let whole = journals.iter().find(|seen| seen.journal == from).map(|seen| seen.whole as u64);
            io::copy(&mut File::open(&from)?.take(whole.unwrap_or(u64::MAX)), &mut File::create(&to)?)?;
        }
    }
    Ok(())
}

/// A directory inside the temporary one, since the state has files beside it.
const COPY: &str = "state";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::{Change, Options, State};

    /// Writes a state of `keys` batches with one key each.
    fn written(directory: &Path, keys: u32) {
        let state = State::open(&LockedDirectory::open(directory).unwrap(), Options::default(), |_| {}).unwrap();
        for number in 0..keys {
            let (key, value) = (number.to_be_bytes(), [7; 100]);
            let ticket = state.change([Change { table: Table::Retained, key: &key, value: Some(&value) }]);
            assert!(state.wait(ticket, Duration::from_secs(60)));
        }
    }

    fn looked_at(directory: &Path) -> Result<Snapshot, OpenError> {
        let before = content(directory);
        let snapshot = Snapshot::open(&LockedDirectory::open_to_read(directory).unwrap());
        assert!(content(directory) == before, "something was changed");
        snapshot
    }

    fn keys(snapshot: &Snapshot) -> usize {
        let mut count = 0;
        snapshot.scan(Table::Retained, &mut |_, value| count += usize::from(value == [7; 100])).unwrap();
        count
    }

    /// Returns path and content of all files, recursively.
    fn content(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { all.extend(content(&path)) } else { all.push((path.clone(), fs::read(path).unwrap())) }
        }
        all.sort();
        all
    }

    fn flip(path: &Path, offset: u64) {
        let mut bytes = fs::read(path).unwrap();
        bytes[offset as usize] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    fn only_journal(directory: &Path) -> (PathBuf, u64) {
        let journals = journal::look(&directory.join("state"), Unconfirmed::LastBatch).unwrap();
        let [Seen { journal, end, .. }] = &journals[..] else { panic!("{journals:?}") };
        (journal.clone(), *end as u64)
    }

    #[test]
    fn snapshot_shows_journals_and_tables_without_changes() {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path(), 50);
        let snapshot = looked_at(directory.path()).unwrap();
        assert_eq!((keys(&snapshot), snapshot.dropped()), (50, &[][..]));
        drop(snapshot);
        // Moves everything into tables.
        drop(FjallBackend::open(&directory.path().join("state"), Opening::AfterFailedSync, Sync::Always).unwrap());
        let tables =
            content(directory.path()).into_iter().filter(|(path, _)| path.parent().unwrap().ends_with("tables"));
        assert!(tables.count() > 0);
        let snapshot = looked_at(directory.path()).unwrap();
        assert_eq!((keys(&snapshot), snapshot.dropped()), (50, &[][..]));
    }

    #[test]
    fn snapshot_reports_torn_and_damaged_journal_ends() {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path(), 20);
        let (path, end) = only_journal(directory.path());
        let flipped = |offset, expected: (bool, usize)| {
            flip(&path, offset);
            let snapshot = looked_at(directory.path()).unwrap();
            let [dropped] = snapshot.dropped() else { panic!("{:?}", snapshot.dropped()) };
            assert_eq!((&dropped.path, dropped.offset + dropped.bytes), (&path, end));
            assert!(dropped.offset <= offset, "{dropped:?} {offset}");
            assert_eq!((dropped.is_torn, keys(&snapshot)), expected);
            drop(snapshot);
            flip(&path, offset);
        };
        flipped(end - 60, (false, 19));
        // As after a power cut before the confirmed length was recorded.
        fs::remove_file(directory.path().join("state.confirmed")).unwrap();
        flipped(end - 60, (true, 19));
        flipped(end / 2, (false, 9));
        // As after a run whose policy does not confirm each batch.
        fs::write(mark(&directory.path().join("state")), "").unwrap();
        flipped(end / 2, (true, 9));
    }

    #[test]
    fn flipped_byte_in_table_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path(), 50);
        drop(FjallBackend::open(&directory.path().join("state"), Opening::AfterFailedSync, Sync::Always).unwrap());
        let is_table =
            |(path, content): &(PathBuf, Vec<u8>)| path.parent().unwrap().ends_with("tables") && content.len() > 50;
        let tables: Vec<_> = content(directory.path()).into_iter().filter(is_table).collect();
        for (path, content) in tables {
            flip(&path, 60.min(content.len() as u64 / 2));
            let found = looked_at(directory.path())
                .map(|snapshot| Table::ALL.map(|table| snapshot.scan(table, &mut |_, _| {})));
            assert!(found.is_err() || found.unwrap().iter().any(Result::is_err), "{}", path.display());
            fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn missing_state_and_unknown_version_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(LockedDirectory::open(directory.path()).unwrap());
        let error = looked_at(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Backend(..)), "{error}");
        written(directory.path(), 0);
        let state = State::open(&LockedDirectory::open(directory.path()).unwrap(), Options::default(), |_| {}).unwrap();
        let version = 9_u32.to_le_bytes();
        let change = Change { table: Table::Meta, key: super::super::VERSION_KEY, value: Some(&version) };
        assert!(state.wait(state.change([change]), Duration::from_secs(60)));
        drop(state);
        let error = looked_at(directory.path()).unwrap_err();
        assert!(matches!(error, OpenError::Version(_, Some(9))), "{error}");
    }
}
