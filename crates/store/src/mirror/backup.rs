//! Backups of a store: a moment of it in one stream, while the leader works.
//!
//! ```text
//!   "tenbin-backup 1 log 1 state 1" LF | a line of the caller LF | operations of a copy … EndOfBackup | XXH3-128 of all before
//! ```
//!
//! The moment is one at which nothing is performed, so the backup is a directory that a power cut could have left.
//! Segments are pinned then: the store removes those that it needs no more, instead of reusing their files, and an open
//! file outlives its name. Bytes that are written to a segment behind that moment are left out.
//!
//! The leader, a [copy](super::moment) and a [closed](super::closed) directory are each a [`Source`].

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use xxhash_rust::xxh3::Xxh3;

use super::copying::{PIECE_BYTES, Rate, has_content, in_pieces, is_apart, used};
use super::operation::Operation as O;
use super::{Mirror, lock, small};
use crate::spool::{self, Disk, DiskFile};
use crate::state::{self, TableSnapshot};

/// Files of the log that a backup reads.
#[derive(Default)]
pub(super) struct Pinned {
    names: HashSet<String>,
    /// Offset from which a file has other bytes than at the backup's moment.
    changed_from: HashMap<String, u64>,
}

impl Pinned {
    pub(super) fn new(files: &Files) -> Self {
        let names = files.segments.iter().map(|file| file.name.clone()).collect();
        Self { names, changed_from: HashMap::new() }
    }

    pub(super) fn is_pinned(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Notes that a file is written.
    pub(super) fn note_write(&mut self, name: &str, offset: u64) {
        if self.names.contains(name) {
            let from = self.changed_from.entry(name.to_owned()).or_insert(offset);
            *from = offset.min(*from);
        }
    }
}

/// First line of a backup. Programs read backups with the line that they write alone.
pub(super) fn first_line() -> String {
    format!("tenbin-backup {VERSION} log {} state {}\n", spool::FORMAT_VERSION, state::FORMAT_VERSION)
}

/// Version of the file itself. In this one the hash at the end covers all bytes before it: log, state and small files.
pub(super) const VERSION: u32 = 1;
/// Longest second line, with its end.
pub(super) const ABOUT_BYTES_MAX: usize = 4096;

/// A segment at the backup's moment.
struct PinnedFile {
    name: String,
    length: u64,
    file: Box<dyn DiskFile>,
}

/// Files of the log at the backup's moment.
pub(super) struct Files {
    segments: Vec<PinnedFile>,
    /// The log's confirmed position, which is written in place.
    confirmed: Option<Vec<u8>>,
}

impl Files {
    /// Opens the files. Nothing may be performed in that time.
    pub(super) fn open(disk: &dyn Disk) -> io::Result<Self> {
        let (mut segments, mut confirmed) = (Vec::new(), None);
        let names = disk.list()?.into_iter().filter(|name| !is_apart(name) && has_content(name)).collect::<Vec<_>>();
        require_descriptors(names.len(), getrlimit(Resource::Nofile).current)?;
        for name in names {
            let file = disk.open(&name)?;
            let length = file.length()?;
            if spool::number_of(&name).is_some() {
                segments.push(PinnedFile { name, length, file });
            } else {
                let mut bytes = vec![0; length.min(PIECE_BYTES as u64) as usize];
                let length = file.read_at(&mut bytes, 0)?;
                bytes.truncate(length);
                confirmed = Some(bytes);
            }
        }
        // The oldest first: they are removed first.
        segments.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { segments, confirmed })
    }
}

/// Content of the store at the backup's moment.
pub(super) struct Moment {
    pub(super) files: Files,
    pub(super) snapshot: Box<dyn TableSnapshot>,
}

/// The store that a backup reads.
pub(super) trait Source {
    /// Fails once nothing may be read any more.
    fn check(&self) -> io::Result<()>;
    /// Lets `work` see the notes about the files. A write is noted before it is performed.
    fn pinned<T>(&self, work: impl FnOnce(&mut Option<Pinned>) -> T) -> T;
    /// The data directory, for small files.
    fn directory(&self) -> Option<PathBuf>;
}

