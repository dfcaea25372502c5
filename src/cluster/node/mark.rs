//! Files of a node in its data directory: the mark, the lock, and directories that were set aside.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tenbin_admin::client::{TOKEN_FILE, URL_FILE};
use tenbin_cluster::{Mark, MarkError, Names, StoredMark};
use tenbin_kit::files::{self, Replacing};

/// The node's data directory. One process at a time has it.
#[derive(Debug)]
pub(super) struct NodeDirectory {
    path: PathBuf,
    lock: File,
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
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => {
                Err(format!("data directory {}: another node of a cluster uses it", path.display()))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Number of the directory, which outlives the process. The file of the lock keeps it.
    ///
    /// A directory without a number gets `of_mark`, or a random one if that is 0.
    ///
    /// # Errors
    /// The file cannot be read or written. A number that cannot be read is kept.
    pub(super) fn number(&self, of_mark: u64) -> io::Result<u64> {
        let kept = match fs::read(self.path.join(LOCK)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            read => read.ok().and_then(|text| String::from_utf8(text).ok()),
        };
        if let Some(number) = kept.and_then(|text| text.strip_suffix('\n')?.parse().ok()).filter(|number| *number != 0)
        {
            return Ok(number);
        }
        let number = if of_mark == 0 { random() } else { of_mark };
        self.lock.set_len(0)?;
        self.lock.write_all_at(format!("{number}\n").as_bytes(), 0)?;
        // Before a record names it.
        self.lock.sync_all()?;
        self.sync()?;
        Ok(number)
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
    pub(super) fn set_aside(&self, epoch: u64) -> io::Result<PathBuf> {
        let aside = (0..).map(|number: u32| self.path.join(format!("aside-{epoch}-{number}")));
        let aside = aside.into_iter().find(|path| !path.exists()).expect("numbers do not end");
        fs::create_dir(&aside)?;
        // The mark first: without it the node never leads with the remaining files.
        let mark = self.mark();
        if mark.exists() {
            fs::rename(mark, aside.join(MARK))?;
            self.sync()?;
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_kept = [LOCK, super::super::control::SOCKET, TOKEN_FILE, URL_FILE].iter().any(|kept| name == *kept)
                || name.as_encoded_bytes().starts_with(b"aside-");
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

/// The mark, as the machine of a node needs it.
///
/// # Errors
/// The store belongs to another cluster or node. The text names the key.
pub(super) fn of_node(
    mark: &StoredMark,
    directory: &Path,
    (cluster, node): (&str, &str),
    boot_id: &str,
    names: &mut Names,
) -> Result<Mark, String> {
    let directory = directory.display();
    let other = "use another store.directory";
    mark.mark(cluster, node, boot_id, names).map_err(|error| match error {
        MarkError::Cluster(its) => {
            format!("cluster: name: {cluster:?}, but the store in {directory} belongs to cluster {its:?}: {other}")
        }
        MarkError::Node(its) => {
            format!("cluster: node: {node:?}, but the store in {directory} belongs to node {its:?}: {other}")
        }
        MarkError::Names(error) => format!("cluster: nodes: {error}"),
    })
}

/// Checks that a data directory, if it has a mark, belongs to a node of a cluster. Returns a warning if it cannot be read by
/// this user.
///
/// # Errors
/// As of [`of_node`], or the mark is damaged.
pub(crate) fn check_directory(directory: &Path, cluster: &str, node: &str) -> Result<Option<String>, String> {
    let path = directory.join(MARK);
    match fs::read(&path) {
        Ok(text) => {
            let mark: StoredMark =
                serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            of_node(&mark, directory, (cluster, node), "", &mut Names::default()).map(|_| None)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(Some(format!("{} was not read: {error}", path.display())))
        }
        // There is no directory yet, or another check tells what is wrong with it.
        Err(_) => Ok(None),
    }
}

/// Takes a data directory out of its cluster, for a broker without one: no other copy has the messages that this broker
/// acknowledges. A node with this directory then sets its store aside, and does not overwrite it.
///
/// # Errors
/// A node uses the directory, or it cannot be written.
pub(crate) fn leave_cluster(directory: &Path) -> io::Result<()> {
    let mark = directory.join(MARK);
    if directory.as_os_str().is_empty() || !mark.try_exists()? {
        return Ok(());
    }
    let node = NodeDirectory::open(directory).map_err(io::Error::other)?;
    fs::rename(&mark, directory.join(MARK_LEFT))?;
    node.sync()?;
    tracing::warn!(
        directory = %directory.display(),
        "this broker runs without a cluster in the directory of a node: the directory has left its cluster"
    );
    Ok(())
}

/// A number that no other process or directory has. It is not 0.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one((SystemTime::now(), std::process::id())).max(1)
}

/// The kernel's number of this boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

const LOCK: &str = "cluster.lock";
const MARK: &str = "cluster.json";
const MARK_LEFT: &str = "cluster.json.left";

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
        let record = StoredRecord { epoch: 3, leader: "a".into(), nonce: 4, ..StoredRecord::default() };
        let mark = StoredMark { cluster: "c".into(), node: "a".into(), record, boot_id: boot_id().expect("Linux") };
        node.write_mark(&mark).expect("a mark");
        assert_eq!(node.read_mark(), Ok(Some(mark)));
        fs::write(path.join(MARK), "{").expect("written");
        assert!(node.read_mark().expect_err("damaged").contains(MARK));
        node.sync_all().expect("synced");
    }

    #[test]
    fn directory_keeps_its_number() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || NodeDirectory::open(directory.path()).expect("a directory");
        let number = open().number(0).expect("a number");
        assert_eq!(open().number(0).expect("a number"), number);
        assert_eq!(open().number(7).expect("a number"), number);
        let node = open();
        node.set_aside(7).expect("moved");
        assert_eq!(node.number(0).expect("a number"), number);
        drop(node);
        // An operator has deleted it, or its write was cut: the mark tells it.
        for text in [&b""[..], b"12", b"x\n", b"\xff\n"] {
            fs::write(directory.path().join(LOCK), text).expect("written");
            assert_eq!(open().number(7).expect("a number"), 7);
        }
        // A failed read tells of no number, and changes none.
        let node = open();
        fs::remove_file(directory.path().join(LOCK)).expect("removed");
        fs::create_dir(directory.path().join(LOCK)).expect("a directory");
        assert!(node.number(7).is_err());
        let other = tempfile::tempdir().expect("a directory");
        assert_ne!(NodeDirectory::open(other.path()).expect("a directory").number(0).expect("a number"), number);
    }

    #[test]
    fn store_of_another_cluster_or_node_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let check = |cluster: &str, node: &str| check_directory(path, cluster, node);
        assert_eq!(check("c", "a"), Ok(None), "without a mark");
        assert_eq!(check_directory(&path.join("missing"), "c", "a"), Ok(None));
        let record = StoredRecord { epoch: 3, leader: "a".into(), nonce: 4, ..StoredRecord::default() };
        let mark = StoredMark { cluster: "c".into(), node: "a".into(), record, boot_id: String::new() };
        NodeDirectory::open(path).expect("a directory").write_mark(&mark).expect("a mark");
        assert_eq!(check("c", "a"), Ok(None));
        let (name, node) = (check("d", "a").expect_err("another"), check("c", "b").expect_err("another"));
        assert!(name.starts_with("cluster: name: \"d\"") && name.contains("belongs to cluster \"c\""), "{name}");
        assert!(node.starts_with("cluster: node: \"b\"") && node.contains("belongs to node \"a\""), "{node}");
        assert!(name.contains(&path.display().to_string()), "{name}");
        fs::write(path.join(MARK), "{").expect("written");
        assert!(check("c", "a").expect_err("damaged").contains(MARK));
    }

    #[test]
    fn store_that_is_set_aside_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let node = NodeDirectory::open(directory.path()).expect("a directory");
        for _ in 0..2 {
            fs::create_dir(directory.path().join("spool")).expect("a directory");
            fs::write(directory.path().join("spool/file"), "content").expect("written");
            let aside = node.set_aside(7).expect("moved");
            assert_eq!(fs::read_to_string(aside.join("spool/file")).expect("kept"), "content");
            assert!(!directory.path().join("spool").exists());
        }
        assert!(directory.path().join(LOCK).exists());
    }
}
