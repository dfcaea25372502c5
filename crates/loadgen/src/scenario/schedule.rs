use std::sync::Arc;
use std::time::Duration;

use tenbin_simulator::{Arrivals, Rng};

/// An open loop: each message is due at a fixed time after the start, however late an earlier one was. None is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// In nanoseconds after the start, ascending.
    due_ns: Arc<[u64]>,
    duration: Duration,
}

impl Schedule {
    /// Schedule of `messages` messages of `arrivals`; the same `seed` yields the same times.
    pub fn new(arrivals: Arrivals, messages: u32, seed: u64) -> Self {
        let due_ns: Arc<[u64]> = arrivals.instants(messages, &mut Rng::new(seed)).into();
        let last_ns = due_ns.last().copied().unwrap_or(0);
        Self { due_ns, duration: Duration::from_nanos(last_ns) + interval(arrivals) }
    }

    /// Number of messages due within `duration`, the first at its start; at least one.
    pub fn messages_in(duration: Duration, arrivals: Arrivals) -> u64 {
        let times = duration.as_nanos().div_ceil(interval(arrivals).as_nanos().max(1));
        let together = if let Arrivals::Bursts { messages, .. } = arrivals { messages.get() } else { 1 };
        u64::try_from(times).unwrap_or(u64::MAX).max(1).saturating_mul(u64::from(together))
    }

    /// Number of messages.
    pub fn messages(&self) -> u64 {
        self.due_ns.len() as u64
    }

    /// Due time of each message, in nanoseconds after the start.
    pub fn due_ns(&self) -> &[u64] {
        &self.due_ns
    }

    /// Time from the first message until one more would be due.
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// Time from one message or burst to the next; for random arrivals the mean.
fn interval(arrivals: Arrivals) -> Duration {
    match arrivals {
        Arrivals::Fixed(every) | Arrivals::Poisson(every) | Arrivals::Bursts { every, .. } => every.duration(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tenbin_simulator::Span;

    use super::*;

    fn every(interval_us: u64) -> Arrivals {
        Arrivals::Fixed(Span::from_ns(interval_us * 1000))
    }

    #[test]
    fn messages_are_due_at_multiples_of_the_interval_without_drift() {
        let schedule = Schedule::new(every(10_700), 1500, 0);
        assert_eq!(schedule.messages(), 1500);
        let due_ns = schedule.due_ns();
        assert_eq!((due_ns[0], due_ns[1], due_ns[1499]), (0, 10_700_000, 16_039_300_000));
        assert_eq!(schedule.duration(), Duration::from_millis(16_050));
    }

    #[test]
    fn a_burst_is_due_at_one_instant() {
        let bursts = Arrivals::Bursts { messages: NonZeroU32::new(3).unwrap(), every: Span::from_ms(2.0) };
        let schedule = Schedule::new(bursts, 7, 0);
        assert_eq!(schedule.due_ns(), [0, 0, 0, 2_000_000, 2_000_000, 2_000_000, 4_000_000]);
        assert_eq!(schedule.duration(), Duration::from_millis(6));
        assert_eq!(Schedule::messages_in(Duration::from_millis(5), bursts), 9);
    }

    #[test]
    fn random_messages_are_the_same_for_the_same_seed() {
        let schedule = |seed| Schedule::new(Arrivals::Poisson(Span::from_ms(10.0)), 1000, seed);
        assert_eq!(schedule(1), schedule(1));
        assert_ne!(schedule(1), schedule(2));
        assert!(schedule(1).due_ns().is_sorted());
    }

    #[test]
    fn a_duration_holds_what_is_due_before_its_end() {
        let messages =
            |duration, interval_us| Schedule::messages_in(Duration::from_millis(duration), every(interval_us));
        assert_eq!(messages(15_000, 10_000), 1500);
        assert_eq!(messages(15_000, 10_700), 1402); // the last at 14,990.7 ms
        assert_eq!(messages(1, 10_000), 1);
    }
}
