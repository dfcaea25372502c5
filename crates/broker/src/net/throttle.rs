use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::Sleep;

use crate::values::{Rate, TokenBucket};

/// Limits a client's PUBLISH rate by not reading from it: no message is lost, its socket fills up.
///
/// Input that was read but not decoded waits too. A pause lasts at most a second, and packets are accepted in between.
/// So Keep Alive does not expire for a client that waits for the broker.
#[derive(Debug)]
pub(super) struct Throttle(
    /// `None`: no limit.
    Option<Box<Limited>>,
);

#[derive(Debug)]
struct Limited {
    rate: Rate,
    bucket: TokenBucket,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Result of [`Throttle::poll`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Throttled {
    /// Not throttled.
    No,
    /// A pause has ended: decode the input read before.
    Resumed,
    /// Throttled; the task will be woken.
    Yes,
}

impl Throttle {
    pub(super) fn new(rate: Option<Rate>, now: Instant) -> Self {
        Self(rate.map(|rate| Box::new(Limited { rate, bucket: TokenBucket::full(now), pause: None })))
    }

    /// Counts a PUBLISH; returns whether a pause begins.
    #[inline]
    pub(super) fn count(&mut self, now: Instant) -> bool {
        self.0.as_mut().is_some_and(|limited| limited.count(now))
    }

    /// Moves its timer to the current runtime.
    pub(super) fn migrated(&mut self) {
        if let Some(pause) = self.0.as_mut().and_then(|limited| limited.pause.as_mut()) {
            *pause = Box::pin(tokio::time::sleep_until(pause.deadline()));
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.0.as_ref().is_some_and(|limited| limited.pause.is_some())
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Throttled {
        let Some(limited) = &mut self.0 else { return Throttled::No };
        let Some(pause) = &mut limited.pause else { return Throttled::No };
        match pause.as_mut().poll(context) {
            Poll::Pending => Throttled::Yes,
            Poll::Ready(()) => {
                limited.pause = None;
                Throttled::Resumed
            }
        }
    }
}

impl Limited {
    #[inline(never)] // so that the common case only checks for a limit
    fn count(&mut self, now: Instant) -> bool {
        let Some(at) = self.bucket.take(self.rate, now) else { return false };
        self.pause = Some(Box::pin(tokio::time::sleep_until(at.into())));
        true
    }
}
