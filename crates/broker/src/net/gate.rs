//! Packets that wait for the disk, in both directions, and acknowledgements that a share group holds.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tenbin_codec::{Packet, PacketId, ReasonCode};
use tenbin_session::{Delivery, PendingAck, Sent};

use super::core::Core;
use super::deferred_acks::{CommitQueue, DeferredAcks};
use super::deferred_sends::DeferredSends;
use super::end::End;
use crate::durable::CommitPoint;

/// Gate that packets of this connection pass once the changes that they confirm are durable.
///
/// Two empty boxes for clients without any such packet.
#[derive(Debug, Default)]
pub(super) struct DurabilityGate {
    /// Answers to the client's packets; present only while there are some.
    acks: Option<Box<DeferredAcks>>,
    /// Messages to the client; present from the first stored message on.
    sends: Option<Box<DeferredSends>>,
}

impl DurabilityGate {
    /// Writes an acknowledgement once `commit_point` is durable and no share group holds it, possibly at once.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        core: &mut Core,
        commit_point: CommitPoint,
        ack: PendingAck,
        reason: ReasonCode,
        now: Instant,
    ) {
        let deferred = self.acks.as_ref().map(|acks| &acks.acks);
        let is_held = self.acks.as_ref().is_some_and(|acks| acks.is_held());
        if deferred.is_none() && commit_point == CommitPoint::NOW
            || !is_held && CommitQueue::may_pass(deferred, commit_point, core.open.shared.storage.durable.as_deref())
        {
            core.acknowledge(ack, reason, now);
        } else {
            self.acks().acks.defer(commit_point, (ack, reason));
        }
    }

    /// Sends an answer to SUBSCRIBE or UNSUBSCRIBE once `commit_point` is durable.
    pub(super) fn answer(
        &mut self,
        core: &mut Core,
        commit_point: CommitPoint,
        packet: Packet,
        now: Instant,
    ) -> Result<(), End> {
        let deferred = self.acks.as_ref().map(|acks| acks.answers());
        if CommitQueue::may_pass(deferred, commit_point, core.open.shared.storage.durable.as_deref()) {
            return core.answer(packet, now);
        }
        self.acks().defer_answer(commit_point, packet);
        Ok(())
    }

    /// Records whether the filters of a SUBSCRIBE are being applied, some at a time.
    pub(super) fn set_subscribing(&mut self, is_subscribing: bool) {
        if is_subscribing || self.acks.is_some() {
            self.acks().set_subscribing(is_subscribing);
        }
    }

    /// Whether a SUBACK is to be written before any further message, since its subscriptions may have caused that.
    ///
    /// Messages of older subscriptions wait too: a commit takes milliseconds, and a message does not tell its cause.
    #[inline]
    pub(super) fn owes_suback(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.owes_suback())
    }

    /// Ends a batch after its acknowledgements were written or deferred: charges its messages of `bytes` bytes, which
    /// stay in memory until `commit_point` is durable.
    #[inline]
    pub(super) fn end_batch(&mut self, core: &Core, commit_point: CommitPoint, bytes: u32) {
        self.acks.take_if(|acks| acks.is_empty());
        if let Some(acks) = &mut self.acks
            && bytes > 0
            && commit_point != CommitPoint::NOW
        {
            acks.charge(commit_point, core.lease.client.outbox.account(), bytes as usize);
        }
    }

    /// Answers to the client's packets.
    pub(super) fn acks(&mut self) -> &mut DeferredAcks {
        self.acks.get_or_insert_default()
    }

    /// Messages to the client.
    pub(super) fn sends(&mut self) -> &mut DeferredSends {
        self.sends.get_or_insert_default()
    }

    #[inline]
    pub(super) fn is_ending_unanswered(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.is_ending_unanswered())
    }

    /// Whether that pause is over and all accepted messages are acknowledged.
    #[inline]
    pub(super) fn poll_unanswered(&mut self, context: &mut Context<'_>) -> bool {
        self.acks.as_mut().is_some_and(|acks| acks.poll_unanswered(context))
    }

    /// Handles PUBREL of a message from the client.
    pub(super) fn released(&mut self, core: &mut Core, packet_id: PacketId, now: Instant) {
        match core.lease.client.outbox.keeps_in() {
            Some(queue) => self.sends().released(&queue, packet_id),
            None => core.connection.complete(packet_id, now, &mut core.out),
        }
    }

    /// Sends a message, or defers its packet until the end of the batch that [`DurabilityGate::end_sending`] ends.
    #[inline]
    pub(super) fn send(&mut self, core: &mut Core, delivery: Delivery, now: Instant) -> Sent {
        if delivery.stored.is_some() {
            return self.sends().send(core, delivery, now);
        }
        match &mut self.sends {
            Some(sends) => sends.send_unstored(core, delivery, now),
            None => core.connection.send(delivery, now, &mut core.out),
        }
    }

    /// Records messages sent in this batch; defers its packets that wait for that.
    #[inline]
    pub(super) fn end_sending(&mut self, core: &Core) {
        if let Some(sends) = &mut self.sends {
            sends.end_sending(core);
        }
    }

    /// Records delivery updates.
    #[inline]
    pub(super) fn settle(&mut self, core: &Core) {
        if let Some(sends) = &mut self.sends {
            sends.settle(core);
        }
    }

    /// Bytes of deferred packets for the socket.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.sends.as_ref().map_or(0, |sends| sends.held_bytes())
    }

    /// Whether the broker's disk is the reason for not reading from the client.
    #[inline]
    pub(super) fn waits(&self, core: &Core) -> bool {
        (self.acks.is_some() || self.sends.is_some()) && self.waits_now(core)
    }

    fn waits_now(&self, core: &Core) -> bool {
        self.sends.as_ref().is_some_and(|sends| sends.are_too_many())
            || self.acks.as_ref().is_some_and(|acks| acks.are_too_many(core.open.shared.storage.durable.as_deref()))
    }

    /// Writes packets that are durable and registers for the rest; returns whether it wrote any.
    #[inline]
    pub(super) fn release(&mut self, core: &mut Core, context: &mut Context<'_>) -> bool {
        (self.acks.is_some() || self.sends.is_some()) && self.release_now(core, context)
    }

    fn release_now(&mut self, core: &mut Core, context: &mut Context<'_>) -> bool {
        let durable = core.open.shared.storage.durable.as_ref().map(Arc::clone);
        let mut is_released = false;
        if let Some(acks) = &mut self.acks {
            is_released = acks.release(core, durable.as_ref(), context);
            self.acks.take_if(|acks| acks.is_empty());
        }
        if let Some((sends, durable)) = self.sends.as_mut().zip(durable.as_ref()) {
            is_released |= sends.release(core, durable, context);
        }
        is_released
    }

    /// Wakes the task when more messages may be sent. Deferred answers have registered in [`DurabilityGate::release`].
    #[inline]
    pub(super) fn register(&self, core: &Core, context: &mut Context<'_>) {
        if let Some((sends, durable)) = self.sends.as_ref().zip(core.open.shared.storage.durable.as_ref()) {
            sends.register(durable, context);
        }
    }

    /// Waits until all that was accepted from the client is answered, as far as only the disk delays that.
    pub(super) async fn answered(&mut self, core: &mut Core) {
        std::future::poll_fn(|context| {
            self.release(core, context);
            if self.owes_answers() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    fn owes_answers(&self) -> bool {
        self.acks.as_ref().is_some_and(|acks| acks.owes_answers())
            || self.sends.as_ref().is_some_and(|sends| sends.owes_steps())
    }

    /// Drops registered wakers and timers after a migration, since they belong to the old task.
    pub(super) fn migrated(&mut self) {
        if let Some(acks) = &mut self.acks {
            acks.migrated();
        }
    }

    /// Drops deferred packets at the end of the connection; returns the commit point of all delivery updates.
    ///
    /// A refused message whose refusal was not sent is forgotten, so that the broker judges it again if it comes again.
    pub(super) fn end(mut self, core: &mut Core) -> CommitPoint {
        if let Some(acks) = self.acks.take() {
            acks.forget(&mut core.connection);
        }
        self.settle(core);
        self.sends.map_or(CommitPoint::NOW, |sends| sends.last())
    }
}
