//! Creation of a state. It gets its name only once it is complete, so that a killed first start leaves no part of it.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::backend::Opening;
use super::fjall_backend::{FjallBackend, mark};
use super::{BackendError, OpenError, check_version, confirmed, files, journal};
use crate::directory::{create_private, sync_parent};
use crate::{MessageFiles, Sync};

/// Whether there is no state at `path`, or only the beginning of one in which nothing was ever stored.
///
/// A first start names the store in the directory of messages before it stores anything. So without message files, a
/// database without any data is a beginning, and with them it is a damaged one.
///
/// # Errors
/// The directory cannot be read, or it, or the directory of an unfinished state, has an entry that the database does not make.
pub(super) fn is_due(path: &Path, messages: MessageFiles) -> Result<bool, BackendError> {
    let is_due = entries(path)?.next().is_none()
        || (messages.is_empty()
            && confirmed::read(path)?.is_none()
            && !has_tables(&path.join("keyspaces"))?
            && journal::is_blank(path)?);
    if is_due {
        // The creation removes both: they may be another program's.
        require_own(path, is_of_database)?;
        require_own(&unfinished(path), is_of_unfinished)?;
    }
    Ok(is_due)
}

/// Creates an empty state at `path`, with its version and an id.
///
/// # Errors
/// It cannot be written.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::Backend(path.to_owned(), error.into());
    let unfinished = unfinished(path);
    remove(&unfinished).map_err(failed)?;
    create_private(&unfinished).map_err(failed)?;
    // Within a directory, since the database has files beside it.
    let new = unfinished.join("state");
    create_private(&new).map_err(failed)?;
    let backend = FjallBackend::open(&new, Opening::First, Sync::Always);
    let mut backend = backend.map_err(|error| OpenError::Backend(path.to_owned(), error))?;
    check_version(&mut backend, &new, |_| Ok(()))?;
    drop(backend);
    empty(path).map_err(failed)?;
    // They may be of an older state.
    for beside in [confirmed::path(path), mark(path), files::path(path)] {
        match fs::remove_file(beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    match fs::rename(&new, path) {
        Ok(()) => sync_parent(path).map_err(failed)?,
        // Another file system is mounted there, or it is a link: the opening creates the database in place.
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(failed(error)),
    }
    remove(&unfinished).map_err(failed)
}

/// Directory in which a state is made.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Checks all entries below a directory with `is_own`, which gets the names on the way to an entry.
///
/// # Errors
/// The text names the first entry that is not the database's.
fn require_own(directory: &Path, is_own: fn(&[&str], &Metadata) -> bool) -> Result<(), BackendError> {
    let mut left: Vec<PathBuf> = entries(directory)?.collect();
    while let Some(path) = left.pop() {
        let entry = fs::symlink_metadata(&path)?;
        let below: Option<Vec<&str>> =
            path.strip_prefix(directory).ok().and_then(|below| below.iter().map(OsStr::to_str).collect());
        match below {
            Some(below) if below == [LOST_AND_FOUND] => {}
            Some(below) if is_own(&below, &entry) => {
                if entry.is_dir() {
                    left.extend(entries(&path)?);
                }
            }
            _ => {
                return Err(BackendError::new(format_args!(
                    "{path:?} is no file of this broker: name another data directory, or move it out of {}",
                    directory.display()
                )));
            }
        }
    }
    Ok(())
}

/// Whether a database without data may have this entry.
fn is_of_database(below: &[&str], entry: &Metadata) -> bool {
    let is_number = |name: &str| name.parse::<u64>().is_ok();
    match below {
        ["lock"] => entry.is_file() && entry.len() == 0,
        ["version"] => entry.is_file() && entry.len() <= journal::MAGIC.len() as u64,
        ["keyspaces"] | ["keyspaces", _, "tables"] => entry.is_dir(),
        ["keyspaces", number] => entry.is_dir() && is_number(number),
        ["keyspaces", _, "tables", number] => entry.is_file() && is_number(number),
        ["keyspaces", _, name] => {
            let is_version = name.strip_prefix('v').is_some_and(is_number);
            entry.is_file() && (*name == "current" || is_version || name.starts_with(".tmp"))
        }
        [journal] => entry.is_file() && (*journal == "0.jnl" || *journal == "0.jnl.0.torn"),
        _ => false,
    }
}

/// Whether the directory in which a state is made may have this entry.
fn is_of_unfinished(below: &[&str], entry: &Metadata) -> bool {
    match below {
        ["state"] => entry.is_dir(),
        ["state.confirmed"] => entry.is_file(),
        ["state", below @ ..] => is_of_database(below, entry),
        _ => false,
    }
}

/// Whether there is a table outside of keyspace 0, in which the database lists the others.
fn has_tables(keyspaces: &Path) -> io::Result<bool> {
    for keyspace in entries(keyspaces)?.filter(|keyspace| keyspace.is_dir()) {
        let has_some = entries(&keyspace.join("tables"))?.next().is_some();
        if has_some && !keyspace.ends_with("0") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Paths of all entries of a directory; none if it is missing.
fn entries(directory: &Path) -> io::Result<impl Iterator<Item = PathBuf> + use<>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        entries => entries?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?,
    };
    Ok(entries.into_iter())
}

/// Removes the content of a directory, if there is one.
fn empty(directory: &Path) -> io::Result<()> {
    for path in entries(directory)?.filter(|path| !path.ends_with(LOST_AND_FOUND)) {
        if fs::symlink_metadata(&path)?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    Ok(())
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Directory that `mkfs` makes, if a file system is mounted for the state alone.
const LOST_AND_FOUND: &str = "lost+found";
