use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{BrokerProcess, PATIENCE};

/// An ext4 file system in a file.
///
/// Unsynced data are in the memory of the mounting system only. So a copy of the file is the disk after a power cut.
pub(crate) struct DiskImage {
    directory: TempDir,
}

impl DiskImage {
    /// Mounts an empty image. Returns `None` with a note if that is impossible: it needs root, loop devices and
    /// `mkfs.ext4`.
    pub(crate) fn mount_new() -> Option<Self> {
        let disk = Self { directory: temporary() };
        let file = fs::File::create(disk.file()).expect("the tests' directory is ours to write");
        file.set_len(BYTES).expect("a hole takes no room");
        let made = run("mkfs.ext4", ["-q", "-F", "-E", "lazy_itable_init=0"], &[&disk.file()]);
        if made && disk.mount() {
            return Some(disk);
        }
        let _ = writeln!(std::io::stderr(), "skipped: no image of a disk can be made and mounted here");
        None
    }

    /// Cuts the power under `broker`, whose data are here, and mounts the disk again.
    ///
    /// It stops the broker, copies the image, kills the broker, and mounts the copy, which the file system then
    /// repairs.
    pub(crate) fn cut_power(&mut self, mut broker: BrokerProcess) {
        stop(&broker);
        let copy = Self { directory: temporary() };
        assert!(run("cp", ["--sparse=always"], &[&self.file(), &copy.file()]), "the image is copied");
        broker.signal("KILL");
        broker.wait_for_exit(PATIENCE);
        *self = copy;
        assert!(self.mount(), "the copy is mounted");
    }

    fn mount(&self) -> bool {
        fs::create_dir(self.path()).expect("the tests' directory is ours to write");
        // Only a sync makes the file system write soon.
        run("mount", ["-o", "loop,commit=600"], &[&self.file(), &self.path()])
    }

    /// Mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("image")
    }
}

impl Drop for DiskImage {
    fn drop(&mut self) {
        if self.path().exists() {
            run("umount", [], &[&self.path()]);
        }
    }
}

/// Stops all threads of the broker. A thread that waits for the disk finishes its write first.
fn stop(broker: &BrokerProcess) {
    broker.signal("STOP");
    let until = Instant::now() + PATIENCE;
    while !has_stopped(broker.pid()) {
        assert!(Instant::now() < until, "the broker stops");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_stopped(pid: u32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a running process").map_while(Result::ok);
    threads.all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name, in brackets, may hold anything.
        stat.rsplit_once(')').is_none_or(|(_, state)| state.trim_start().starts_with('T'))
    })
}

fn temporary() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write")
}

fn run<const N: usize>(program: &str, arguments: [&str; N], paths: &[&Path]) -> bool {
    let paths = paths.iter().map(|path| path.as_os_str());
    let mut command = Command::new(program);
    command.args(arguments.map(OsStr::new).into_iter().chain(paths)).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

const BYTES: u64 = 512 << 20;
