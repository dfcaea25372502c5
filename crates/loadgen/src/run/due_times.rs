use std::sync::Arc;
use std::time::Duration;

use tenbin_simulator::{Arrivals, Rng};

use super::{Pace, Plan};

/// Due times of one publisher in an open loop.
///
/// They are fixed before the run, so that a stalled broker does not move them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueTimes {
    first_ns: u64,
    interval_ns: u64,
    /// Due times after `first_ns`, if they are a scenario's.
    instants: Option<Arc<[u64]>>,
}

impl DueTimes {
    /// The due times of `publisher`, not started yet; `None` if messages are not due at fixed times.
    pub fn of(plan: &Plan, publisher: u32) -> Option<Self> {
        match plan.publishers.pace {
            Pace::Open { interval } => Some(Self::every(interval, publisher, plan.publishers.count)),
            Pace::Arrivals { arrivals, seed } => {
                // The plan is checked: it has a number of messages.
                Some(Self::at_arrivals(arrivals, plan.publishers.messages.unwrap_or(0), seed))
            }
            Pace::Closed { .. } | Pace::Unlimited => None,
        }
    }

    /// The schedule of publisher `publisher` of `count`, which starts `publisher`·`interval`/`count` after the start.
    fn every(interval: Duration, publisher: u32, count: u32) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let offset_ns = u128::from(interval_ns) * u128::from(publisher) / u128::from(count.max(1));
        Self { first_ns: offset_ns as u64, interval_ns, instants: None }
    }

    /// The schedule of `messages` messages that arrive at a scenario's times.
    fn at_arrivals(arrivals: Arrivals, messages: u64, seed: u64) -> Self {
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        let instants = arrivals.instants(messages, &mut Rng::new(seed));
        Self { first_ns: 0, interval_ns: 0, instants: Some(instants.into()) }
    }

    /// Sets the start of the run.
    pub fn start(&mut self, start_ns: u64) {
        self.first_ns = self.first_ns.saturating_add(start_ns);
    }

    /// Due time of a message.
    pub fn due_ns(&self, message: u64) -> u64 {
        let after_ns = match &self.instants {
            Some(instants) => instants.get(message as usize).copied().unwrap_or(u64::MAX),
            None => self.interval_ns.saturating_mul(message),
        };
        self.first_ns.saturating_add(after_ns)
    }

    /// Number of messages due by `now_ns`.
    pub fn due_by(&self, now_ns: u64) -> u64 {
        let Some(since_ns) = now_ns.checked_sub(self.first_ns) else { return 0 };
        match &self.instants {
            Some(instants) => instants.partition_point(|after_ns| *after_ns <= since_ns) as u64,
            None => since_ns / self.interval_ns + 1,
        }
    }

    /// Whether latency counts from the creation of a message.
    pub fn counts_from_creation(&self) -> bool {
        self.instants.is_some()
    }

    /// Time from one message to the next; 0 for a scenario's times.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenbin_simulator::Span;

    use super::*;

    fn started(mut schedule: DueTimes, start_ns: u64) -> DueTimes {
        schedule.start(start_ns);
        schedule
    }

    #[test]
    fn messages_of_a_scenario_are_due_without_drift() {
        let every = Arrivals::Fixed(Span::from_ns(10_700_000));
        let schedule = started(DueTimes::at_arrivals(every, 1500, 0), 5);
        assert_eq!([0, 1, 1499].map(|message| schedule.due_ns(message) - 5), [0, 10_700_000, 16_039_300_000]);
        assert_eq!((schedule.due_ns(1500), schedule.due_by(u64::MAX)), (u64::MAX, 1500));

        let bursts = Arrivals::Bursts { messages: NonZeroU32::new(3).unwrap(), every: Span::from_ms(2.0) };
        let schedule = DueTimes::at_arrivals(bursts, 7, 0);
        let due: Vec<_> = (0..7).map(|message| schedule.due_ns(message)).collect();
        assert_eq!(due, [0, 0, 0, 2_000_000, 2_000_000, 2_000_000, 4_000_000]);
        assert_eq!([0, 1_999_999, 4_000_000].map(|now_ns| schedule.due_by(now_ns)), [3, 3, 7]);
    }

    #[test]
    fn publishers_take_turns_within_an_interval() {
        let schedule = |publisher| started(DueTimes::every(Duration::from_micros(100), publisher, 4), 1_000_000);
        let due = |publisher, message| schedule(publisher).due_ns(message) - 1_000_000;
        assert_eq!([due(0, 0), due(1, 0), due(3, 0)], [0, 25_000, 75_000]);
        assert_eq!([due(0, 1), due(1, 10)], [100_000, 1_025_000]);
    }

    #[test]
    fn a_message_is_due_from_its_time_on() {
        let arrivals = Arrivals::Poisson(Span::from_ns(10));
        for schedule in [DueTimes::every(Duration::from_nanos(10), 0, 1), DueTimes::at_arrivals(arrivals, 5, 7)] {
            let schedule = started(schedule, 1000);
            for message in 0..5 {
                assert_eq!(schedule.due_by(schedule.due_ns(message)), message + 1);
                assert_eq!(schedule.due_by(schedule.due_ns(message) - 1), message);
            }
            assert_eq!(schedule.due_by(0), 0);
        }
    }

    #[test]
    fn schedule_at_end_of_time_range_does_not_overflow() {
        let schedule = started(DueTimes::every(Duration::MAX, 7, 8), u64::MAX - 1);
        assert_eq!((schedule.due_ns(u64::MAX), schedule.due_by(u64::MAX - 2)), (u64::MAX, 0));
    }
}
