//! The copy of the log: performs the leader's operations on its own files.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::check::Compare;
use super::copy::Passes;
use super::copying::{PIECE_BYTES, UNFINISHED, has_content, hash, is_apart};
use super::operation::Operation as O;
use super::reading::CopyReader;
use super::small;
use crate::spool::{Directory, Disk, DiskFile, number_of, write_all};

/// Files of a copied log.
pub(super) struct LogCopy {
    disk: Arc<dyn Disk>,
    /// The data directory, for small files.
    directory: Option<PathBuf>,
    open: HashMap<String, Box<dyn DiskFile>>,
    /// Files that were written since the connection began.
    written: HashSet<String>,
    /// Small files of which parts were written since.
    written_small: HashSet<String>,
    /// The leader's files, until it has named all.
    files: BTreeSet<String>,
    reader: Arc<CopyReader>,
    /// `None` = it is neither backed up nor compared, as in a restore.
    pub(super) passes: Option<Passes>,
}

/// Files that stay open for the next operations.
const OPEN_FILES: usize = 8;

impl LogCopy {
    pub(super) fn new(disk: Arc<dyn Disk>, directory: Option<PathBuf>) -> Self {
        // It must not keep the directory locked.
        let to_read = directory.as_ref().map(|directory| Arc::new(Directory::to_read(&directory.join("spool"))) as _);
        let reader = Arc::new(CopyReader::new(to_read.unwrap_or_else(|| Arc::clone(&disk))));
        Self {
            disk,
            directory,
            open: HashMap::new(),
            written: HashSet::new(),
            written_small: HashSet::new(),
            files: BTreeSet::new(),
            reader,
            passes: None,
        }
    }

    /// Reads messages of the copy.
    pub(super) fn reader(&self) -> Arc<CopyReader> {
        Arc::clone(&self.reader)
    }

    /// Tells all files, and the hashes of their pieces.
    ///
    /// Pieces that may not be on the disk, although the system shows them, are written again: after a failed sync a later one
    /// reports success for lost data. They can be in the newest segments, and anywhere if the last copy did not
    /// [end well](Self::end). `is_over` is asked for each piece, and ends it.
    pub(super) fn inventory(
        &self,
        is_over: &dyn Fn() -> bool,
        mut tell: impl FnMut(&O<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let names: Vec<String> = self.disk.list()?.into_iter().filter(|name| !is_apart(name)).collect();
        let newest = names.iter().filter_map(|name| number_of(name)).max().unwrap_or(0);
        let is_doubted = match self.disk.open(UNFINISHED) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            // Nothing can be said of it.
            _ => true,
        };
        self.disk.create(UNFINISHED)?;
        self.disk.sync_names()?;
        let mut piece = vec![0; PIECE_BYTES];
        for name in names.iter().filter(|name| has_content(name)) {
            let file = self.disk.open(name)?;
            let is_written_again = is_doubted || number_of(name).is_none_or(|number| number + 1 >= newest);
            let (mut hashes, mut offset) = (Vec::new(), 0);
            loop {
                if is_over() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let length = file.read_at(&mut piece, offset)?;
                hashes.extend_from_slice(&hash(&piece[..length]));
                if is_written_again {
                    write_all(&*file, &piece[..length], offset)?;
                }
                if length < piece.len() {
                    break;
                }
                offset += length as u64;
            }
            tell(&O::Has { name, hashes: &hashes })?;
        }
        tell(&O::EndOfInventory)
    }

