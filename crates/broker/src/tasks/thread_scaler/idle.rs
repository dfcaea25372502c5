//! Idle processor time of the whole machine.

use std::fs::File;
use std::io::Read;

/// Time that the machine's processors were idle or ran low-priority (`nice`) processes, from the Linux kernel's
/// counters.
#[derive(Debug, Default)]
pub(super) struct IdleTime {
    /// Ticks of all processors since boot, at the last call.
    before: Option<u64>,
}

impl IdleTime {
    /// Average number of idle processors of the machine over the `seconds` since the last call.
    ///
    /// Returns 0 the first time, and `u16::MAX` where the kernel has no counters. In a container the number may be
    /// wrong: its share of the machine can be smaller or larger.
    pub(super) fn processors(&mut self, seconds: f64) -> f64 {
        let Some(now) = read() else { return f64::from(u16::MAX) };
        let before = self.before.replace(now).unwrap_or(now);
        now.saturating_sub(before) as f64 / TICKS_A_SECOND / seconds
    }

    /// Makes the next call count as the first one.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }
}

/// Reads the idle ticks of all processors, waiting for disks included.
fn read() -> Option<u64> {
    // The first line is the sum over all processors; the rest grows with their number.
    let mut start = [0; 256];
    let length = File::open("/proc/stat").ok()?.read(&mut start).ok()?;
    idle_of(std::str::from_utf8(&start[..length]).ok()?)
}

/// Parses `cpu  user nice system idle iowait irq …`. `None` if all are 0: some emulated kernels do not count.
fn idle_of(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let [_user, nice, _system, idle, waiting] = [next()?, next()?, next()?, next()?, next()?];
    Some(nice + idle + waiting).filter(|&ticks| ticks > 0)
}

/// Kernel tick rate as user space sees it (`USER_HZ`), 100 on every platform today.
const TICKS_A_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_includes_nice_and_disk_wait() {
        assert_eq!(idle_of("cpu  10 20 30 4000 50 60 70 0 0 0\ncpu0 1 2 3 4 5\n"), Some(4070));
        for wrong in ["", "cpu0 1 2 3 4 5", "cpu  1 2 3", "cpu  1 2 3 x 5", "cpu  0 0 0 0 0 0 0"] {
            assert_eq!(idle_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn idle_time_is_counted_between_calls() {
        let mut idle = IdleTime::default();
        let first = idle.processors(1.0);
        assert_eq!(first == 0.0, read().is_some());
        idle.before = idle.before.map(|before| before - before.min(250));
        assert!(idle.processors(1.0) >= 2.5 || read() < Some(250));
        idle.forget();
        assert_eq!(idle.processors(1.0), first);
    }
}
