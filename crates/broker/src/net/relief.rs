//! What share groups gave to a client and what cannot be sent to it is offered to others, now and then.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;
use tokio::time::Sleep;

use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::outbox::{Line, Outbox};

/// When to look. Costs nothing as long as what waits can be sent.
#[derive(Debug, Default)]
pub(super) struct Relief(
    /// From the first time on at which something could not be sent.
    Option<Box<Lookout>>,
);

#[derive(Debug, Default)]
struct Lookout {
    /// Kept for the next time.
    timer: Option<Pin<Box<Sleep>>>,
    watch: Option<Watch>,
}

/// A queue that is not emptied.
#[derive(Debug)]
struct Watch {
    /// Who waited when it was looked at last.
    line: Line,
    /// When the oldest one was seen to be that first.
    since: Instant,
    /// Until the next look.
    pause: Duration,
}

impl Relief {
    /// The next look needs a timer of the runtime that it is on.
    pub(super) fn forget_timer(&mut self) {
        if let Some(lookout) = &mut self.0 {
            lookout.timer = None;
        }
    }

    /// Whether it is time to offer to others what waits: for how long nothing has been taken out.
    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Option<Duration> {
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
    /// As [`Relief::poll`], while something waits.
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
        // So that it wakes the task; it is not over yet.
        let _: Poll<()> = timer.as_mut().poll(context);
    }
}

impl Watch {
    /// After another look.
    fn next(&self, line: Line, now: Instant) -> Self {
        let since = if line.head == self.line.head { self.since } else { now };
        let pause = if self.shows_waiting(line) { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        Self { line, since, pause }
    }

    /// Whether one who waits now waited at the last look too: the queue is not emptied as fast as it should be.
    fn shows_waiting(&self, line: Line) -> bool {
        line.head < self.line.next
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Looks whether others would finish earlier what waits for the client.
    pub(super) fn relieve(&mut self, context: &mut Context<'_>) {
        let client = &self.lease.client;
        let Some(stalled_for) = self.relief.poll(context, &client.outbox) else { return };
        let now = self.shared.clock.moment(Instant::now());
        let rng = &mut Rng::new(client.number ^ now.nanos.0);
        let moved = self.shared.router.relieve(&client.receiver(), stalled_for, now, rng);
        if moved > 0 {
            tracing::debug!(client = ?client.id, moved, ?stalled_for, "takes no more: its messages go to others");
        }
    }
}

/// A message that has not waited for so long is not looked at.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
