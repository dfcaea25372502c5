use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::backend::Opening;
use super::fjall_backend::{FjallBackend, mark};
use super::journal::{self, Seen, Unconfirmed};
use super::{Backend as _, BackendError, OpenError, Table, backend::guarded, has_known_version};
use crate::{LockedDirectory, Sync};

/// What the state of a directory holds, as opening it would find it. Nothing in the directory is changed.
///
/// The database cannot be opened without writing: it cuts its journals and removes what it does not need. So it is opened
/// as a copy, in the system's directory for temporary files: of tables, which are never written twice, only the names are
/// copied; of journals, of which there are some 64 MiB, as much as is whole.
pub struct Snapshot {
    // Before the copy, where it ends.
    backend: FjallBackend,
    dropped: Vec<Dropped>,
    path: PathBuf,
    _copy: TempDir,
}

/// The end of a journal that is left out, since it is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// The journal.
    pub path: PathBuf,
    /// From where on, in bytes.
    pub offset: u64,
    /// How much is written there.
    pub bytes: u64,
    /// It was never confirmed, and opening the state leaves it out too. Else that is refused.
    pub is_torn: bool,
}

impl Snapshot {
    /// That of `directory`.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or has another format.
    pub fn open(directory: &LockedDirectory) -> Result<Self, OpenError> {
        let path = directory.path().join("state");
        let unreadable = |error| OpenError::Backend(path.clone(), error);
        let damaged = |error| OpenError::Damaged(path.clone(), error);
        let (copy, dropped) = copy(&path).map_err(unreadable)?;
        let open = || FjallBackend::open(&copy.path().join(COPY), Opening::First, Sync::Always);
        let backend = guarded(open).map_err(damaged)?;
        guarded(|| has_known_version(&backend, &path)).map_err(damaged)??;
        Ok(Self { backend, dropped, path, _copy: copy })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is left out.
    pub fn dropped(&self) -> &[Dropped] {
        &self.dropped
    }

    /// Shows every key of `table` with its value, in the order of the keys.
    ///
    /// # Errors
    /// The table cannot be read from here on.
    pub fn scan(&self, table: Table, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), BackendError> {
        guarded(|| self.backend.scan(table, visit))
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("path", &self.path).finish_non_exhaustive()
    }
}

/// And what is not in it of the journals.
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
            // Whether it can be read is known before it is asked for.
            File::open(&from)?;
            symlink(fs::canonicalize(&from)?, to)?;
        } else {
            let whole = journals.iter().find(|seen| seen.journal == from).map(|seen| seen.whole as u64);
            io::copy(&mut File::open(&from)?.take(whole.unwrap_or(u64::MAX)), &mut File::create(&to)?)?;
        }
    }
    Ok(())
}

/// In a directory of its own, which is looked at for marks beside it.
const COPY: &str = "state";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::{Change, Options, State};

    /// A state with so many batches, one key in each.
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

    /// All files, those of folders below too.
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
    fn a_state_is_seen_as_it_is_and_nothing_is_changed_in_journals_or_tables() {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path(), 50);
        let snapshot = looked_at(directory.path()).unwrap();
        assert_eq!((keys(&snapshot), snapshot.dropped()), (50, &[][..]));
        drop(snapshot);
        // Into tables with all of it.
        drop(FjallBackend::open(&directory.path().join("state"), Opening::AfterFailedSync, Sync::Always).unwrap());
        let tables =
            content(directory.path()).into_iter().filter(|(path, _)| path.parent().unwrap().ends_with("tables"));
        assert!(tables.count() > 0);
        let snapshot = looked_at(directory.path()).unwrap();
        assert_eq!((keys(&snapshot), snapshot.dropped()), (50, &[][..]));
    }

    #[test]
    fn what_is_not_whole_of_a_journal_is_told_and_what_was_confirmed_is_told_from_what_was_not() {
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
        // As a power cut leaves it, before anything said that it was confirmed.
        fs::remove_file(directory.path().join("state.confirmed")).unwrap();
        flipped(end - 60, (true, 19));
        flipped(end / 2, (false, 9));
        // As whoever does not confirm each leaves it.
        fs::write(mark(&directory.path().join("state")), "").unwrap();
        flipped(end / 2, (true, 9));
    }

    #[test]
    fn no_flipped_byte_of_a_table_is_overlooked() {
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
    fn what_is_not_there_and_what_another_version_wrote_are_told() {
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
