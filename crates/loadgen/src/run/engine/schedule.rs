use std::time::Duration;

/// Due times of one publisher in an open loop.
///
/// They are fixed before the run, so that a stalled broker does not move them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    first_ns: u64,
    interval_ns: u64,
}

impl Schedule {
    /// The schedule of publisher `publisher` of `count`, which starts `publisher`·`interval`/`count` after `start_ns`.
    pub(super) fn new(start_ns: u64, interval: Duration, publisher: u32, count: u32) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let offset_ns = u128::from(interval_ns) * u128::from(publisher) / u128::from(count.max(1));
        Self { first_ns: start_ns.saturating_add(offset_ns as u64), interval_ns }
    }

    /// Due time of a message.
    pub(super) fn due_ns(&self, message: u64) -> u64 {
        self.first_ns.saturating_add(self.interval_ns.saturating_mul(message))
    }

    /// Number of messages due by `now_ns`.
    pub(super) fn due_by(&self, now_ns: u64) -> u64 {
        now_ns.checked_sub(self.first_ns).map_or(0, |since| since / self.interval_ns + 1)
    }

    /// Time from one message to the next.
    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_take_turns_within_an_interval() {
        let schedule = |publisher| Schedule::new(1_000_000, Duration::from_micros(100), publisher, 4);
        let due = |publisher, message| schedule(publisher).due_ns(message) - 1_000_000;
        assert_eq!([due(0, 0), due(1, 0), due(3, 0)], [0, 25_000, 75_000]);
        assert_eq!([due(0, 1), due(1, 10)], [100_000, 1_025_000]);
    }

    #[test]
    fn a_message_is_due_from_its_time_on() {
        let schedule = Schedule::new(1000, Duration::from_nanos(10), 0, 1);
        for message in 0..5 {
            assert_eq!(schedule.due_by(schedule.due_ns(message)), message + 1);
            assert_eq!(schedule.due_by(schedule.due_ns(message) - 1), message);
        }
        assert_eq!(schedule.due_by(0), 0);
    }

    #[test]
    fn schedule_at_end_of_time_range_does_not_overflow() {
        let schedule = Schedule::new(u64::MAX - 1, Duration::MAX, 7, 8);
        assert_eq!((schedule.due_ns(u64::MAX), schedule.due_by(u64::MAX - 2)), (u64::MAX, 0));
    }
}
