use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// What a client does when it loses a connection that it had.
///
/// The first connection is always tried once only. A client whose Session another one has taken over (0x8E)
/// never comes back by itself: the two would throw each other out for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// It ends: [`Events`](crate::Events) gives the rest, then `None`.
    Never,
    /// It tries again after a pause that doubles with each failure and varies by a random half, so that many
    /// clients do not come back at once. Requests wait in the queue meanwhile. The pauses start anew after a
    /// connection that lasted at least `most`.
    Backoff {
        /// First pause.
        first: Duration,
        /// Longest pause.
        most: Duration,
    },
}

impl Default for Reconnect {
    /// 100 ms up to 10 s.
    fn default() -> Self {
        Self::Backoff { first: Duration::from_millis(100), most: Duration::from_secs(10) }
    }
}

/// The pauses of one outage.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// `None`: no second connection.
    pub(crate) fn new(reconnect: Reconnect) -> Option<Self> {
        match reconnect {
            Reconnect::Never => None,
            Reconnect::Backoff { first, most } => {
                let most = most.max(PAUSE_MIN);
                let first = first.clamp(PAUSE_MIN, most);
                Some(Self { first, most, next: first })
            }
        }
    }

    /// A connection is lost that lasted so long.
    pub(crate) fn lost_after(&mut self, lasted: Duration) {
        if lasted >= self.most {
            self.next = self.first;
        }
    }

    /// Half of the pause that is due up to all of it, and doubles the next one.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.most.min(pause.saturating_mul(2));
        // The standard library's hash keys are its one source of randomness; it need not be a good one here.
        let random = f64::from(RandomState::new().hash_one(0_u8) as u32) / f64::from(u32::MAX);
        pause.mul_f64(0.5 + random / 2.0).min(self.most)
    }
}

/// A broker that refuses at once is not asked more often than this.
const PAUSE_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_vary_by_half() {
        let (first, most) = (Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = Backoff::new(Reconnect::Backoff { first, most }).unwrap();
        for full in [100, 200, 350, 350] {
            let full = Duration::from_millis(full);
            let pause = backoff.next_pause();
            assert!((full / 2..=full).contains(&pause), "{pause:?} of {full:?}");
        }
        backoff.lost_after(Duration::from_millis(349));
        assert!(backoff.next_pause() > first);
        backoff.lost_after(most);
        assert!(backoff.next_pause() <= first);
    }

    #[test]
    fn absurd_pauses_are_made_sound() {
        let mut backoff = Backoff::new(Reconnect::Backoff { first: Duration::MAX, most: Duration::ZERO }).unwrap();
        assert!(backoff.next_pause() <= PAUSE_MIN);
        assert!(Backoff::new(Reconnect::Never).is_none());
    }
}
