//! Messages of share groups that the client rejects, or does not acknowledge in time.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{PacketId, ReasonCode};
use tenbin_session::{Rejected, SharedDelivery};

use super::ConnectionTask;
use crate::durable::Ended;
use crate::net::end::End;
use crate::net::input_batch::InputBatch;
use crate::net::stream::Stream;
use crate::router::{Cause, Failed, HeldKey, SharedGroup};
use crate::values::WorkQueue;

/// A share group looked up, and its rules; `None` if it has none.
type Found = (NonZeroU64, Option<(Arc<SharedGroup>, Arc<WorkQueue>)>);

impl<S: Stream> ConnectionTask<S> {
    /// Handles a rejected message: it ends `[MQTT-4.8.2-6]`, or goes on by the rules of its share group.
    #[cold]
    pub(super) fn rejected(&mut self, rejected: Rejected, batch: &mut InputBatch) {
        let Rejected { packet_id, reason, shared, delivery, retry_after, dead_letter } = rejected;
        let Self { core, gate, member, .. } = self;
        let router = &core.open.shared.routing.router;
        if let Some(hooks) = &mut core.hooks {
            hooks.delivered(packet_id, reason);
        }
        router.count_rejected(shared.share);
        let found = router.work_queue(shared.share).filter(|(_, rules)| rules.keeps_rejected());
        match found {
            None => {
                if let Some(stored) = delivery.stored {
                    gate.sends().end(Ended::Delivered, core, stored, Some(shared.share));
                }
                member.acknowledged(core, &shared, reason, batch);
            }
            Some((group, rules)) => {
                gate.settle(core); // what the log is to know of the message before
                let place = delivery.stored.and_then(|stored| gate.sends().place_of(core, stored, Some(shared.share)));
                member.acknowledged(core, &shared, reason, batch);
                let cause = Cause::Rejected { retry_after, dead_letter };
                let (receiver, client) = (core.lease.client.number, core.lease.client.id.clone());
                group.process_failed(&rules, Failed { delivery, place, receiver, client, cause }, batch.now);
            }
        }
        self.count_dropped_resends(batch.now.at);
    }

    /// Handles the acknowledgement of a message that another member has meanwhile.
    #[cold]
    pub(super) fn late(&mut self, id: PacketId, reason: ReasonCode, shared: &SharedDelivery, batch: &mut InputBatch) {
        let Self { core, member, .. } = self;
        if let Some(hooks) = &mut core.hooks {
            hooks.delivered(id, reason);
        }
        let load = &core.lease.client.load;
        batch.tell_acknowledged(load);
        load.set_overdue(load.snapshot().overdue.saturating_sub(1));
        member.late(core, shared, reason, batch);
        batch.may_begin = true;
        self.count_dropped_resends(batch.now.at);
    }

    /// Gives messages that the client did not acknowledge in time to other members of their share groups.
    ///
    /// # Errors
    /// The client has taken twice as long, or the message has QoS 2 and goes to no other member `[MQTT-4.8.2-4]`.
    #[cold]
    pub(super) fn look_for_overdue(&mut self, now: Instant) -> Result<(), End> {
        if self.has_not_read() {
            return Ok(()); // PUBACKs may be in the socket
        }
        let Self { core, gate, member, .. } = self;
        let (mut found, mut overdue, mut late): (Option<Found>, _, _) = (None, Vec::new(), 0);
        for message in core.connection.unacknowledged() {
            let share = message.shared.share;
            if found.as_ref().is_none_or(|(group, _)| *group != share) {
                found = Some((share, core.open.shared.routing.router.work_queue(share)));
            }
            late += u32::from(message.is_late);
            let Some((_, Some((group, rules)))) = &found else { continue };
            let Some(limit) = rules.acknowledge_within else { continue };
            let waited = now.saturating_duration_since(member.sent_here_at(&message.shared));
            if waited < limit {
                continue;
            }
            if message.may_be_taken && overdue.len() == OVERDUE_AT_ONCE {
                continue; // the next look finds it
            }
            if message.may_be_taken {
                overdue.push((message, Arc::clone(group), Arc::clone(rules)));
            } else if !message.is_late || waited >= limit * 2 {
                return Err(End::Overdue);
            }
        }
        if overdue.is_empty() {
            return Ok(());
        }
        let mut taken = Vec::new();
        for (message, group, rules) in overdue {
            taken
                .extend(core.connection.take_late(message.packet_id).map(|delivery| (message, delivery, group, rules)));
        }
        // Before the group chooses, so that it may pass over this member.
        core.lease.client.load.set_overdue(late + taken.len() as u32);
        let (receiver, client, now) =
            (core.lease.client.number, core.lease.client.id.clone(), core.open.shared.clock.moment(now));
        for (message, delivery, group, rules) in taken {
            let place =
                delivery.stored.and_then(|stored| gate.sends().place_of(core, stored, Some(message.shared.share)));
            core.keys_done(HeldKey::of_sent(&message.shared));
            tracing::debug!(peer = %core.open.peer, client = ?client, packet_id = %message.packet_id, "message not acknowledged in time");
            let failed = Failed { delivery, place, receiver, client: client.clone(), cause: Cause::Overdue };
            group.process_failed(&rules, failed, now);
        }
        Ok(())
    }
}

/// Messages that one look moves to other members.
const OVERDUE_AT_ONCE: usize = 256;
