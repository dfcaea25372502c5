//! The first start in a directory: killed at any step, it leaves a directory that the next start accepts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::random::{announced_seed, rounds_or};
use crate::support::{DataDirectory, Dice, PATIENCE};

/// Default; `TENBIN_ROUNDS` overrides it.
const ROUNDS: usize = 24;
/// Entries of a directory after a first start, about.
const STEPS: usize = 24;

#[test]
fn first_start_killed_at_any_step_leaves_a_usable_directory() {
    let mut random = Dice::new(announced_seed(), 0);
    for round in 0..rounds_or(ROUNDS) {
        let stage = DataDirectory::new();
        for _ in 0..1 + random.within(0..2) {
            let pause = Duration::from_micros(random.within(0..3000));
            kill_at(stage.path(), 1 + round % STEPS, pause);
        }
        stage.start().assert_serves();
        stage.start().assert_serves();
        assert!(!stage.path().join("state.new").exists(), "round {round}: a part is left");
    }
}

/// Starts a broker, and kills it a moment after the directory has this number of entries at all depths.
fn kill_at(directory: &Path, entries: usize, pause: Duration) {
    let mut broker = Command::new(env!("CARGO_BIN_EXE_tenbin"))
        .args(["broker", "--listen", "127.0.0.1:0", "--data"])
        .arg(directory)
        .env("TENBIN_ADMIN__ADDRESS", "")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the built command can be started");
    let until = Instant::now() + PATIENCE;
    // The first segment of the log is one of the last files, so this ends.
    while count(directory) < entries && !directory.join("spool/0000000001.log").exists() {
        assert!(Instant::now() < until, "{} of {entries} entries", count(directory));
        assert_eq!(broker.try_wait().expect("our own child"), None, "it has ended by itself");
    }
    std::thread::sleep(pause);
    broker.kill().and_then(|()| broker.wait()).expect("our own child");
}

fn count(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let all = entries.flatten().map(|entry| 1 + if entry.path().is_dir() { count(&entry.path()) } else { 0 });
    all.sum()
}