/// Writes a backup. A failure to read is told in it too, and [`check_backup`](super::check_backup) refuses it then.
pub(super) fn write<S: Source>(
    source: &S,
    about: &str,
    rate: &Rate,
    out: &mut dyn Write,
    moment: impl FnOnce() -> io::Result<Moment>,
) -> io::Result<()> {
    write_within(READER_PATIENCE, source, about, rate, out, moment)
}

/// As [`write()`]. `patience`: longest wait for a reader to take bytes.
pub(super) fn write_within<S: Source>(
    patience: Duration,
    source: &S,
    about: &str,
    rate: &Rate,
    out: &mut dyn Write,
    moment: impl FnOnce() -> io::Result<Moment>,
) -> io::Result<()> {
    if about.len() >= ABOUT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the line about the backup is too long"));
    }
    let mut out = Writer { source, out, patience, is_broken: false, hash: Xxh3::new(), frame: Vec::new() };
    out.bytes(first_line().as_bytes())?;
    out.bytes(format!("{}\n", about.replace(['\r', '\n'], " ")).as_bytes())?;
    let done = moment().and_then(|moment| out.moment(moment, rate));
    if let Err(error) = &done {
        // A reader that has gone or is stuck can be told nothing. Another wait would only keep the store's files.
        if out.is_broken {
            return done;
        }
        out.operation(&O::Failed { error: &error.to_string() })?;
    }
    out.end()?;
    done
}

/// Writes bytes and hashes them. A reader that takes nothing does not keep the store open.
struct Writer<'a, S> {
    source: &'a S,
    out: &'a mut dyn Write,
    patience: Duration,
    /// The reader takes nothing any more.
    is_broken: bool,
    hash: Xxh3,
    frame: Vec<u8>,
}

impl<S: Source> Writer<'_, S> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.write(bytes)
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut since = Instant::now();
        while !bytes.is_empty() {
            let error = match self.out.write(bytes) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(written) => {
                    (bytes, since) = (&bytes[written..], Instant::now());
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The time of one write is over.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && since.elapsed() < self.patience => {
                    self.source.check()?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let reason = format!("the reader has taken nothing for {:?}", self.patience);
                    io::Error::new(io::ErrorKind::TimedOut, reason)
                }
                Err(error) => error,
            };
            self.is_broken = true;
            return Err(error);
        }
        Ok(())
    }

    fn operation(&mut self, operation: &O<'_>) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        operation.encode(&mut frame);
        let written = self.bytes(&frame);
        self.frame = frame;
        written
    }

    fn end(mut self) -> io::Result<()> {
        let hash = self.hash.digest128().to_le_bytes();
        self.write(&hash)?;
        self.out.flush()
    }

    fn moment(&mut self, Moment { files, snapshot }: Moment, rate: &Rate) -> io::Result<()> {
        let written = self.files(files, rate);
        self.source.pinned(|pinned| *pinned = None);
        written?;
        self.small_files()?;
        self.state(&*snapshot, rate)?;
        self.operation(&O::EndOfBackup)
    }

    fn files(&mut self, Files { segments, confirmed }: Files, rate: &Rate) -> io::Result<()> {
        for PinnedFile { name, length, .. } in &segments {
            self.operation(&O::File { name, length: *length })?;
        }
        if let Some(bytes) = &confirmed {
            self.operation(&O::File { name: CONFIRMED, length: bytes.len() as u64 })?;
            self.operation(&O::Write { name: CONFIRMED, offset: 0, bytes })?;
        }
        self.operation(&O::EndOfFiles)?;
        let mut piece = vec![0; PIECE_BYTES];
        for PinnedFile { name, length, file } in segments {
            let mut offset = 0;
            while offset < length {
                let began = Instant::now();
                let wanted = (length - offset).min(PIECE_BYTES as u64) as usize;
                let read = file.read_at(&mut piece[..wanted], offset)?;
                // Behind the reading: newer bytes are noted before they are written.
                let changed_from = self
                    .source
                    .pinned(|pinned| pinned.as_ref().and_then(|pinned| pinned.changed_from.get(&name).copied()));
                self.source.check()?;
                let old = changed_from.map_or(read, |from| from.saturating_sub(offset).min(read as u64) as usize);
                // A file begins with zeros.
                let end = used(&piece[..old]);
                if end > 0 {
                    self.operation(&O::Write { name: &name, offset, bytes: &piece[..end] })?;
                }
                if read < wanted || old < read {
                    break;
                }
                offset += read as u64;
                rate.wait(began, read);
            }
            self.source.pinned(|pinned| pinned.as_mut().is_some_and(|pinned| pinned.names.remove(&name)));
        }
        Ok(())
    }

    fn small_files(&mut self) -> io::Result<()> {
        let Some(directory) = self.source.directory() else { return Ok(()) };
        for path in small::list(&directory)? {
            // Not of the same moment: nothing in the store refers to them.
            match std::fs::read(directory.join(&path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                bytes => self.operation(&O::WriteSmall { path: &path, offset: 0, bytes: &bytes? })?,
            }
        }
        Ok(())
    }

    fn state(&mut self, snapshot: &dyn TableSnapshot, rate: &Rate) -> io::Result<()> {
        self.operation(&O::Clear)?;
        in_pieces(snapshot, rate, |changes| {
            self.source.check()?;
            self.operation(&O::Entries { changes })
        })?;
        self.operation(&O::EndOfEntries { number: 0 })
    }
}

