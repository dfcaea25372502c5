//! Work stealing from a busy client: offers its blocked shared messages to other members at intervals.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::outbox::{NumberSpan, Outbox};

/// Schedule of these offers. Costs nothing while queued messages can be sent.
#[derive(Debug, Default)]
pub(super) struct WorkStealing(
    /// Present once messages were blocked for the first time.
    Option<Box<Lookout>>,
);

#[derive(Debug, Default)]
struct Lookout {
    /// Reused by the next watch.
    timer: Option<Pin<Box<Sleep>>>,
    watch: Option<Watch>,
}

/// Observation of a queue that does not drain.
#[derive(Debug)]
struct Watch {
    /// Queued messages at the last look.
    line: NumberSpan,
    /// When the current oldest message was first seen as such.
    since: Instant,
    /// Time until the next look.
    pause: Duration,
}

impl WorkStealing {
    /// Drops the timer after a migration, as the next one must belong to the new runtime.
    pub(super) fn forget_timer(&mut self) {
        if let Some(lookout) = &mut self.0 {
            lookout.timer = None;
        }
    }

    /// Returns for how long no message was taken, if it is time to offer queued messages to others.
    #[inline(always)]
    pub(super) fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Option<Duration> {
        if outbox.keeps_back() {
            return self.0.get_or_insert_default().poll(context, outbox);
        }
        if let Some(lookout) = &mut self.0 {
            lookout.watch = None;
        }
        None
    }
}

impl Lookout {
    /// Like [`WorkStealing::poll`], while messages are blocked.
    #[inline(never)]
    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Option<Duration> {
        if self.watch.is_some() && self.is_too_early(context) {
            return None;
        }
        let before = self.watch.take();
        let line = outbox.line()?;
        let now = Instant::now();
        let watch = before.as_ref().map_or(Watch { line, since: now, pause: PAUSE_MIN }, |last| last.next(line, now));
        self.set_timer(context, now + watch.pause);
        let stalled_for = now.saturating_duration_since(watch.since);
        self.watch = Some(watch);
        before.filter(|last| last.shows_waiting(line)).map(|_| stalled_for)
    }

    fn is_too_early(&mut self, context: &mut Context<'_>) -> bool {
        self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_pending())
    }

    fn set_timer(&mut self, context: &mut Context<'_>, at: Instant) {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
        timer.as_mut().reset(at.into());
        // Poll it once to register the waker; it is not due yet.
        let _: Poll<()> = timer.as_mut().poll(context);
    }
}

impl Watch {
    /// State after another look.
    fn next(&self, line: NumberSpan, now: Instant) -> Self {
        let since = if line.head == self.line.head { self.since } else { now };
        let pause = if self.shows_waiting(line) { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        Self { line, since, pause }
    }

    /// Whether a message of the last look is still queued: the queue does not drain as fast as it should.
    fn shows_waiting(&self, line: NumberSpan) -> bool {
        line.head < self.line.next
    }
}

/// Minimum time for which a message is queued before it is offered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
