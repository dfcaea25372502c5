use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A data directory, locked for this process as long as this value lives.
///
/// The lock is an operating system lock on its file `lock`, which ends with the process in any case.
#[derive(Debug)]
pub struct LockedDirectory {
    path: PathBuf,
    _lock: File,
}

/// Why a data directory cannot be opened. The text is one line and names it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Another process uses it.
    #[error("data directory {0}: another process uses it")]
    InUse(PathBuf),
    /// It cannot be created, written or read.
    #[error("data directory {0}: {1}")]
    Io(PathBuf, #[source] io::Error),
}

impl LockedDirectory {
    /// Locks a data directory. Creates it if it does not exist, readable only by its owner.
    ///
    /// Waits up to two seconds for another owner: a killed process takes a moment to end.
    ///
    /// # Errors
    /// It is in use, or cannot be created or written.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |error| DirectoryError::Io(path.to_owned(), error);
        create(path).map_err(failed)?;
        let lock = private().create(true).truncate(false).write(true).open(path.join(LOCK));
        Self::lock(path, lock.map_err(failed)?, File::try_lock)
    }

    /// Locks an existing data directory for reading, and changes nothing.
    ///
    /// Other readers may use it too; writers are excluded. Waits like [`open`](Self::open).
    ///
    /// # Errors
    /// It is in use, does not exist, is no data directory, or cannot be read.
    pub fn open_to_read(path: &Path) -> Result<Self, DirectoryError> {
        let lock = fs::metadata(path).and_then(|_| match File::open(path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::new(error.kind(), "this is no data directory: there is no file \"lock\" in it"))
            }
            lock => lock,
        });
        let lock = lock.map_err(|error| DirectoryError::Io(path.to_owned(), error))?;
        Self::lock(path, lock, File::try_lock_shared)
    }

    fn lock(
        path: &Path,
        lock: File,
        try_lock: impl Fn(&File) -> Result<(), TryLockError>,
    ) -> Result<Self, DirectoryError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match try_lock(&lock) {
                Ok(()) => return Ok(Self { path: path.to_owned(), _lock: lock }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse(path.to_owned())),
                Err(TryLockError::Error(error)) => return Err(DirectoryError::Io(path.to_owned(), error)),
            }
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates the directory and its missing parents durably.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create(parent)?;
    }
    match create_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| sync_parent(path)),
    }
}

/// Creates a directory that only its owner may use: messages and Wills are private.
pub(crate) fn create_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Options for a file that only its owner may use, if it is created.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Replaces a file durably, and creates its missing directories.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        create(parent)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = private().create(true).truncate(true).write(true).open(&new)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_parent(path)
}

/// Makes created and removed names durable in the parent of `path`.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    #[cfg(test)]
    BEFORE_SYNC.with_borrow_mut(|look| look.iter_mut().for_each(|look| look()));
    if cfg!(unix) { File::open(parent)?.sync_all() } else { Ok(()) }
}

/// Bytes of disk that all files below a directory occupy. Files that vanish during the count do not count.
pub(crate) fn used_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes += used_bytes(&entry.path()).unwrap_or(0),
            #[cfg(unix)]
            Ok(metadata) => bytes += std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
            #[cfg(not(unix))]
            Ok(metadata) => bytes += metadata.len(),
            Err(_) => {}
        }
    }
    Ok(bytes)
}

const LOCK: &str = "lock";
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
thread_local! {
    /// Called before this thread syncs a directory.
    pub(crate) static BEFORE_SYNC: std::cell::RefCell<Option<Box<dyn FnMut()>>> = std::cell::RefCell::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_has_one_owner_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let owner = LockedDirectory::open(&path).unwrap();
        let refused = LockedDirectory::open(&path).unwrap_err();
        assert!(matches!(&refused, DirectoryError::InUse(refused) if *refused == path));
        assert!(refused.to_string().ends_with("a/b: another process uses it"), "{refused}");
        let leaves = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(owner);
        });
        assert_eq!(LockedDirectory::open(&path).unwrap().path(), path, "who goes is waited for");
        leaves.join().unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn new_directory_is_private_to_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let _owner = LockedDirectory::open(&path).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn reader_of_directory_creates_nothing_and_excludes_writers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        for wanted in ["No such file or directory", "this is no data directory"] {
            let refused = LockedDirectory::open_to_read(&path).unwrap_err().to_string();
            assert!(refused.contains(wanted) && refused.lines().count() == 1, "{refused}");
            let _ = fs::create_dir(&path);
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(LockedDirectory::open(&path).unwrap());
        let readers = [0, 1].map(|_| LockedDirectory::open_to_read(&path).unwrap());
        assert!(matches!(LockedDirectory::open(&path), Err(DirectoryError::InUse(_))));
        drop(readers);
        let _owner = LockedDirectory::open(&path).unwrap();
        assert!(matches!(LockedDirectory::open_to_read(&path), Err(DirectoryError::InUse(_))));
    }

    #[test]
    fn failed_directory_creation_names_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = LockedDirectory::open(&file.join("below")).unwrap_err().to_string();
        assert!(refused.contains("file/below: ") && refused.lines().count() == 1, "{refused}");
    }
}
