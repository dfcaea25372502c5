use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Limits how many messages a second a subscriber reads.
///
/// It reads a few messages at a time. Unread bytes stay in its socket, so that the broker sees a slow client.
#[derive(Debug)]
pub(super) struct ReadPace {
    /// Time per message.
    each: Duration,
    next: Pin<Box<Sleep>>,
}

impl ReadPace {
    /// Maximum number of bytes per read of such a subscriber.
    pub(super) const READ: usize = 1024;

    /// A limit that allows the first read at once.
    pub(super) fn new(messages_per_second: f64) -> Self {
        // Below one message a year the rate counts as zero.
        let each = Duration::try_from_secs_f64(messages_per_second.recip()).unwrap_or(YEAR).min(YEAR);
        Self { each, next: Box::pin(sleep_until(Instant::now())) }
    }

    /// Whether a read is allowed now; if not, the task is woken when it is.
    pub(super) fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.next.as_mut().poll(cx).is_ready()
    }

    /// Counts `messages` messages: the next read waits until their time has passed.
    pub(super) fn took(&mut self, messages: u64) {
        if messages > 0 {
            let time = self.each.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX)).min(YEAR);
            self.next.as_mut().reset(Instant::now() + time);
        }
    }
}

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
        let mut pace = ReadPace::new(200.0);
        due(&mut pace).await;
        for messages in [3, 0, 5] {
            pace.took(messages);
            due(&mut pace).await;
        }
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let mut never = ReadPace::new(1e-300);
        never.took(u64::MAX);
        assert!(!never.is_due(&mut Context::from_waker(std::task::Waker::noop())));
    }
}
