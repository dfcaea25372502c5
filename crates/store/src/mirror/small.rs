//! Small files of a data directory, which are written as a whole or at their end: bans of operators, topic ids of MQTT-SN.
//!
//! Their owners write them, and then tell the mirror. So a join may read a file that has bytes of which the mirror is told
//! later: the copy then gets them twice, at the same offset.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::copying::{PIECE_BYTES, Rate};
use super::operation::Operation as O;
use super::{JoinId, Mirror, lock};
use crate::directory;

/// The file that names the store of the log. It is written before any copy can join, and never changes.
pub(super) const STORE_ID: &str = "spool/store-id";
const BANS: &str = "bans.json";
const SN: &str = "sn";

/// Whether a path below the data directory is one of a small file: `bans.json`, or in `sn/`.
pub fn is_small_file(path: &str) -> bool {
    let is_apart = |name: &str| name == "lock" || name.ends_with(".new");
    let mut names = path.split('/');
    match names.next() {
        Some(BANS) => names.next().is_none(),
        Some(SN) => path.split('/').count() > 1 && names.next_back().is_some_and(|name| !is_apart(name)),
        _ => false,
    }
}

/// Paths of all small files in a data directory.
pub(super) fn list(directory: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    if directory.join(BANS).is_file() {
        found.push(BANS.to_owned());
    }
    let mut left = vec![SN.to_owned()];
    while let Some(below) = left.pop() {
        let entries = match fs::read_dir(directory.join(&below)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Names of other forms are not the broker's.
            let Some(path) = entry.file_name().to_str().map(|name| format!("{below}/{name}")) else { continue };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() && is_small_file(&path) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Sends all small files, after the order to remove the copy's files.
pub(super) fn send_all(mirror: &Mirror, join: JoinId, rate: &Rate) -> io::Result<()> {
    let Some(directory) = lock(&mirror.directory).clone() else { return Ok(()) };
    let bytes = fs::read(directory.join(STORE_ID))?;
    {
        let mut sender = mirror.log.sender();
        sender.send(&O::ClearSmall);
        let number = sender.next();
        sender.send(&O::Replace { number, path: STORE_ID, bytes: &bytes });
        sender.flush()?;
    }
    let mut piece = vec![0; PIECE_BYTES];
    for path in list(&directory)? {
        let mut offset = 0_u64;
        loop {
            if mirror.log.peer() != Some(join) {
                return Err(io::Error::other("the connection has ended"));
            }
            let began = Instant::now();
            // Under the lock: the owner may replace the file, and the mirror is told after that.
            let mut sender = mirror.log.sender();
            let length = read_piece(&directory.join(&path), offset, &mut piece)?;
            if length > 0 || offset == 0 {
                sender.send(&O::WriteSmall { path: &path, offset, bytes: &piece[..length] });
            }
            sender.flush()?;
            drop(sender);
            mirror.copied(length as u64);
            if length < piece.len() {
                break;
            }
            offset += length as u64;
            rate.wait(began, length);
        }
    }
    Ok(())
}

/// Reads a piece of a file, or less at its end; nothing if there is no such file any more.
pub(super) fn read_piece(path: &Path, offset: u64, piece: &mut [u8]) -> io::Result<usize> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let mut length = 0;
    while length < piece.len() {
        match file.read_at(&mut piece[length..], offset + length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

/// Place of a small file in a copy; `None` if the copy has no data directory.
fn place(directory: Option<&Path>, path: &str) -> io::Result<Option<PathBuf>> {
    if !is_small_file(path) && path != STORE_ID {
        return Err(io::Error::other(format!("{path:?} is no file that a copy has: the leader has another version")));
    }
    Ok(directory.map(|directory| directory.join(path)))
}

/// Replaces a small file of a copy durably.
pub(super) fn replace(directory: Option<&Path>, path: &str, bytes: &[u8]) -> io::Result<()> {
    place(directory, path)?.map_or(Ok(()), |path| directory::replace(&path, bytes))
}

/// Writes a part of a small file of a copy.
pub(super) fn write(directory: Option<&Path>, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let Some(path) = place(directory, path)? else { return Ok(()) };
    if let Some(parent) = path.parent() {
        directory::create(parent)?;
    }
    directory::private().create(true).truncate(false).write(true).open(&path)?.write_all_at(bytes, offset)
}

/// Syncs a small file of a copy, and its name.
pub(super) fn sync(directory: Option<&Path>, path: &str) -> io::Result<()> {
    let Some(path) = place(directory, path)? else { return Ok(()) };
    File::open(&path)?.sync_all()?;
    directory::sync_parent(&path)
}

/// Removes all small files of a copy.
pub(super) fn clear(directory: Option<&Path>) -> io::Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    for path in list(directory)? {
        fs::remove_file(directory.join(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_bans_and_those_of_gateways() {
        for path in ["bans.json", "sn/field/topic-ids", "sn/topic-ids"] {
            assert!(is_small_file(path), "{path}");
        }
        let others = ["sn", "bans.json/x", "sn/field/lock", "sn/field/topic-ids.new", "cluster.json", "lock", STORE_ID];
        for path in others {
            assert!(!is_small_file(path), "{path}");
        }
    }

    #[test]
    fn copy_writes_no_other_file_of_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["cluster.json", "state/x", "spool/0000000001.log"] {
            let refused = [
                replace(Some(directory.path()), path, b"bytes"),
                write(Some(directory.path()), path, 0, b"bytes"),
                sync(Some(directory.path()), path),
            ];
            assert!(refused.iter().all(|refused| refused.is_err()), "{path}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        write(Some(directory.path()), "sn/a/topic-ids", 3, b"def").unwrap();
        write(Some(directory.path()), "sn/a/topic-ids", 0, b"abc").unwrap();
        sync(Some(directory.path()), "sn/a/topic-ids").unwrap();
        assert_eq!(fs::read(directory.path().join("sn/a/topic-ids")).unwrap(), b"abcdef");
        clear(Some(directory.path())).unwrap();
        assert!(list(directory.path()).unwrap().is_empty());
    }
}
