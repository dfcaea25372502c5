//! Confirmed length of the newest journal, in a file beside the state.
//!
//! Damage to the last batch looks like a batch that a crash has torn. This file tells them apart.
//!
//! It is written after each confirmation, but never synced: it survives a killed process, and a power cut may leave an
//! older version. Its length never exceeds the confirmed data. A missing or damaged file gives no information.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::BackendError;
use super::journal;
use crate::directory::{private, sync_parent};

/// Writer of that file.
#[derive(Debug)]
pub(super) struct Confirmed {
    directory: PathBuf,
    file: Option<File>,
    /// The newest known journal, and the end of its last batch.
    newest: Option<(u64, File)>,
    end: u64,
}

impl Confirmed {
    pub(super) fn of(directory: &Path) -> Self {
        let file = private().create(true).truncate(false).write(true).open(path(directory)).ok();
        Self { directory: directory.to_owned(), file, newest: None, end: 0 }
    }

    /// Adds the length of a written batch.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.end += bytes as u64;
    }

    /// Records that everything written is confirmed.
    pub(super) fn write(&mut self) {
        if !self.is_at_end() {
            self.find();
        }
        if let (Some(file), Some((number, _))) = (&self.file, &self.newest) {
            // Without the file, damage at the end looks like a torn batch, which is reported as well.
            let _ = file.write_all_at(&encode(*number, self.end), 0);
        }
    }

    /// Whether a batch ends at `end`; if not, a newer journal has begun.
    fn is_at_end(&self) -> bool {
        let mut mark = [0; journal::MAGIC.len()];
        let Some((_, file)) = &self.newest else { return false };
        let Some(at) = self.end.checked_sub(mark.len() as u64) else { return false };
        file.read_exact_at(&mut mark, at).is_ok() && mark == *journal::MAGIC
    }

    fn find(&mut self) {
        let newest = journal::newest_end(&self.directory).ok().flatten();
        self.newest = None;
        if let Some((number, path, end)) = newest {
            self.end = end;
            self.newest = File::open(path).ok().map(|file| (number, file));
        }
    }
}

/// Returns number and confirmed length of the newest journal; `None` if there is no information.
///
/// # Errors
/// The file is longer than any torn or whole write of it: it is another file, and the journal may be, too.
pub(super) fn read(directory: &Path) -> Result<Option<(u64, u64)>, BackendError> {
    let path = path(directory);
    let Ok(bytes) = std::fs::read(&path) else { return Ok(None) };
    if bytes.len() > BYTES {
        let (path, length) = (path.display(), bytes.len());
        return Err(BackendError::new(format_args!(
            "{path} is damaged, or another file: it has {length} bytes instead of {BYTES}, from byte 0 on"
        )));
    }
    let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let confirmed = number(0).zip(number(8));
    Ok(confirmed.filter(|&(number, length)| bytes == encode(number, length)))
}

/// Removes the file durably before the journal is truncated: after a power cut its old length would be wrong.
pub(super) fn forget(directory: &Path) -> Result<(), BackendError> {
    match std::fs::remove_file(path(directory)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(sync_parent(&path(directory))?),
    }
}

/// Path of the file.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.with_extension("confirmed")
}

const BYTES: usize = 20;

fn encode(number: u64, length: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
