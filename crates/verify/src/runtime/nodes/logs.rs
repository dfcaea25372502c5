//! Logs of a node's processes, which follow to the controller as they grow.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

/// Bytes of one line to the controller.
const CHUNK: u64 = 48 << 10;

/// Logs by the controller's numbers.
#[derive(Debug)]
pub(super) struct Logs {
    directory: PathBuf,
    /// Bytes that the controller has of each.
    sent: Mutex<Vec<u64>>,
}

impl Logs {
    /// Logs in a directory, which must exist.
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), sent: Mutex::default() }
    }

    /// File of a log.
    pub(super) fn path(&self, log: usize) -> PathBuf {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() <= log {
            sent.resize(log + 1, 0);
        }
        self.file(log)
    }

    fn file(&self, log: usize) -> PathBuf {
        self.directory.join(format!("{log}.log"))
    }

    /// Hands over the parts of all logs that are new since the last call.
    pub(super) fn flush(&self, mut send: impl FnMut(usize, &[u8])) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        for (log, sent) in sent.iter_mut().enumerate() {
            let path = self.file(log);
            let Ok(length) = fs::metadata(&path).map(|file| file.len()) else { continue };
            while *sent < length {
                let Ok(bytes) = read(&path, *sent, CHUNK.min(length - *sent)) else { break };
                if bytes.is_empty() {
                    break;
                }
                *sent += bytes.len() as u64;
                send(log, &bytes);
            }
        }
    }
}

/// Reads at most `most` bytes of a file, which is no link.
pub(super) fn read(path: &Path, from: u64, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits();
    let mut file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn each_byte_is_sent_once() {
        let directory = tempfile::tempdir().unwrap();
        let logs = Logs::new(directory.path());
        let (empty, path) = (logs.path(0), logs.path(2));
        assert_ne!(empty, path);
        let mut file = File::create(&path).unwrap();
        let mut received = Vec::new();
        let mut wanted = Vec::new();
        for part in [10, 3 * CHUNK as usize, 0, 7] {
            let bytes = vec![part as u8; part];
            file.write_all(&bytes).unwrap();
            wanted.extend(bytes);
            logs.flush(|log, bytes| {
                assert_eq!(log, 2);
                received.extend_from_slice(bytes);
            });
            assert_eq!(received, wanted);
        }
    }
}
