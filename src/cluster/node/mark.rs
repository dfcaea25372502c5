//! Files of a node in its data directory: the mark, the lock, and directories that were set aside.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tenbin_cluster::StoredMark;
use tenbin_kit::files::{self, Replacing};

/// The node's data directory. One process at a time has it.
#[derive(Debug)]
pub(super) struct NodeDirectory {
    path: PathBuf,
    _lock: File,
}

impl NodeDirectory {
    /// Takes the directory. Creates it if it does not exist.
    ///
    /// # Errors
    /// Another process has it, or it cannot be used. The text names it.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("data directory {}: {error}", path.display());
        fs::create_dir_all(path).map_err(failed)?;
        let lock = files::private().create(true).truncate(false).write(true).open(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(format!("data directory {}: another node of a cluster uses it", path.display()))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn mark(&self) -> PathBuf {
        self.path.join(MARK)
    }

    /// Reads the mark; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged. The text names it.
    pub(super) fn read_mark(&self) -> Result<Option<StoredMark>, String> {
        let path = self.mark();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Replaces the mark durably.
    pub(super) fn write_mark(&self, mark: &StoredMark) -> io::Result<()> {
        let mut text = serde_json::to_vec(mark)?;
        text.push(b'\n');
        Replacing::begin(&self.mark())?.write(&text)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Moves the store into a directory beside it, and returns its path. The node begins with an empty store.
    pub(super) fn set_aside(&self, epoch: u64, keeps_mark: bool) -> io::Result<PathBuf> {
        let aside = (0..).map(|number: u32| self.path.join(format!("aside-{epoch}-{number}")));
        let aside = aside.into_iter().find(|path| !path.exists()).expect("numbers do not end");
        fs::create_dir(&aside)?;
        // The mark first: without it the node never leads with what is left.
        let mark = self.mark();
        if !keeps_mark && mark.exists() {
            fs::rename(mark, aside.join(MARK))?;
            self.sync()?;
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_kept = [LOCK, super::super::control::SOCKET].iter().any(|kept| name == *kept)
                || name.as_encoded_bytes().starts_with(b"aside-")
                || keeps_mark && name == MARK;
            if !is_kept {
                fs::rename(entry.path(), aside.join(name))?;
            }
        }
        self.sync()?;
        Ok(aside)
    }

    /// Syncs everything that was written to the directory's file system.
    ///
    /// The state and the log may be on other file systems.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        for path in [self.path.clone(), self.path.join("state"), self.path.join("spool")] {
            match File::open(path) {
                Ok(directory) => rustix::fs::syncfs(directory)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The kernel's number of this boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

const LOCK: &str = "cluster.lock";
const MARK: &str = "cluster.json";

#[cfg(test)]
mod tests {
    use tenbin_cluster::StoredRecord;

    use super::*;

    #[test]
    fn mark_survives_and_belongs_to_one_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("data");
        let node = NodeDirectory::open(&path).expect("a directory");
        assert!(NodeDirectory::open(&path).expect_err("it is in use").contains("another node"));
        assert_eq!(node.read_mark(), Ok(None));
        let record = StoredRecord { epoch: 3, leader: "a".into(), follower: None, joiner: None, nonce: 4 };
        let mark = StoredMark { cluster: "c".into(), node: "a".into(), record, boot_id: boot_id().expect("Linux") };
        node.write_mark(&mark).expect("a mark");
        assert_eq!(node.read_mark(), Ok(Some(mark)));
        fs::write(path.join(MARK), "{").expect("written");
        assert!(node.read_mark().expect_err("damaged").contains(MARK));
        node.sync_all().expect("synced");
    }

    #[test]
    fn store_that_is_set_aside_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let node = NodeDirectory::open(directory.path()).expect("a directory");
        for _ in 0..2 {
            fs::create_dir(directory.path().join("spool")).expect("a directory");
            fs::write(directory.path().join("spool/file"), "content").expect("written");
            let aside = node.set_aside(7, false).expect("moved");
            assert_eq!(fs::read_to_string(aside.join("spool/file")).expect("kept"), "content");
            assert!(!directory.path().join("spool").exists());
        }
        assert!(directory.path().join(LOCK).exists());
    }
}
