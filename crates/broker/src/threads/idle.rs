//! How much of the machine's processors is left.

use std::fs::File;
use std::io::Read;

/// The time for which the machine's processors had nothing better to do, as the kernel counts it (Linux): nothing at all, or
/// the work of processes that have asked to be nobody's hindrance (`nice`).
#[derive(Debug, Default)]
pub(super) struct IdleTime {
    /// Of all processors since the start, at the last question.
    before: Option<u64>,
}

impl IdleTime {
    /// Processors that were left, on average over the `seconds` since the last question: of the machine. A container may
    /// have less of them, or a right to more than what is left. 0 the first time; where the kernel does not tell, as many as
    /// one may want.
    pub(super) fn processors(&mut self, seconds: f64) -> f64 {
        let Some(now) = read() else { return f64::from(u16::MAX) };
        let before = self.before.replace(now).unwrap_or(now);
        now.saturating_sub(before) as f64 / TICKS_A_SECOND / seconds
    }

    /// The next question is the first one.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }
}

/// Ticks of all processors, waiting for a disk included.
fn read() -> Option<u64> {
    // Its first line is the sum; what follows is longer the more processors there are.
    let mut start = [0; 256];
    let length = File::open("/proc/stat").ok()?.read(&mut start).ok()?;
    idle_of(std::str::from_utf8(&start[..length]).ok()?)
}

/// `cpu  user nice system idle iowait irq …`. All are 0 where a kernel's stand-in does not count.
fn idle_of(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let [_user, nice, _system, idle, waiting] = [next()?, next()?, next()?, next()?, next()?];
    Some(nice + idle + waiting).filter(|&ticks| ticks > 0)
}

/// The unit of the kernel's counts for programs, on every machine that it runs on today.
const TICKS_A_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_no_process_used_that_is_not_nice() {
        assert_eq!(idle_of("cpu  10 20 30 4000 50 60 70 0 0 0\ncpu0 1 2 3 4 5\n"), Some(4070));
        for wrong in ["", "cpu0 1 2 3 4 5", "cpu  1 2 3", "cpu  1 2 3 x 5", "cpu  0 0 0 0 0 0 0"] {
            assert_eq!(idle_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_is_counted_from_question_to_question() {
        let mut idle = IdleTime::default();
        let first = idle.processors(1.0);
        assert_eq!(first == 0.0, read().is_some());
        idle.before = idle.before.map(|before| before - before.min(250));
        assert!(idle.processors(1.0) >= 2.5 || read() < Some(250));
        idle.forget();
        assert_eq!(idle.processors(1.0), first);
    }
}
