//! Signals to a process with all of its descendants.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};

use crate::error::Error;

/// Longest time that killed processes may take to disappear.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

/// Sends a signal to the processes that `list` finds, again until a look finds no new one.
pub(super) fn signal(list: impl Fn() -> BTreeSet<u32>, signal: rustix::process::Signal) {
    let mut done = BTreeSet::new();
    loop {
        let new = list().difference(&done).copied().collect::<Vec<_>>();
        if new.is_empty() {
            return;
        }
        new.iter().for_each(|pid| send(*pid, signal));
        done.extend(new);
    }
}

/// Kills the processes that `list` finds, until it finds none.
pub(super) fn kill(list: impl Fn() -> BTreeSet<u32>) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive = list();
        if alive.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::Failed(format!("processes {alive:?} are alive {PATIENCE:?} after SIGKILL")));
        }
        alive.into_iter().for_each(|pid| send(pid, rustix::process::Signal::KILL));
        thread::sleep(PAUSE);
    }
}

/// A process that has ended in the meantime gets no signal.
pub(super) fn send(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
