use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Lets a subscriber read no more than so many messages a second, a few at a time: what it has not read stays in its
/// socket, so that the broker sees what it sees of every client that does not keep up.
#[derive(Debug)]
pub(super) struct ReadPace {
    /// Time that a message has.
    each: Duration,
    next: Pin<Box<Sleep>>,
}

impl ReadPace {
    /// Bytes that such a subscriber reads at once.
    pub(super) const READ: usize = 1024;

    /// It may read at once.
    pub(super) fn new(messages_per_second: f64) -> Self {
        // Less than one message in a year is none.
        let each = Duration::try_from_secs_f64(messages_per_second.recip()).unwrap_or(YEAR).min(YEAR);
        Self { each, next: Box::pin(sleep_until(Instant::now())) }
    }

    /// Whether it may read now; else the task is woken when it may.
    pub(super) fn is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.next.as_mut().poll(cx).is_ready()
    }

    /// It has read so many messages: the next ones have to wait until the time of these is over.
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

    /// Waits until it may read.
    async fn due(pace: &mut ReadPace) {
        poll_fn(|cx| if pace.is_due(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    #[tokio::test]
    async fn what_was_read_has_its_time_before_more_is_read() {
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
