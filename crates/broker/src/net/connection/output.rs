//! What goes to the client: messages are encoded, written, and counted.

use std::task::{Context, Poll};
use std::time::Instant;

use super::{ConnectionTask, OUT_FULL, Ready};
use crate::net::stream::Stream;
use crate::outbox::{Booked, Control};

impl<S: Stream> ConnectionTask<S> {
    /// Encodes messages for the client, after it applied changes of permissions.
    #[inline(always)] // in each lap: a call costs 1 % of a message that comes alone
    pub(super) fn send(&mut self, context: &mut Context<'_>, quota: usize, room: usize, ready: &mut Ready) {
        ready.progress.more_retained = false;
        while !self.outbound.is_at_rest(&self.core, quota) {
            let Self { outbound, core, gate, .. } = self;
            ready.control = outbound.poll_send(core, gate, quota, room, context, &mut ready.progress);
            match ready.control {
                Some(Control::RightsChanged) if self.take_rights_over().is_ok() => {}
                Some(Control::Asked) => ready.is_asked = true,
                _ => return,
            }
            self.answer_questions();
            ready.control = None;
            ready.progress.sent = true; // PUBRELs of abandoned messages
        }
    }

    /// Writes encoded packets as far as the socket accepts them.
    pub(super) fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        self.core.show_output();
        let written = self.socket.poll_write(&mut self.core.out, context);
        let booked = self.outbound.take_written(&self.core, self.socket.written(&self.core.out));
        if !booked.is_nothing() {
            self.tell_written(booked, written.is_pending());
        }
        match written {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Tells the balancer how far the client is: messages on the way cost it no time.
    pub(super) fn measure_round_trip(&mut self) {
        let ends = self.core.open.ends(self.socket.stream());
        if let Some(round_trip) = ends.state().and_then(|state| state.round_trip) {
            self.core.lease.client.load.set_round_trip(round_trip);
        }
    }

    /// Reports shared messages that the socket has taken; `is_backlogged`: it has not taken all output.
    fn tell_written(&mut self, booked: Booked, is_backlogged: bool) {
        let core = &self.core;
        let now = core.open.shared.clock.moment(Instant::now());
        core.lease.client.load.written(booked.messages, booked.bytes, is_backlogged, now.nanos);
        core.may_begin(now.at); // a message of QoS 0 ends here
        let written = self.socket.wire_written(self.socket.written(&core.out));
        let ends = || core.open.ends(self.socket.stream());
        self.probes.wrote(core, booked.messages, written, now, ends);
    }

    /// Writes messages just taken from the queue, then looks for more. Usually there are none, and the task can sleep
    /// at once.
    pub(super) fn write_at_once(&mut self, context: &mut Context<'_>, ready: &mut Ready) -> std::io::Result<()> {
        self.write(context)?;
        if self.core.out.is_empty() && !ready.progress.more_retained && !self.has_orders() {
            ready.progress.sent = false;
            let quota = self.core.quota();
            self.send(context, quota, OUT_FULL, ready);
            self.count_traffic();
        }
        Ok(())
    }

    pub(super) fn count_traffic(&mut self) {
        let metrics = &self.core.open.shared.operations.metrics;
        let (received, sent) = self.socket.take_traffic();
        metrics.bytes_received.add(received);
        metrics.bytes_sent.add(sent);
        metrics.packets_sent.add(self.outbound.take_packets_sent(&self.core));
    }
}
