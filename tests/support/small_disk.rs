//! A file system in memory of its own, which needs a system where one may be mounted.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// Of so many MiB; `None`: the test is skipped, which continuous integration has to ask for.
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

    /// Until nothing more goes in.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut filler = fs::File::create(&path).expect("an empty file takes no room");
        while filler.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
