//! The file of states: appended by a separate thread, and rewritten when most of it is obsolete.
//!
//! ```text
//!   record: length of the rest (4) | CRC-32C of the rest (4) | length (2), client id | state; without state: forgotten
//! ```
//!
//! A record that was written in part ends the file. A lost record costs the client a PUBACK with code 2 and a REGISTER.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::{Buf as _, BufMut as _, Bytes};

/// Why a directory for states cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state directory {}: {reason}", directory.display())]
pub struct StateError {
    directory: PathBuf,
    reason: String,
}

/// Learns of each write of a gateway to its file of states, for a copy on another machine.
pub trait StateCopy: Send + Sync {
    /// The file at `path` has this content.
    fn replaced(&self, path: &Path, content: &[u8]);

    /// These bytes were written at this offset of the file at `path`.
    fn wrote(&self, path: &Path, offset: u64, bytes: &[u8]);
}

/// A record to append.
pub(super) struct Change(Vec<u8>);

/// Appends records on a separate thread.
pub(super) struct Writer {
    changes: SyncSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Write(Change),
    End,
}

type Records = HashMap<String, Bytes>;

const FILE: &str = "topic-ids";
const NEW_FILE: &str = "topic-ids.new";
const LOCK_FILE: &str = "lock";
/// Changes that wait for the writer.
const CHANGES_MAXIMUM: usize = 4096;
/// The fewest appended bytes after which the file is rewritten.
const REWRITE_FROM: u64 = 1 << 20;

impl Change {
    pub(super) fn put(client_id: &str, state: Vec<u8>) -> Self {
        let mut body = Vec::with_capacity(10 + client_id.len() + state.len());
        body.put_u64(0);
        body.put_u16(client_id.len() as u16);
        body.put_slice(client_id.as_bytes());
        body.put_slice(&state);
        let (length, crc) = (body.len() as u32 - 8, crc32c::crc32c(&body[8..]));
        body[..4].copy_from_slice(&length.to_be_bytes());
        body[4..8].copy_from_slice(&crc.to_be_bytes());
        Self(body)
    }

    pub(super) fn forget(client_id: &str) -> Self {
        Self::put(client_id, Vec::new())
    }
}

impl Writer {
    /// Locks the directory and reads the records of earlier runs.
    pub(super) fn open(directory: &Path, copy: Option<Arc<dyn StateCopy>>) -> Result<(Self, Records), StateError> {
        let failed = |reason: String| StateError { directory: directory.to_owned(), reason };
        let io_failed = |error: io::Error| failed(error.to_string());
        // Client Identifiers and topics are private.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io_failed)?;
        let lock =
            tenbin_kit::files::private().create(true).truncate(false).write(true).open(directory.join(LOCK_FILE));
        let lock = lock.map_err(io_failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed("another gateway uses it".to_owned()),
            TryLockError::Error(error) => failed(format!("it cannot be locked: {error}")),
        })?;
        let records = read(directory).map_err(io_failed)?;
        let log = Log::rewrite(directory, &records, lock, copy).map_err(io_failed)?;
        let (changes, receiver) = sync_channel(CHANGES_MAXIMUM);
        let thread = std::thread::Builder::new()
            .name("sn-state".to_owned())
            .spawn(move || append_all(log, &receiver))
            .map_err(io_failed)?;
        Ok((Self { changes, thread: Mutex::new(Some(thread)) }, records))
    }

    /// Appends a record soon. False if too many wait.
    pub(super) fn write(&self, change: Change) -> bool {
        self.changes.try_send(Command::Write(change)).is_ok()
    }

    /// Waits until all records are in the file.
    pub(super) fn finish(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = self.changes.send(Command::End);
            let _ = thread.join();
        }
    }
}

struct Log {
    directory: PathBuf,
    file: File,
    /// Bytes after the last rewrite, and bytes appended since.
    rewritten: u64,
    appended: u64,
    lock: File,
    copy: Option<Arc<dyn StateCopy>>,
}

impl Log {
    /// Writes a new file with these records, in place of the old one.
    fn rewrite(directory: &Path, records: &Records, lock: File, copy: Option<Arc<dyn StateCopy>>) -> io::Result<Self> {
        let new = directory.join(NEW_FILE);
        let mut bytes = Vec::new();
        for (client_id, state) in records {
            bytes.extend_from_slice(&Change::put(client_id, state.to_vec()).0);
        }
        // One that a killed process has left may have other rights.
        let _ = fs::remove_file(&new);
        let mut file = tenbin_kit::files::private().create_new(true).write(true).open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let path = directory.join(FILE);
        fs::rename(&new, &path)?;
        if let Some(copy) = &copy {
            copy.replaced(&path, &bytes);
        }
        Ok(Self { directory: directory.to_owned(), file, rewritten: bytes.len() as u64, appended: 0, lock, copy })
    }

