//! Simulated power cuts: copies the image of a mounted file system and mounts the copy.
//!
//! The copy lacks all data that the system has but was never asked to sync. Needs permission to mount.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenbin_store::state::{Change, Options, State, Table};
use tenbin_store::{LockedDirectory, Sync};

/// A disk in an image file.
struct Disk {
    directory: TempDir,
    image: PathBuf,
}

impl Disk {
    /// `None` if no disk can be made here.
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory for tests");
        let image = directory.path().join("image");
        fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("ours to write");
        run(Command::new("mkfs.ext4").arg("-q").arg(&image)).then_some(())?;
        Self { directory, image }.mounted()
    }

    fn mounted(self) -> Option<Self> {
        fs::create_dir_all(self.path()).expect("ours to write");
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(self.path())).then_some(self)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Returns the disk as after a power cut at this moment.
    fn cut(&self) -> Self {
        let directory = tempfile::tempdir().expect("a directory for tests");
        let image = directory.path().join("image");
        assert!(run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(&image)));
        Self { directory, image }.mounted().expect("what could be mounted before")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(self.path()));
    }
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn open(disk: &Disk, sync: Sync) -> (State, LockedDirectory) {
    let locked = LockedDirectory::open(&disk.path().join("data")).expect("nobody else's");
    let state = State::open(&locked, Options { sync, ..Options::default() }, |_| {}).expect("it opens after a cut");
    (state, locked)
}

fn rows(state: &State) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rows = BTreeMap::new();
    state.scan(Table::Retained, &mut |key, value| drop(rows.insert(key.to_vec(), value.to_vec()))).expect("it reads");
    rows
}

#[test]
fn sync_always_keeps_durable_changes_after_power_cut() {
    let Some(disk) = disk_or_skip() else { return };
    let (state, _locked) = open(&disk, Sync::Always);
    let mut model = BTreeMap::new();
    for cut in 0..4_u8 {
        for number in 0..20_u8 {
            let (key, value) = (vec![number % 7], vec![cut * 20 + number; 1 << (number % 15)]);
            let change = Change { table: Table::Retained, key: &key, value: Some(&value) };
            let ticket = state.change([change]);
            assert!(state.wait(ticket, Duration::from_secs(60)));
            model.insert(key, value);
        }
        let after = disk.cut();
        let (state, _locked) = open(&after, Sync::Always);
        assert!(rows(&state) == model, "cut {cut}");
    }
}

#[test]
fn sync_never_keeps_a_prefix_after_power_cut() {
    let Some(disk) = disk_or_skip() else { return };
    let (state, _locked) = open(&disk, Sync::Never);
    for number in 0..100_u8 {
        let change = Change { table: Table::Retained, key: &[number], value: Some(&[number; 5000]) };
        assert!(state.wait(state.change([change]), Duration::from_secs(60)));
    }
    let after = disk.cut();
    let (state, _locked) = open(&after, Sync::Never);
    let rows = rows(&state);
    assert!(rows.keys().zip(0..).all(|(key, number)| key == &[number]), "{:?}", rows.keys());
    // Otherwise the cut loses nothing, and the other test proves nothing.
    assert!(rows.len() < 100, "what was not confirmed is not on the disk");
}

/// The system has the changes, but the disk does not: later changes must not reach the disk first.
#[test]
fn changes_of_killed_process_are_synced_at_next_start() {
    let Some(disk) = disk_or_skip() else { return };
    // The space that a new journal reserves, and that the next opening frees, would hide the effect.
    drop(open(&disk, Sync::Never));
    let mut child = Command::new(std::env::current_exe().expect("a test"));
    child.args(["--ignored", "--exact", "a_process_that_is_killed"]).env(CHILD, disk.path());
    assert!(!run(&mut child), "it is killed");
    let (state, _locked) = open(&disk, Sync::Always);
    assert_eq!(rows(&state).len(), 100);
    let after = disk.cut();
    let (state, _locked) = open(&after, Sync::Always);
    assert_eq!(rows(&state).len(), 100);
}

#[test]
#[ignore = "another test's child"]
fn a_process_that_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let locked = LockedDirectory::open(&Path::new(&path).join("data")).expect("nobody else's");
    let options = Options { sync: Sync::Never, ..Options::default() };
    let state = State::open(&locked, options, |_| {}).expect("it opens");
    for number in 0..100_u8 {
        let change = Change { table: Table::Retained, key: &[number], value: Some(&[number; 5000]) };
        assert!(state.wait(state.change([change]), Duration::from_secs(60)));
    }
    std::process::abort();
}

const CHILD: &str = "TENBIN_POWER_CUT_CHILD";

fn disk_or_skip() -> Option<Disk> {
    let disk = Disk::new();
    if disk.is_none() {
        let must = std::env::var_os("CI").is_some() && std::env::var_os("TENBIN_NO_MOUNTS").is_none();
        assert!(!must, "no file system can be mounted here, and TENBIN_NO_MOUNTS is not set");
        let _ = writeln!(std::io::stderr(), "skipped: no file system can be mounted here");
    }
    disk
}
