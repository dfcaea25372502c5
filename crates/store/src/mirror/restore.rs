//! Reading of backups: their check, and a new store from one.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::backup::{ABOUT_BYTES_MAX, VERSION, first_line};
use super::copying::HASH_BYTES;
use super::filed::FiledLog;
use super::log_copy::LogCopy;
use super::operation::{Operation as O, changes, encode_change, read_frame};
use super::state_copy::StateCopy;
use crate::spool::{Directory, NoDirectory, number_of};
use crate::state::{ID_KEY, Table};
use crate::{LockedDirectory, MessageFiles, Sync, directory};

/// Why a backup cannot be used. The text is one line, and names the file or the directory.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct BackupError {
    path: PathBuf,
    reason: String,
}

/// Content of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The line of the backup's writer, of some kilobytes at most. It may have any characters.
    pub about: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Entries of the state.
    pub entries: u64,
    /// Damage of the store that was backed up, with segment and offset: a broker would refuse to start with it.
    pub damage: Option<String>,
}

/// Reads all of a backup, and checks that it is whole. Verifies all records of messages, as a broker's start does.
///
/// # Errors
/// The file cannot be read, is damaged or cut short, is no backup, or is one of another version.
pub fn check_backup(file: &Path) -> Result<Contents, BackupError> {
    let error = |reason: String| BackupError { path: file.to_owned(), reason };
    let of_system = |reason: io::Error| error(reason.to_string());
    let mut opened = open(file).map_err(of_system)?;
    let mut log = FiledLog::new(opened.try_clone().map_err(of_system)?);
    let mut contents = read_all(&mut opened, &mut |operation, end| match *operation {
        O::File { name, length } => {
            log.file(name, length);
            Ok(())
        }
        O::Write { name, offset, bytes } => {
            log.piece(name, offset, bytes.len() as u64, end.saturating_sub(bytes.len() as u64))
        }
        _ => Ok(()),
    })
    .map_err(error)?;
    contents.damage = log.damage().map_err(of_system)?;
    Ok(contents)
}

/// Opens a backup. Another kind of file, such as a FIFO, might never end.
fn open(file: &Path) -> io::Result<File> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(file)
}

/// Makes a data directory from a backup. It is a new store: its id is a new one, and it belongs to no cluster.
/// `accepts_damage`: also from a backup of a damaged store. No broker starts with such a directory; it can be inspected.
///
/// # Errors
/// As of [`check_backup`], or the backup has damage that is not accepted: nothing is written then. Or the directory is not empty, or cannot be written; then the rest of a broken attempt is no
/// store that a broker opens, and the text says that it is to be removed.
pub fn restore(file: &Path, to: &Path, accepts_damage: bool) -> Result<Contents, BackupError> {
    let of_file = |reason: String| BackupError { path: file.to_owned(), reason };
    let of_directory = |reason: String| BackupError { path: to.to_owned(), reason };
    require_empty(to, &["lost+found"]).map_err(of_directory)?;
    // Nothing is written before the whole file is known to be intact.
    let checked = check_backup(file)?;
    if let Some(damage) = checked.damage.as_ref().filter(|_| !accepts_damage) {
        return Err(of_file(format!(
            "the store in it is damaged, and nothing was restored: {damage}; use an older backup, or --accept-damage for a \
             directory to inspect"
        )));
    }
    let mut opened = open(file).map_err(|error| of_file(error.to_string()))?;
    let broken = |reason: String| of_directory(format!("{reason}; remove the incomplete directory"));
    let _locked = LockedDirectory::open(to).map_err(|error| of_directory(error.to_string()))?;
    // Another restore may have been there in the meantime.
    require_empty(to, &["lost+found", "lock"]).map_err(of_directory)?;
    let spool = Directory::locked(&to.join("spool")).map_err(|error| match error {
        NoDirectory::InUse => broken("another process uses it".to_owned()),
        NoDirectory::Io(error) => broken(error.to_string()),
    })?;
    let mut log = LogCopy::new(Arc::new(spool), Some(to.to_owned()));
    // Everything is synced at the end.
    let mut state = StateCopy::new(to, Sync::Never);
    let restored = read_all(&mut opened, &mut |operation, _| match operation {
        O::Entries { changes: bytes } => {
            let mut kept = Vec::with_capacity(bytes.len());
            for change in changes(bytes) {
                let (table, key, value) = change?;
                // The new state has a new id.
                if (table, key) != (Table::Meta, ID_KEY) {
                    encode_change(&mut kept, table, key, value);
                }
            }
            state.perform(&O::Entries { changes: &kept }).map(drop)
        }
        O::Clear | O::EndOfEntries { .. } => state.perform(operation).map(drop),
        O::EndOfBackup => Ok(()),
        operation => log.perform(operation).map(drop),
    });
    restored.map_err(broken)?;
    let finished = || -> io::Result<()> {
        log.perform(&O::SyncAll { number: 0 })?;
        let id = state.store_id()?.ok_or_else(|| io::Error::other("its state has no id"))?;
        drop(state);
        // Last: without this file no broker opens the directory.
        MessageFiles::of(to)?.name(to, id)?;
        directory::sync_parent(to)
    };
    finished().map_err(|error| broken(error.to_string()))?;
    Ok(checked)
}