    fn append(&mut self, Change(bytes): &Change) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            // A part of the record would hide all later ones.
            let end = self.rewritten + self.appended;
            let undone = self.file.set_len(end).and_then(|()| self.file.seek(io::SeekFrom::Start(end)));
            return Err(undone.err().unwrap_or(error));
        }
        if let Some(copy) = &self.copy {
            copy.wrote(&self.directory.join(FILE), self.rewritten + self.appended, bytes);
        }
        self.appended += bytes.len() as u64;
        if self.appended > REWRITE_FROM.max(self.rewritten) {
            // If it fails, the next try comes when as much again is appended.
            self.rewritten += std::mem::take(&mut self.appended);
            let records = read(&self.directory)?;
            *self = Self::rewrite(&self.directory, &records, self.lock.try_clone()?, self.copy.clone())?;
        }
        Ok(())
    }
}

fn append_all(mut log: Log, changes: &Receiver<Command>) {
    let mut has_failed = false;
    while let Ok(Command::Write(change)) = changes.recv() {
        match log.append(&change) {
            Ok(()) => has_failed = false,
            // Once, until a change is stored again.
            Err(error) if !has_failed => {
                has_failed = true;
                tracing::error!(directory = %log.directory.display(), %error, "cannot store topic ids");
            }
            Err(_) => {}
        }
    }
}

/// Reads the last record of each client. Ends at the first damaged one.
fn read(directory: &Path) -> io::Result<Records> {
    let mut bytes: Bytes = match fs::read(directory.join(FILE)) {
        Ok(bytes) => bytes.into(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Records::new()),
        Err(error) => return Err(error),
    };
    let mut records = Records::new();
    while let Some((client_id, state)) = next(&mut bytes) {
        if state.is_empty() {
            records.remove(&client_id);
        } else {
            records.insert(client_id, state);
        }
    }
    if !bytes.is_empty() {
        tracing::warn!(directory = %directory.display(), bytes = bytes.len(), "dropped the damaged end of the stored topic ids");
    }
    Ok(records)
}

/// Splits off one record; leaves `bytes` unchanged if it is damaged.
fn next(bytes: &mut Bytes) -> Option<(String, Bytes)> {
    let mut rest = bytes.clone();
    let (length, crc) = (rest.try_get_u32().ok()? as usize, rest.try_get_u32().ok()?);
    let mut body = (rest.len() >= length).then(|| rest.split_to(length))?;
    if crc32c::crc32c(&body) != crc {
        return None;
    }
    let client_id = body.try_get_u16().ok()?.into();
    let client_id = (body.len() >= client_id).then(|| body.split_to(client_id))?;
    *bytes = rest;
    Some((String::from_utf8(client_id.into()).ok()?, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(records: &Records) -> Vec<(&str, &[u8])> {
        let mut all: Vec<_> = records.iter().map(|(id, state)| (id.as_str(), &state[..])).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn last_record_of_a_client_counts_and_a_torn_end_is_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let (writer, records) = Writer::open(directory.path(), None).expect("usable");
        assert!(records.is_empty());
        for change in [
            Change::put("a", b"1".to_vec()),
            Change::put("b", b"2".to_vec()),
            Change::put("a", b"3".to_vec()),
            Change::put("c", b"4".to_vec()),
            Change::forget("b"),
        ] {
            assert!(writer.write(change));
        }
        writer.finish();
        drop(writer);
        let mut bytes = fs::read(directory.path().join(FILE)).expect("the file");
        bytes.extend_from_slice(&Change::put("d", b"5".to_vec()).0[..9]);
        fs::write(directory.path().join(FILE), bytes).expect("writable");
        let (writer, records) = Writer::open(directory.path(), None).expect("usable");
        assert_eq!(states(&records), [("a", &b"3"[..]), ("c", b"4")]);
        let error = Writer::open(directory.path(), None).err().expect("it is locked").to_string();
        assert!(error.contains("another gateway uses it"), "{error}");
        writer.finish();
    }

    #[test]
    fn file_is_rewritten_when_most_of_it_is_obsolete() {
        let directory = tempfile::tempdir().expect("a directory");
        let (writer, _) = Writer::open(directory.path(), None).expect("usable");
        let state = vec![7; 64 << 10];
        for _ in 0..100 {
            writer.changes.send(Command::Write(Change::put("a", state.clone()))).expect("the thread runs");
        }
        writer.finish();
        let size = fs::metadata(directory.path().join(FILE)).expect("the file").len();
        assert!(size < 2 * REWRITE_FROM, "{size} bytes");
    }
}
