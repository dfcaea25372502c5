use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Behaviour after the loss of an established connection.
///
/// The first connection is attempted only once. If another client takes over the Session (0x8E), the client never
/// reconnects: the two would disconnect each other for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// The client ends: [`Events`](crate::Events) yields the remaining events, then `None`.
    Never,
    /// The client reconnects after a pause that doubles with each failure. Requests wait in the queue until then.
    ///
    /// Each pause is random between half and all of its length, so that many clients do not reconnect at once. A
    /// connection that lasted at least `most` resets the pauses.
    Backoff {
        /// First pause.
        first: Duration,
        /// Longest pause.
        most: Duration,
    },
}

impl Default for Reconnect {
    /// Pauses of 100 ms up to 10 s.
    fn default() -> Self {
        Self::Backoff { first: Duration::from_millis(100), most: Duration::from_secs(10) }
    }
}

/// Pauses of [`Reconnect::Backoff`], one after the other.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// `None` if the client does not reconnect.
    pub fn new(reconnect: Reconnect) -> Option<Self> {
        match reconnect {
            Reconnect::Never => None,
            Reconnect::Backoff { first, most } => {
                let most = most.max(PAUSE_MIN);
                let first = first.clamp(PAUSE_MIN, most);
                Some(Self { first, most, next: first })
            }
        }
    }

    /// Records that a connection was lost after this time.
    pub fn lost_after(&mut self, lasted: Duration) {
        if lasted >= self.most {
            self.next = self.first;
        }
    }

    /// Returns half to all of the present pause, at random, and doubles the next one.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = self.most.min(pause.saturating_mul(2));
        // The standard library's hash keys are its only source of randomness, which is good enough here.
        let random = f64::from(RandomState::new().hash_one(0_u8) as u32) / f64::from(u32::MAX);
        pause.mul_f64(0.5 + random / 2.0).min(self.most)
    }
}

/// Shortest pause, for a broker that refuses at once.
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
    fn extreme_pauses_are_clamped() {
        let mut backoff = Backoff::new(Reconnect::Backoff { first: Duration::MAX, most: Duration::ZERO }).unwrap();
        assert!(backoff.next_pause() <= PAUSE_MIN);
        assert!(Backoff::new(Reconnect::Never).is_none());
    }
}
