//! The directory of a spool, as a trait: tests replace it by one that fails on demand.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::directory;

/// A directory of files.
pub(crate) trait Disk: Send + Sync {
    /// Returns the names of all its files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates a file, or truncates an existing one.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file, and replaces one that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Whether a backup reads a file: it may be removed, but not used for other content.
    fn is_pinned(&self, _name: &str) -> bool {
        false
    }
    /// Makes created, renamed and removed names durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Returns the available bytes and the size of the file system; `None` if the system does not report them.
    fn space(&self) -> Option<(u64, u64)>;
    /// Returns the bytes of disk that all its files occupy.
    fn used(&self) -> io::Result<u64>;
    /// Returns the path of a file, for errors.
    fn path(&self, name: &str) -> PathBuf;
}

/// A file of a [`Disk`].
pub(crate) trait DiskFile: Send + Sync {
    /// Reads at an offset. Returns fewer bytes than requested only at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at an offset. May write fewer bytes than given, but at least one.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    fn sync(&self) -> io::Result<()>;
    /// Returns once the writes so far survive the end of the process.
    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
    /// Allocates space for `length` bytes from the beginning, and extends the file to it.
    fn allocate(&self, length: u64) -> io::Result<()>;
    fn truncate(&self, length: u64) -> io::Result<()>;
    fn length(&self) -> io::Result<u64>;
}

/// Writes all bytes.
pub(crate) fn write_all(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// A directory of the file system.
pub(crate) struct Directory {
    path: PathBuf,
    /// Held as long as the directory is open for writing.
    _lock: Option<File>,
}

/// Why a directory cannot be opened.
pub(crate) enum NoDirectory {
    InUse,
    Io(io::Error),
}

impl Directory {
    /// Opens a directory for writing, for one process at a time. Creates it if it does not exist.
    pub(crate) fn locked(path: &Path) -> Result<Self, NoDirectory> {
        directory::create(path).map_err(NoDirectory::Io)?;
        let lock = directory::private().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = lock.map_err(NoDirectory::Io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(fs::TryLockError::WouldBlock) => Err(NoDirectory::InUse),
            Err(fs::TryLockError::Error(error)) => Err(NoDirectory::Io(error)),
        }
    }

    /// Opens a directory for reading, without a lock.
    pub(crate) fn to_read(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }
}

const LOCK: &str = "lock";

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = directory::private();
        options.create(true).truncate(true).read(true).write(true);
        Ok(Box::new(options.open(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let options = OpenOptions::new().read(true).write(self._lock.is_some()).open(self.path(name))?;
        Ok(Box::new(options))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        sync_directory(&self.path)
    }

    fn space(&self) -> Option<(u64, u64)> {
        let system = rustix::fs::statvfs(&self.path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
        Some((bytes(system.f_bavail), bytes(system.f_blocks)))
    }

    fn used(&self) -> io::Result<u64> {
        directory::used_bytes(&self.path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl DiskFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match FileExt::read_at(self, &mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::write_at(self, bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match preallocate(self, length) {
            // Not every file system supports it. Then a full disk shows only at a write.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                if DiskFile::length(self)? < length {
                    self.set_len(length)
                } else {
                    Ok(())
                }
            }
            result => result,
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(target_os = "linux")]
fn preallocate(file: &File, length: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length)?)
}

#[cfg(not(target_os = "linux"))]
fn preallocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
