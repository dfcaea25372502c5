use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::run::Slow;

/// Limits how many messages a second a subscriber reads.
///
/// It reads a few messages at a time. Unread bytes stay in its socket, so that the broker sees a slow client.
#[derive(Debug)]
pub(super) struct ReadPace {
    /// Time per message.
    each: Duration,
    /// Beginning and end of the limit; `None` for always and for never.
    from: Option<Instant>,
    until: Option<Instant>,
    next: Pin<Box<Sleep>>,
}

impl ReadPace {
    /// A limit that allows the first read at once, in a run that begins at `start`.
    pub(super) fn new(slow: &Slow, start: Instant) -> Self {
        // Below one message a year the rate counts as zero.
        let each = Duration::try_from_secs_f64(slow.rate.recip()).unwrap_or(YEAR).min(YEAR);
        let from = (!slow.from.is_zero()).then(|| start + slow.from);
        let until = slow.until.map(|until| start + until);
        Self { each, from, until, next: Box::pin(sleep_until(Instant::now())) }
    }

    /// Maximum number of bytes per read: `most` without a limit.
    pub(super) fn room(&self, most: usize) -> usize {
        if self.is_limited(Instant::now()) { READ.min(most) } else { most }
    }

    /// Whether a read is allowed now; if not, the task is woken when it is.
    pub(super) fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.next.as_mut().poll(cx).is_ready()
    }

    /// Counts `messages` messages: the next read waits until their time has passed.
    pub(super) fn took(&mut self, messages: u64) {
        let now = Instant::now();
        if messages > 0 && self.is_limited(now) {
            let time = self.each.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX)).min(YEAR);
            let next = now + time;
            self.next.as_mut().reset(self.until.map_or(next, |until| next.min(until)));
        }
    }

    fn is_limited(&self, now: Instant) -> bool {
        self.from.is_none_or(|from| now >= from) && self.until.is_none_or(|until| now < until)
    }
}

/// Maximum number of bytes per read under the limit.
const READ: usize = 1024;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    /// Waits until a read is allowed.
    async fn due(pace: &mut ReadPace) {
        poll_fn(|cx| if pace.is_due(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    #[tokio::test]
    async fn next_read_waits_for_the_time_of_read_messages() {
        let begun = std::time::Instant::now();
        let mut pace = ReadPace::new(&Slow::last_member(200.0), Instant::now());
        due(&mut pace).await;
        for messages in [3, 0, 5] {
            pace.took(messages);
            due(&mut pace).await;
        }
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        for rate in [1e-300, 0.0] {
            let mut never = ReadPace::new(&Slow::last_member(rate), Instant::now());
            never.took(u64::MAX);
            assert!(!never.is_due(&mut Context::from_waker(std::task::Waker::noop())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limit_lasts_from_its_beginning_to_its_end() {
        let (from, until) = (Duration::from_millis(20), Duration::from_millis(50));
        let (slow, start) = (Slow { members: 1, rate: 0.0, from, until: Some(until) }, Instant::now());
        let mut pace = ReadPace::new(&slow, start);
        pace.took(1);
        assert_eq!(pace.room(9999), 9999);
        due(&mut pace).await;
        sleep_until(start + from).await;
        pace.took(1);
        assert_eq!(pace.room(9999), READ);
        due(&mut pace).await;
        assert!(start.elapsed() >= until && pace.room(9999) == 9999);
    }
}
