//! What the system says that a process has used.

use std::fs;

/// Processor time and memory of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Usage {
    /// User and system time of all threads, in seconds, in steps of 10 ms.
    pub(super) cpu_seconds: f64,
    /// Memory that is resident, in KiB.
    pub(super) resident_kib: u64,
}

impl Usage {
    /// Of process `pid`; `None` where there is no such process, or no `/proc`.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Self { cpu_seconds: cpu_ticks(&stat)? as f64 / TICKS_PER_SECOND, resident_kib: resident_kib(&status)? })
    }
}

/// utime + stime, fields 14 and 15. The program's name, field 2, stands in parentheses and may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// USER_HZ, which Linux shows to programs as 100 whatever its own timer does.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_sum_of_fields_14_and_15() {
        let stat =
            "42 (a b) c) S 1 42 42 0 -1 4194560 900 0 3 0 150 25 0 0 20 0 3 0 12345 1000000 250 18446744073709551615";
        assert_eq!(cpu_ticks(stat), Some(175));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_kib() {
        assert_eq!(resident_kib("Name:\ta\nVmHWM:\t 9999 kB\nVmRSS:\t    5120 kB\n"), Some(5120));
        assert_eq!(resident_kib("Name:\ta\n"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.resident_kib > 0 && usage.cpu_seconds >= 0.0);
        assert_eq!(Usage::of(u32::MAX), None);
    }
}
