//! How much of the machine's processors is left.

use std::fs::File;
use std::io::Read;

/// The time for which the machine's processors had nothing to do, as the kernel counts it (Linux).
#[derive(Debug, Default)]
pub(super) struct IdleTime {
    /// Of all processors since the start, at the last question.
    before: Option<u64>,
}

impl IdleTime {
    /// Processors that had nothing to do, on average over the `seconds` since the last question. Whether a broker in a
    /// container may use them is another matter. 0 the first time; where the kernel does not tell, as many as one may want.
    pub(super) fn processors(&mut self, seconds: f64) -> f64 {
        let Some(now) = read() else { return f64::from(u16::MAX) };
        let before = self.before.replace(now).unwrap_or(now);
        now.saturating_sub(before) as f64 / TICKS_A_SECOND / seconds
    }
}

/// Ticks of all processors, waiting for a disk included.
fn read() -> Option<u64> {
    // Its first line is the sum; what follows is longer the more processors there are.
    let mut start = [0; 256];
    let length = File::open("/proc/stat").ok()?.read(&mut start).ok()?;
    idle_of(std::str::from_utf8(&start[..length]).ok()?)
}

/// `cpu  user nice system idle iowait irq …`
fn idle_of(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// The unit of the kernel's counts for programs, on every machine that it runs on today.
const TICKS_A_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_no_process_used() {
        assert_eq!(idle_of("cpu  10 20 30 4000 50 60 70 0 0 0\ncpu0 1 2 3 4 5\n"), Some(4050));
        for wrong in ["", "cpu0 1 2 3 4 5", "cpu  1 2 3", "cpu  1 2 3 x 5"] {
            assert_eq!(idle_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_is_counted_from_question_to_question() {
        let mut idle = IdleTime::default();
        let first = idle.processors(1.0);
        assert!(first == 0.0 || read().is_none(), "{first}");
        idle.before = idle.before.map(|before| before.saturating_sub(250));
        assert!(idle.processors(1.0) >= 2.5);
    }
}