impl Mirror {
    /// Writes a backup of the open store: its content at a moment soon after the call. Clients are served in that time, and
    /// nothing waits for `out`, if its writes end with [`io::ErrorKind::WouldBlock`] after a short time. `about` is a line for readers of the backup. `bytes_per_second` bounds the rate.
    ///
    /// # Errors
    /// `out` cannot be written, another backup is under way, or the store is not open or closes. The backup says so, and
    /// [`check_backup`](super::check_backup) refuses it. [`io::ErrorKind::TimedOut`]: `out` has
    /// taken nothing for 30 s.
    pub fn backup(&self, about: &str, bytes_per_second: u64, out: &mut dyn Write) -> io::Result<()> {
        // Held to the end: the database must not close before.
        let snapshots = self.snapshots.hold();
        let (log, of_rate) = (Arc::clone(&self.log), Arc::clone(&self.snapshots));
        let rate = Rate::new(bytes_per_second).until(move || of_rate.is_closing() || log.check().is_err());
        write(self, about, &rate, out, || {
            self.pin(snapshots.as_ref().ok_or_else(|| io::Error::other("the store is not open"))?)
        })
    }

    /// The backup's moment: nothing is performed in that time.
    fn pin(&self, make: &state::Snapshots) -> io::Result<Moment> {
        let disk = lock(&self.disk).as_ref().and_then(std::sync::Weak::upgrade);
        let disk = disk.ok_or_else(|| io::Error::other("the store is not open"))?;
        let mut log = self.log.sender();
        let state = self.state.sender();
        log.check()?;
        if log.backup.is_some() {
            return Err(io::Error::other("another backup is under way"));
        }
        let files = Files::open(&*disk)?;
        let snapshot = make();
        log.backup = Some(Pinned::new(&files));
        drop(state);
        Ok(Moment { files, snapshot })
    }
}

impl Source for Mirror {
    fn check(&self) -> io::Result<()> {
        if self.snapshots.is_closing() {
            return Err(io::Error::other("the store closes"));
        }
        self.log.check()
    }

    fn pinned<T>(&self, work: impl FnOnce(&mut Option<Pinned>) -> T) -> T {
        work(&mut self.log.sender().backup)
    }

    fn directory(&self) -> Option<PathBuf> {
        lock(&self.directory).clone()
    }
}

/// Fails if the process may not open this number of further files: clients would be refused. `limit`: the process's limit.
pub(super) fn require_descriptors(files: usize, limit: Option<u64>) -> io::Result<()> {
    // Counting open files takes time with many clients, and commits wait.
    let Some(limit) = limit.filter(|limit| files as u64 > limit / 8) else { return Ok(()) };
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Ok(()) };
    let free = limit.saturating_sub(open.count() as u64);
    if files as u64 + OTHER_DESCRIPTORS <= free {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the backup has to open {files} files of messages, and the node may open {free} more files: raise its limit of {limit} \
         open files, as by LimitNOFILE of systemd"
    )))
}

/// Descriptors that stay free during a backup.
const OTHER_DESCRIPTORS: u64 = 256;
/// Longest wait for a reader to take bytes. A busy disk under the file may take some seconds. All that time the store keeps
/// files that it needs no more, and no other backup can begin.
const READER_PATIENCE: Duration = Duration::from_secs(30);
/// The log's confirmed position.
const CONFIRMED: &str = "confirmed";
