//! Observation of a slow client: a read probe, and work stealing from its queue.

use std::task::Context;
use std::time::{Duration, Instant};

use tenbin_balancer::Rng;

use super::core::Core;
use super::read_probe::{ReadProbe, Reading};
use super::tcp_state::Ends;
use super::work_stealing::WorkStealing;
use crate::values::Moment;

/// Probes of one connection. Costs nothing for a client that keeps up.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// Only for clients with QoS 0 messages of share groups, which few are.
    read: Option<Box<ReadProbe>>,
    work_stealing: WorkStealing,
}

impl Probes {
    /// Probes now and then whether the client reads shared messages that its socket has taken.
    ///
    /// `messages` more are in the socket since the last call, and `written` bytes since the connection began, as the
    /// kernel counts them; `ends` is called once.
    pub(super) fn wrote(&mut self, core: &Core, messages: u32, written: u64, now: Moment, ends: impl FnOnce() -> Ends) {
        let load = &core.lease.client.load;
        let read = self.read.get_or_insert_with(|| Box::new(ReadProbe::new(ends(), written)));
        match read.wrote(messages, written, now.at) {
            Some(Reading::Lags { read, span, unread }) => load.lags(read, span, unread, now.nanos),
            Some(Reading::CaughtUp { read, span }) => load.caught_up(read, span, now.nanos),
            None => {}
        }
    }

    /// Offers queued shared messages to members that would finish them earlier, if it is time to.
    #[inline(always)]
    pub(super) fn relieve(&mut self, core: &Core, context: &mut Context<'_>) {
        if let Some(stalled_for) = self.work_stealing.poll(context, &core.lease.client.outbox) {
            self.offer_queued(core, stalled_for);
        }
    }

    #[cold]
    fn offer_queued(&self, core: &Core, stalled_for: Duration) {
        let client = &core.lease.client;
        let now = core.open.shared.clock.moment(Instant::now());
        let rng = &mut Rng::new(client.number ^ now.nanos.0);
        let moved = core.open.shared.routing.router.relieve(&client.receiver(), stalled_for, now, rng);
        if moved > 0 {
            core.may_begin(now.at);
            core.open.shared.operations.metrics.messages_moved.add(moved as u64);
            tracing::debug!(client = ?client.id, moved, ?stalled_for, "receiver is blocked: its messages go to other members");
        }
    }

    /// Drops timers of the old runtime after a migration.
    pub(super) fn migrated(&mut self) {
        self.work_stealing.forget_timer();
    }
}