    /// Notes that no operation has failed: everything that the system shows is on the disk, or will be synced.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.disk.remove(UNFINISHED)?;
        self.disk.sync_names()
    }

    /// Its directory.
    pub(super) fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }

    /// Performs an operation. Returns its number, if it is to be confirmed.
    pub(super) fn perform(&mut self, operation: &O<'_>) -> io::Result<Option<u64>> {
        match *operation {
            O::File { name, length } => {
                self.files.insert(name.to_owned());
                self.begin_file(name, length)?;
            }
            O::EndOfFiles => self.remove_others()?,
            O::Create { name } => {
                let file = self.disk.create(name)?;
                self.open.insert(name.to_owned(), file);
                self.written.insert(name.to_owned());
            }
            O::Rename { from, to } if self.reader.leaves(from) || self.is_pinned(from) => {
                self.replace_spare(from, to)?;
            }
            O::Rename { from, to } => {
                self.disk.rename(from, to)?;
                self.open.remove(to);
                if let Some(file) = self.open.remove(from) {
                    self.open.insert(to.to_owned(), file);
                }
                if self.written.remove(from) {
                    self.written.insert(to.to_owned());
                }
            }
            O::Remove { name } => {
                self.reader.leaves(name);
                self.open.remove(name);
                self.written.remove(name);
                self.disk.remove(name)?;
            }
            O::Write { name, offset, bytes } => {
                if let Some(passes) = &self.passes {
                    passes.moments.note_write(name, offset);
                }
                write_all(self.file(name)?, bytes, offset)?;
                self.has_written(name);
            }
            O::Allocate { name, length } => {
                self.file(name)?.allocate(length)?;
                self.has_written(name);
            }
            // The leader is about to reuse the file: its length does not matter.
            O::Truncate { name, .. } if self.is_pinned(name) => {}
            O::Truncate { name, length } => {
                self.file(name)?.truncate(length)?;
                self.has_written(name);
            }
            O::SyncNames { number } => {
                self.disk.sync_names()?;
                return Ok(Some(number));
            }
            O::Sync { number, name } => {
                self.reader.let_go();
                self.file(name)?.sync()?;
                return Ok(Some(number));
            }
            O::Settle { number } => return Ok(Some(number)),
            O::SyncAll { number } => {
                for name in &self.written {
                    self.disk.open(name)?.sync()?;
                }
                self.disk.sync_names()?;
                self.written.clear();
                for path in self.written_small.drain() {
                    small::sync(self.directory.as_deref(), &path)?;
                }
                return Ok(Some(number));
            }
            O::Replace { number, path, bytes } => {
                small::replace(self.directory.as_deref(), path, bytes)?;
                return Ok(Some(number));
            }
            O::WriteSmall { path, offset, bytes } => {
                small::write(self.directory.as_deref(), path, offset, bytes)?;
                self.written_small.insert(path.to_owned());
            }
            O::Same { name, end, hashes } => {
                if let Some(passes) = &self.passes {
                    let (name, hashes) = (name.to_owned(), hashes.to_vec());
                    passes.compare(Compare::File { name, end, hashes });
                }
            }
            O::Moment { number } => {
                if let Some(passes) = &self.passes {
                    passes.moments.leave_files(number, &*self.disk);
                }
            }
            O::ClearSmall => {
                small::clear(self.directory.as_deref())?;
                self.written_small.clear();
            }
            _ => return Err(io::Error::other("the leader has sent an operation that is none of a log")),
        }
        Ok(None)
    }

    /// Whether a backup reads a file.
    fn is_pinned(&self, name: &str) -> bool {
        self.passes.as_ref().is_some_and(|passes| passes.moments.is_pinned(name))
    }

    /// Makes a new file instead of a segment that becomes a spare one: the old file is still read. The content of a spare
    /// segment does not matter.
    fn replace_spare(&mut self, from: &str, to: &str) -> io::Result<()> {
        let length = self.file(from)?.length()?;
        let file = self.disk.create(to)?;
        if length > 0 {
            file.allocate(length)?;
        }
        self.disk.remove(from)?;
        self.open.remove(from);
        self.open.insert(to.to_owned(), file);
        self.written.remove(from);
        self.written.insert(to.to_owned());
        Ok(())
    }

    fn has_written(&mut self, name: &str) {
        if !self.written.contains(name) {
            self.written.insert(name.to_owned());
        }
    }

    fn file(&mut self, name: &str) -> io::Result<&dyn DiskFile> {
        if !self.open.contains_key(name) {
            if self.open.len() >= OPEN_FILES {
                self.open.clear();
            }
            self.open.insert(name.to_owned(), self.disk.open(name)?);
        }
        Ok(&*self.open[name])
    }

    /// Gives a file the leader's length. Its content comes later.
    fn begin_file(&mut self, name: &str, length: u64) -> io::Result<()> {
        let file = match self.disk.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(name)?,
            file => file?,
        };
        if file.length()? > length {
            file.truncate(length)?;
        }
        // The system refuses to allocate nothing.
        if length > 0 {
            file.allocate(length)?;
        }
        self.has_written(name);
        Ok(())
    }

    /// Removes files that the leader lacks.
    fn remove_others(&mut self) -> io::Result<()> {
        let others = self.disk.list()?.into_iter().filter(|name| !is_apart(name) && !self.files.contains(name));
        for name in others.collect::<Vec<_>>() {
            self.disk.remove(&name)?;
        }
        self.files.clear();
        self.disk.sync_names()
    }
}
