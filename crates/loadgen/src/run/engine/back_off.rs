use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use crate::run::OnLost;

/// Pauses of a client between its attempts to reconnect.
///
/// With [`OnLost::Reconnect`] a pause doubles with each failure, and is random between half and all of its length. A
/// connection that lasted at least the longest pause begins anew. Else pauses are all alike.
#[derive(Debug)]
pub(super) struct BackOff {
    on_lost: OnLost,
    next: Cell<Duration>,
    connected: Cell<Instant>,
}

impl BackOff {
    /// The pauses of a client that has connected at `now`.
    pub(super) fn new(on_lost: OnLost, now: Instant) -> Self {
        let next = match on_lost {
            OnLost::Reconnect { first, .. } => first,
            OnLost::Fail => PAUSE,
        };
        Self { on_lost, next: Cell::new(next), connected: Cell::new(now) }
    }

    /// The client has connected again.
    pub(super) fn connected(&self, now: Instant) {
        self.connected.set(now);
    }

    /// Pause after the loss of a connection.
    pub(super) fn pause_after_loss(&self, now: Instant, random: u64) -> Duration {
        let OnLost::Reconnect { first, most } = self.on_lost else { return Duration::ZERO };
        if now.saturating_duration_since(self.connected.get()) >= most {
            self.next.set(first);
        }
        self.next_pause(random)
    }

    /// Pause after a failed attempt.
    pub(super) fn next_pause(&self, random: u64) -> Duration {
        let pause = self.next.get();
        let OnLost::Reconnect { most, .. } = self.on_lost else { return pause };
        self.next.set((pause * 2).min(most));
        pause / 2 + (pause / 2).mul_f64(random as f64 / u64::MAX as f64)
    }
}

/// Pause between two attempts after a cut.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let [first, most] = [100, 350].map(Duration::from_millis);
        let begun = Instant::now();
        let back_off = BackOff::new(OnLost::Reconnect { first, most }, begun);
        let next = |random| back_off.next_pause(random).as_millis();
        assert_eq!([next(u64::MAX), next(u64::MAX), next(u64::MAX), next(u64::MAX)], [100, 200, 350, 350]);
        assert_eq!(next(0), 175, "half of it");
        back_off.connected(begun);
        let pause = |now| back_off.pause_after_loss(now, u64::MAX).as_millis();
        assert_eq!(pause(begun + first), 350, "it did not last");
        assert_eq!(pause(begun + most), 100);
    }

    #[test]
    fn cut_clients_come_back_at_once_and_then_regularly() {
        let now = Instant::now();
        let back_off = BackOff::new(OnLost::Fail, now);
        assert_eq!((back_off.pause_after_loss(now, 7), back_off.next_pause(7)), (Duration::ZERO, PAUSE));
    }
}