/// Fails if a directory has anything else than these.
fn require_empty(directory: &Path, permitted: &[&str]) -> Result<(), String> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| error.to_string())?,
    };
    for entry in entries {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        if !permitted.iter().any(|permitted| name == *permitted) {
            return Err(format!("the directory is not empty: it has {name:?}"));
        }
    }
    Ok(())
}

/// Performs an operation of a backup, which ends at this offset of the file.
type Perform<'a> = dyn FnMut(&O<'_>, u64) -> io::Result<()> + 'a;

/// Reads a whole backup, after a check of its hash, and passes its operations on.
fn read_all(file: &mut File, perform: &mut Perform<'_>) -> Result<Contents, String> {
    let text = |error: io::Error| error.to_string();
    let length = file.metadata().map_err(text)?.len();
    let first = first_line();
    let other = other_first_line(file, &first).map_err(text)??;
    if let Some(Other { version, line }) = &other
        && *version != VERSION
    {
        // Nothing is known of its end.
        return Err(not_read(line, &first));
    }
    let end = length.checked_sub(HASH_BYTES as u64).filter(|end| *end >= first.len() as u64);
    let end = end.ok_or("it is cut short")?;
    if !has_its_hash(file, end).map_err(text)? {
        return Err("it is damaged or cut short: its checksum is another one".to_owned());
    }
    if let Some(Other { line, .. }) = other {
        return Err(not_read(&line, &first));
    }
    file.seek(SeekFrom::Start(first.len() as u64)).map_err(text)?;
    let mut from = BufReader::with_capacity(256 << 10, file.take(end - first.len() as u64));
    let mut contents = Contents { bytes: length, ..Contents::default() };
    let about = from.by_ref().take(ABOUT_BYTES_MAX as u64).read_line(&mut contents.about).map_err(text)?;
    if !contents.about.ends_with('\n') {
        return Err(format!("its second line has more than {ABOUT_BYTES_MAX} bytes, or is cut short"));
    }
    contents.about.pop();
    let mut at = (first.len() + about) as u64;
    let (mut frame, mut is_whole) = (Vec::new(), false);
    while read_frame(&mut from, &mut frame).map_err(text)? {
        at += 4 + frame.len() as u64;
        let operation = O::decode(&frame).map_err(text)?;
        match operation {
            O::Failed { error } => {
                let error: String = error.lines().next().unwrap_or_default().chars().take(REASON_CHARS_MAX).collect();
                return Err(format!("its writer has broken it off: {error}"));
            }
            O::File { name, .. } => contents.segments += u64::from(number_of(name).is_some()),
            O::Entries { changes: bytes } => contents.entries += changes(bytes).count() as u64,
            O::EndOfBackup => is_whole = true,
            O::Write { .. } | O::EndOfFiles | O::WriteSmall { .. } | O::Clear | O::EndOfEntries { .. } => {}
            _ => return Err("it has an operation that is none of a backup".to_owned()),
        }
        perform(&operation, at).map_err(text)?;
    }
    if is_whole { Ok(contents) } else { Err("it is cut short".to_owned()) }
}

/// The first line of a backup that this program does not read.
struct Other {
    /// Version of the file itself.
    version: u32,
    line: String,
}

/// Reads the first line of a backup, if it is another one than `first`. The inner error: it is no backup, or its line is damaged.
fn other_first_line(file: &mut File, first: &str) -> io::Result<Result<Option<Other>, String>> {
    let mut begin = Vec::new();
    file.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut begin)?;
    let Some(rest) = begin.strip_prefix(b"tenbin-backup ") else {
        return Ok(Err("it is no backup of tenbin".to_owned()));
    };
    if begin.starts_with(first.as_bytes()) {
        return Ok(Ok(None));
    }
    let line = rest.iter().position(|byte| *byte == b'\n').and_then(|end| std::str::from_utf8(&rest[..end]).ok());
    let version = line.and_then(|line| line.split(' ').next()?.parse().ok());
    Ok(match (line, version) {
        (Some(line), Some(version)) => Ok(Some(Other { version, line: format!("tenbin-backup {line}") })),
        _ => Err("it is damaged or cut short: its first line names no format".to_owned()),
    })
}

fn not_read(found: &str, first: &str) -> String {
    format!(
        "its format is {found:?}, and this program, tenbin {}, reads {:?}: restore it with the version of tenbin that wrote it",
        env!("CARGO_PKG_VERSION"),
        first.trim_end()
    )
}

/// Longest reason of a writer that is repeated.
const REASON_CHARS_MAX: usize = 1000;
/// Longest first line of any version.
const FIRST_LINE_BYTES_MAX: u64 = 128;

/// Whether the bytes before `end` have the hash behind them.
fn has_its_hash(file: &mut File, end: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(0))?;
    let (mut hash, mut piece, mut left) = (Xxh3::new(), vec![0; 1 << 20], end);
    while left > 0 {
        let wanted = left.min(piece.len() as u64) as usize;
        file.read_exact(&mut piece[..wanted])?;
        hash.update(&piece[..wanted]);
        left -= wanted as u64;
    }
    let mut found = [0; HASH_BYTES];
    file.read_exact(&mut found)?;
    Ok(found == hash.digest128().to_le_bytes())
}
