//! Creation of a state. It gets its name only once it is complete, so that a killed first start leaves no part of it.

use std::fs;
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
pub(super) fn is_due(path: &Path, messages: MessageFiles) -> Result<bool, BackendError> {
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(true),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    Ok(messages.is_empty()
        && confirmed::read(path)?.is_none()
        && !has_tables(&path.join("keyspaces"))?
        && journal::is_blank(path)?)
}

/// Creates an empty state at `path`, with its version and an id.
///
/// # Errors
/// It cannot be written.
pub(super) fn create(path: &Path) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::Backend(path.to_owned(), error.into());
    let unfinished = path.with_extension("new");
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

/// Whether there is a table besides those of keyspace 0, in which the database lists the others.
fn has_tables(keyspaces: &Path) -> io::Result<bool> {
    for keyspace in entries(keyspaces)? {
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
    for path in entries(directory)? {
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
