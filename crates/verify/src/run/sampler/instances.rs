//! Processor time, memory and disk traffic of all instances and clients, second by second.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use crate::results::{InstanceSample, MACHINE};
use crate::runtime::Usage;

/// Usage at the last look.
#[derive(Debug, Default)]
pub(super) struct Instances {
    before: HashMap<String, Usage>,
    has_begun: bool,
}

/// Processes whose usage is known, and the number of processors that they may use.
#[derive(Debug, Clone)]
pub(super) struct Used {
    pub(super) name: String,
    pub(super) processors: u32,
    pub(super) usage: Usage,
}

impl Instances {
    /// Rows of the time since the last look. The first look only remembers the usage.
    pub(super) fn look(&mut self, second: u64, interval: Duration, all: Vec<Used>) -> Vec<InstanceSample> {
        let mut rows = Vec::new();
        // One that was away begins anew.
        self.before.retain(|name, _| all.iter().any(|used| used.name == *name));
        for Used { name, processors, usage } in all {
            let before = self.before.insert(name.clone(), usage).unwrap_or_default();
            let cpu = usage.processor.saturating_sub(before.processor).as_secs_f64() / interval.as_secs_f64().max(1e-3);
            rows.push(InstanceSample {
                second,
                name,
                cpu: super::rounded(cpu),
                processors,
                resident_bytes: usage.resident_bytes,
                read_bytes: usage.read_bytes.saturating_sub(before.read_bytes),
                written_bytes: usage.written_bytes.saturating_sub(before.written_bytes),
            });
        }
        if std::mem::replace(&mut self.has_begun, true) { rows } else { Vec::new() }
    }
}

/// Usage of the machine with all its processes; `None` without `/proc`. Its disk traffic is not known.
pub(super) fn machine() -> Option<Used> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (busy, processors) = busy(&stat)?;
    let kib = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let used = kib("MemTotal:").zip(kib("MemAvailable:")).map_or(0, |(total, free)| total.saturating_sub(free));
    let usage = Usage { processor: busy, resident_bytes: used * 1024, ..Usage::default() };
    Some(Used { name: MACHINE.to_owned(), processors, usage })
}

/// Time in which processors were busy, from `/proc/stat`, and their number. Time that a host took away is busy too.
fn busy(stat: &str) -> Option<(Duration, u32)> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks = ticks.map(|ticks| ticks.parse().unwrap_or_default()).collect::<Vec<u64>>();
    let [user, nice, system, _idle, _waiting, rest @ ..] = &ticks[..] else { return None };
    // The last two of the list are parts of the first two.
    let busy = user + nice + system + rest.iter().take(3).sum::<u64>();
    let processors = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    Some((Duration::from_millis(busy * 1000 / TICKS_PER_SECOND), processors as u32))
}

/// USER_HZ, which Linux reports to programs as 100 for any kernel timer frequency.
const TICKS_PER_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn used(name: &str, ms: u64, written_bytes: u64) -> Used {
        let usage = Usage { processor: Duration::from_millis(ms), resident_bytes: 7, read_bytes: 0, written_bytes };
        Used { name: name.to_owned(), processors: 2, usage }
    }

    #[test]
    fn rows_are_differences_by_the_time_between_looks() {
        let mut instances = Instances::default();
        let second = Duration::from_secs(1);
        assert_eq!(instances.look(0, second, vec![used("a", 500, 100)]), []);
        let rows = instances.look(0, 2 * second, vec![used("a", 1500, 300), used("b", 200, 5)]);
        let short = |row: &InstanceSample| (row.name.clone(), row.cpu, row.written_bytes);
        assert_eq!(rows.iter().map(short).collect::<Vec<_>>(), [("a".into(), 0.5, 200), ("b".into(), 0.1, 5)]);
        // Killed and started again: its counters begin at zero.
        assert_eq!(instances.look(1, second, vec![used("b", 200, 5)]).len(), 1);
        let rows = instances.look(2, second, vec![used("a", 250, 1), used("b", 200, 5)]);
        assert_eq!(rows.iter().map(short).collect::<Vec<_>>(), [("a".into(), 0.25, 1), ("b".into(), 0.0, 0)]);
    }

    #[test]
    fn idle_time_and_waits_for_disks_are_not_busy() {
        let stat = "cpu  100 20 30 9999 888 4 5 6 70 8\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        assert_eq!(busy(stat), Some((Duration::from_millis(1650), 2)));
        assert_eq!(busy("cpu  1 2\n"), None);
    }
}
