//! The log in a backup's file, as a directory of segments that is only read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::spool::{self, Disk, DiskFile, OpenError};

/// Files of a log in a backup. Recovery reads them as it reads a directory.
pub(super) struct FiledLog {
    backup: Arc<File>,
    files: BTreeMap<String, FiledFile>,
}

/// A file of the log, which has zeros between its pieces.
#[derive(Clone)]
struct FiledFile {
    backup: Arc<File>,
    length: u64,
    /// Offset in the file, bytes, and offset in the backup; by the first one.
    pieces: Vec<(u64, u64, u64)>,
}

impl FiledLog {
    pub(super) fn new(backup: File) -> Self {
        Self { backup: Arc::new(backup), files: BTreeMap::new() }
    }

    /// Notes a file.
    pub(super) fn file(&mut self, name: &str, length: u64) {
        let file = FiledFile { backup: Arc::clone(&self.backup), length, pieces: Vec::new() };
        self.files.insert(name.to_owned(), file);
    }

    /// Notes a piece of a file, which is in the backup at `at`.
    ///
    /// # Errors
    /// A backup has no such piece.
    pub(super) fn piece(&mut self, name: &str, offset: u64, bytes: u64, at: u64) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it has a piece that is in no place of a file");
        let file = self.files.get_mut(name).ok_or_else(wrong)?;
        let end_of_last = file.pieces.last().map_or(0, |&(offset, bytes, _)| offset + bytes);
        let end = offset.checked_add(bytes).ok_or_else(wrong)?;
        if offset < end_of_last || end > file.length {
            return Err(wrong());
        }
        file.pieces.push((offset, bytes, at));
        Ok(())
    }

    /// Verifies all records that a broker needs, by the rules of its start. Returns what is damaged.
    ///
    /// # Errors
    /// The backup cannot be read.
    pub(super) fn damage(&self) -> io::Result<Option<String>> {
        match spool::verify(self) {
            Ok(()) => Ok(None),
            Err(OpenError::Io { error, .. }) => Err(error),
            Err(damage) => Ok(Some(damage.to_string())),
        }
    }
}

impl Disk for FiledLog {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn create(&self, _: &str) -> io::Result<Box<dyn DiskFile>> {
        read_only()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(file.clone()))
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        read_only()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        read_only()
    }

    fn sync_names(&self) -> io::Result<()> {
        read_only()
    }

    fn space(&self) -> Option<(u64, u64)> {
        None
    }

    fn used(&self) -> io::Result<u64> {
        Ok(self.files.values().map(|file| file.length).sum())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("spool").join(name)
    }
}

impl DiskFile for FiledFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = self.length.min(offset.saturating_add(bytes.len() as u64));
        let Some(length) = end.checked_sub(offset) else { return Ok(0) };
        let bytes = &mut bytes[..length as usize];
        bytes.fill(0);
        let first = self.pieces.partition_point(|&(begin, bytes, _)| begin + bytes <= offset);
        for &(begin, length, at) in self.pieces[first..].iter().take_while(|(begin, ..)| *begin < end) {
            let (from, to) = (begin.max(offset), (begin + length).min(end));
            self.backup
                .read_exact_at(&mut bytes[(from - offset) as usize..(to - offset) as usize], at + (from - begin))?;
        }
        Ok(length as usize)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        read_only()
    }

    fn sync(&self) -> io::Result<()> {
        read_only()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        read_only()
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        read_only()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}
