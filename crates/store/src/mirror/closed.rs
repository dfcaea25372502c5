//! Backups of a directory that no broker uses.

use std::io::{self, Write};
use std::path::PathBuf;

use super::backup::{self, Files, Moment, Pinned, Source};
use super::copying::Rate;
use crate::LockedDirectory;
use crate::spool::Directory;
use crate::state::{BackendError, Snapshot, Table, TableSnapshot, Visit};

/// Writes a backup of a data directory that no broker uses, as [`Mirror::backup`](super::Mirror::backup) does. Nothing is
/// changed in the directory. Returns damage of the state that the backup leaves out; `tenbin store check` names the same.
///
/// # Errors
/// `out` cannot be written, or the directory cannot be read.
pub fn backup_closed(directory: &LockedDirectory, about: &str, out: &mut dyn Write) -> io::Result<Option<String>> {
    let mut damage = None;
    backup::write(&Closed(directory), about, &Rate::new(u64::MAX), out, || {
        let state = Snapshot::open(directory).map_err(io::Error::other)?;
        state.check_messages(directory, false).map_err(io::Error::other)?;
        damage = state.dropped().iter().find(|dropped| !dropped.is_torn).map(ToString::to_string);
        let files = Files::open(&Directory::to_read(&directory.path().join("spool")))?;
        Ok(Moment { files, snapshot: Box::new(state) })
    })?;
    Ok(damage)
}

/// A directory in which nothing changes.
struct Closed<'a>(&'a LockedDirectory);

impl Source for Closed<'_> {
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    fn pinned<T>(&self, work: impl FnOnce(&mut Option<Pinned>) -> T) -> T {
        work(&mut None)
    }

    fn directory(&self) -> Option<PathBuf> {
        Some(self.0.path().to_owned())
    }
}

impl TableSnapshot for Snapshot {
    fn visit(&self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        let mut goes_on = true;
        Table::ALL
            .into_iter()
            .try_for_each(|table| self.scan(table, &mut |key, value| goes_on = goes_on && visit(table, key, value)))
    }
}
