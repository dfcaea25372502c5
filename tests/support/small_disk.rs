//! A file system in memory, which needs permission to mount.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::PATIENCE;

pub(crate) struct SmallDisk(TempDir);

/// A file that takes all room of a disk, also room that is given back later. Removed on drop.
pub(crate) struct Filler {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SmallDisk {
    /// Mounts a disk of `mebibytes` MiB. Returns `None` to skip the test, which continuous integration must request.
    pub(crate) fn mount(mebibytes: usize) -> Option<Self> {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(directory.path())
            .stderr(Stdio::null());
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(directory));
        }
        let must = std::env::var_os("CI").is_some() && std::env::var_os("TENBIN_NO_MOUNTS").is_none();
        assert!(!must, "no file system can be mounted here, and TENBIN_NO_MOUNTS is not set");
        let _ = writeln!(std::io::stderr(), "skipped: no file system can be mounted here");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The data directory of a broker on this disk.
    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Fills the disk while a broker uses [`SmallDisk::data`].
    ///
    /// The broker allocates files of its log ahead of time, in the background. An allocation that fails on a full disk
    /// gives its room back, so this waits until the broker has made them.
    pub(crate) fn fill(&self) -> Filler {
        let until = Instant::now() + PATIENCE;
        while !self.has_spare() {
            assert!(Instant::now() < until, "the broker makes no files of its log ahead");
            std::thread::sleep(Duration::from_millis(2));
        }
        Filler::new(self.path().join("filler"))
    }

    /// True if the last file that the broker allocates ahead exists and has its room.
    fn has_spare(&self) -> bool {
        let entries = fs::read_dir(self.data().join("spool")).into_iter().flatten().map_while(Result::ok);
        let mut spares = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "spare"));
        spares.any(|spare| spare.metadata().is_ok_and(|file| file.len() > 0 && file.blocks() * 512 >= file.len()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

impl Filler {
    fn new(path: PathBuf) -> Self {
        let mut file = fs::File::create(&path).expect("an empty file takes no room");
        fill(&mut file);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_set = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !is_set.load(Ordering::Relaxed) {
                fill(&mut file);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { path, is_over, thread: Some(thread) }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let is_joined = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        let is_gone = fs::remove_file(&self.path).is_ok();
        assert!(is_joined && is_gone || std::thread::panicking(), "the filler is gone");
    }
}

/// Writes until not even a page fits.
fn fill(file: &mut fs::File) {
    for bytes in [1 << 20, 4096] {
        let chunk = vec![1; bytes];
        while file.write_all(&chunk).is_ok() {}
    }
}
