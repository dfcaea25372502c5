//! The end of the warm-up.

use std::time::Duration;

use tenbin_loadgen::run::Status;

/// Seconds for which the load has to be steady.
const SECONDS: usize = 5;
/// Latencies below this are flat at any ratio.
const LOW: Duration = Duration::from_millis(5);
/// Greatest ratio of two p99 of a flat latency.
const RATIO: u64 = 2;

/// Looks at the load once a second.
#[derive(Debug, Default)]
pub(crate) struct Steady {
    /// The last seconds without overdue messages, each with its p99 in microseconds.
    p99_us: Vec<u64>,
    published: u64,
    /// Whether messages have due times, so that those without acknowledgement are overdue too.
    is_scheduled: bool,
}

impl Steady {
    pub(crate) fn new(is_scheduled: bool) -> Self {
        Self { is_scheduled, ..Self::default() }
    }

    /// Notes the progress at the end of a second; true if the load has been steady for 5 s: nothing is overdue, and the
    /// p99 is flat.
    pub(crate) fn look(&mut self, status: &Status) -> bool {
        let second = status.published.saturating_sub(self.published);
        self.published = status.published;
        let unanswered = if self.is_scheduled { status.in_flight } else { 0 };
        let overdue = status.expected.saturating_sub(status.received) + unanswered;
        // The messages of a tenth of a second are under way and not overdue.
        let is_calm = second > 0 && overdue <= (second / 10).max(10);
        if !is_calm {
            self.p99_us.clear();
            return false;
        }
        self.p99_us.push(status.p99_us.iter().copied().max().unwrap_or_default());
        let last = &self.p99_us[self.p99_us.len().saturating_sub(SECONDS)..];
        let (least, most) = (last.iter().min().copied().unwrap_or(0), last.iter().max().copied().unwrap_or(0));
        last.len() == SECONDS && (most <= LOW.as_micros() as u64 || most <= RATIO * least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at one second after another, each with a thousand messages.
    fn looks(seconds: &[(u64, u64)]) -> Vec<bool> {
        let mut steady = Steady::default();
        let look = |(place, &(overdue, p99_ms)): (usize, &(u64, u64))| {
            let published = 1000 * (place as u64 + 1);
            let p99_us = vec![0, p99_ms * 1000];
            let (expected, received) = (published, published - overdue);
            steady.look(&Status { published, expected, received, p99_us, ..Status::default() })
        };
        seconds.iter().enumerate().map(look).collect()
    }

    #[test]
    fn five_calm_seconds_end_the_warm_up() {
        assert_eq!(looks(&[(3, 1); 6]), [false, false, false, false, true, true]);
    }

    #[test]
    fn unanswered_messages_are_overdue_in_an_open_loop() {
        let is_steady = |is_scheduled| {
            let mut steady = Steady::new(is_scheduled);
            let status = |second: u64| {
                let messages = 1000 * second;
                Status {
                    published: messages,
                    expected: messages,
                    received: messages,
                    in_flight: 900,
                    ..Status::default()
                }
            };
            (1..10).any(|second| steady.look(&status(second)))
        };
        assert!(is_steady(false) && !is_steady(true));
    }

    #[test]
    fn overdue_messages_and_falling_latency_prolong_it() {
        let seconds = [(900, 90), (0, 80), (0, 60), (0, 30), (0, 25), (0, 24), (0, 23), (0, 22)];
        assert_eq!(looks(&seconds), [false, false, false, false, false, false, false, true]);
        assert!(!looks(&[(0, 1), (0, 1), (0, 1), (101, 1), (0, 1), (0, 1), (0, 1), (0, 1)]).contains(&true));
    }
}
