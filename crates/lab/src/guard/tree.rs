//! Signals to a process with all of its descendants.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};

use crate::error::Error;

/// Longest time that killed processes may take to disappear.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

/// Descendants of a process that are alive, by `/proc`. The process must be a subreaper or the first of its PID
/// namespace: then a descendant stays one, even after its parents' end and with a session of its own.
pub(super) fn descendants(root: u32) -> BTreeSet<u32> {
    let mut children = HashMap::<u32, Vec<(u32, bool)>>::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let Some((state, parent)) = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(parsed) else {
            continue;
        };
        children.entry(parent).or_default().push((pid, !matches!(state, 'Z' | 'X')));
    }
    let (mut found, mut open) = (BTreeSet::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for (pid, is_alive) in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            if is_alive {
                found.insert(pid);
            }
        }
    }
    found
}

/// State and parent from `/proc/PID/stat`. The name before them may contain anything, also brackets.
fn parsed(stat: String) -> Option<(char, u32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

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
