//! Pauses of a connection while the broker may not act.

use std::task::{Context, Poll};
use std::time::Instant;

use super::turn::Turn;
use super::{ConnectionTask, Ready};
use crate::net::end::End;
use crate::net::stream::Stream;
use crate::outbox::Control;

impl<S: Stream> ConnectionTask<S> {
    /// Waits until the broker may act, or stops.
    #[cold]
    pub(super) fn poll_paused(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Ready>> {
        let shared = &self.core.open.shared;
        if shared.operations.leadership.poll_held(self.core.lease.client.number, context) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // After the registration: the broker wakes all that wait after it was deposed or fenced.
        if shared.operations.leadership.deposed().is_none() {
            return match shared.operations.leadership.fenced() {
                Some(_) => Poll::Ready(Err(std::io::ErrorKind::ConnectionAborted.into())),
                None => Poll::Pending,
            };
        }
        Poll::Ready(Ok(Ready { control: Some(Control::ShuttingDown), ..Ready::default() }))
    }

    /// Applies input, unless the lease has ended since the lap began. Then a later lap applies it.
    #[inline]
    pub(super) fn handle_input_if_held(&mut self, now: Instant) -> Result<Turn, End> {
        if self.core.open.shared.operations.leadership.holds() {
            return self.handle_input(now);
        }
        self.inbound.cut_turn();
        Ok(Turn::Over)
    }

    /// Whether the broker has not read for its own reasons, so that Keep Alive has to begin anew.
    pub(super) fn has_not_read(&self) -> bool {
        let keep_alive = self.core.connection.limits().keep_alive * 3 / 2;
        self.gate.waits(&self.core)
            || self.inbound.arrival.is_starved()
            || self.core.open.shared.operations.leadership.has_paused_within(keep_alive)
    }
}
