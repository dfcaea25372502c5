use std::time::Duration;

/// An open loop: message n is due at start + n × interval, however late an earlier one was. None is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Time from one message to the next.
    pub interval: Duration,
    /// Number of messages.
    pub messages: u64,
}

impl Schedule {
    /// How many messages are due within `duration`, the first of them at its start; at least one.
    pub fn messages_in(duration: Duration, interval: Duration) -> u64 {
        let messages = duration.as_nanos().div_ceil(interval.as_nanos().max(1));
        u64::try_from(messages).unwrap_or(u64::MAX).max(1)
    }

    /// When message `sequence` is due, in nanoseconds after the start.
    pub fn due_ns(&self, sequence: u64) -> u64 {
        let due = self.interval.as_nanos() * u128::from(sequence);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// From the first message to the moment that one more would be due.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.due_ns(self.messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_multiples_of_the_interval_without_drift() {
        let schedule = Schedule { interval: Duration::from_micros(10_700), messages: 1500 };
        assert_eq!(schedule.due_ns(0), 0);
        assert_eq!(schedule.due_ns(1), 10_700_000);
        assert_eq!(schedule.due_ns(1499), 16_039_300_000);
        assert_eq!(schedule.duration(), Duration::from_millis(16_050));
    }

    #[test]
    fn a_duration_holds_what_is_due_before_its_end() {
        let messages = |duration, interval| {
            Schedule::messages_in(Duration::from_millis(duration), Duration::from_micros(interval))
        };
        assert_eq!(messages(15_000, 10_000), 1500);
        assert_eq!(messages(15_000, 10_700), 1402); // the last at 14,990.7 ms
        assert_eq!(messages(1, 10_000), 1);
    }

    #[test]
    fn a_schedule_beyond_the_clock_ends_at_its_end() {
        let schedule = Schedule { interval: Duration::from_secs(24 * 60 * 60), messages: u64::MAX };
        assert_eq!(schedule.due_ns(u64::MAX), u64::MAX);
    }
}
