//! Processes as `/proc` shows them: descendants, and their use of processor, memory and disk.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Use of processor, memory and disk by some processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time since the processes' starts, in steps of 10 ms. It includes children that have ended.
    pub processor: Duration,
    /// Resident memory. Pages that processes share count for each of them.
    pub resident_bytes: u64,
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks. A filesystem in memory is none.
    pub written_bytes: u64,
}

impl Usage {
    /// Usage of a process and its descendants; `None` if there is no such process.
    #[must_use]
    pub fn of_tree(root: u32) -> Option<Self> {
        let mut all = descendants(root);
        all.insert(root);
        fs::exists(format!("/proc/{root}")).unwrap_or_default().then(|| Self::of(all))
    }

    /// Usage of these processes. One that has ended in the meantime counts nothing.
    pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let (ticks, pages) = ticks_and_pages(&file("stat")).unwrap_or_default();
            sum.processor += Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
            sum.resident_bytes += pages * rustix::param::page_size() as u64;
            let io = file("io");
            let bytes = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
            sum.read_bytes += bytes("read_bytes:").unwrap_or_default();
            sum.written_bytes += bytes("write_bytes:").unwrap_or_default();
        }
        sum
    }
}

/// Descendants of a process that are alive. The process must be a subreaper or the first of its PID namespace. Then
/// descendants stay descendants, even after their parents' end and in another session.
pub(crate) fn descendants(root: u32) -> BTreeSet<u32> {
    let mut children = HashMap::<u32, Vec<(u32, bool)>>::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let Some((state, parent)) = stat.as_deref().and_then(state_and_parent) else { continue };
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

/// Fields of `/proc/PID/stat` from the third on. The name before them may contain anything, also brackets.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

fn state_and_parent(stat: &str) -> Option<(char, u32)> {
    let mut fields = fields(stat)?;
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Ticks of processor time (fields 14 to 17, with those of ended children) and resident pages (field 24).
fn ticks_and_pages(stat: &str) -> Option<(u64, u64)> {
    let fields = fields(stat)?.collect::<Vec<_>>();
    let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().unwrap_or_default()).sum();
    Some((ticks, fields.get(21)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_and_memory_are_read_behind_any_name() {
        let stat =
            "42 (a b) c) S 7 42 42 0 -1 4194560 900 0 3 0 150 25 10 5 20 0 3 0 12345 1000000 250 18446744073709551615";
        assert_eq!((state_and_parent(stat), ticks_and_pages(stat)), (Some(('S', 7)), Some((190, 250))));
        assert_eq!((state_and_parent("42 (a"), ticks_and_pages("42 (a) S 1")), (None, None));
    }

    #[test]
    fn tree_of_this_process_uses_memory() {
        let usage = Usage::of_tree(std::process::id()).expect("this process");
        assert!(usage.resident_bytes > 100_000, "{usage:?}");
        assert_eq!(Usage::of_tree(u32::MAX), None);
    }
}
