//! Messages from the client: routed as one batch, and acknowledged with a verdict each.

use bytes::Bytes;
use tenbin_codec::{PlainAcknowledged, PlainPublish, QoS, ReasonCode, ReportCarrier, TopicName};
use tenbin_session::{PendingAck, Publication, Violation};

use super::core::Core;
use super::end::End;
use super::gate::DurabilityGate;
use super::input_batch::InputBatch;
use super::member::Member;
#[cfg(feature = "otel")]
use super::spans::PublishSpan;
use crate::durable::Outcomes;
use crate::hooks::Events;
use crate::lifecycle::Denied;
use crate::router::{Flushed, Published, Publisher};

/// Publisher of one connection, and the messages of this batch to acknowledge.
#[derive(Debug)]
pub(super) struct Publishing {
    publisher: Publisher,
    /// Messages to acknowledge once their receivers' queues have them.
    verdicts: Vec<Verdict>,
}

/// Pending acknowledgement of a QoS 1 or 2 message from the client.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    ack: PendingAck,
    reason: ReasonCode,
    /// [`Published::message`]; 0 = not published.
    message: u32,
    /// [`Published::receivers`].
    receivers: u32,
    /// The acknowledgement says success although the message is refused in part.
    is_unseen: bool,
}

impl Verdict {
    /// A published message. Receivers may still refuse it for want of room.
    fn of_published(ack: PendingAck, published: &Published) -> Self {
        let Published { reason, message, receivers, is_unseen, .. } = *published;
        Self { ack, reason, message, receivers, is_unseen }
    }

    /// A message that this packet has given to no receiver.
    fn settled(ack: PendingAck, reason: ReasonCode) -> Self {
        Self { ack, reason, message: 0, receivers: 0, is_unseen: false }
    }

    /// Acknowledges the message once the batch is durable.
    #[inline(always)] // called in two loops
    fn acknowledge(self, core: &mut Core, gate: &mut DurabilityGate, batch: &InputBatch) {
        if self.is_unseen {
            core.open.shared.operations.metrics.unseen_publishes.add(1);
        }
        gate.acknowledge(core, batch.commit_point(), self.ack, self.reason, batch.now.at);
    }
}

impl Publishing {
    pub(super) fn new(core: &Core) -> Self {
        let (client, is_v5) = (&core.lease.client, core.connection.version().is_v5());
        let publisher = Publisher::of(&core.open.shared.routing.router, &client.receiver(), &client.id, is_v5);
        Self { publisher, verdicts: Vec::new() }
    }

    /// Publishes a plain message: QoS 0 with only topic and payload. Returns `false` without effect for an unknown
    /// topic.
    #[inline(always)] // once for each message
    pub(super) fn publish_plain(&mut self, core: &Core, plain: PlainPublish<'_>, batch: &mut InputBatch) -> bool {
        // Cached topics have passed all other checks.
        let is_allowed = |topic: &TopicName| core.lease.client.rights.may_publish(topic);
        self.publisher.publish_plain(
            &core.open.shared.routing.router,
            &mut batch.collector,
            plain,
            is_allowed,
            batch.now,
        )
    }

    /// Publishes a plain message of QoS 1 or 2, which hooks do not see. Returns `false` without effect for any message that is
    /// not as usual.
    #[inline(always)] // once for each message
    pub(super) fn publish_acknowledged(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        message: PlainAcknowledged<'_>,
        batch: &mut InputBatch,
    ) -> bool {
        let PlainAcknowledged { publish, qos, packet_id } = message;
        let ack = PendingAck { packet_id, qos };
        let Core { open, lease, connection, .. } = core;
        if lease.state.partly_refused.is_some() {
            return false;
        }
        // Cached topics have passed all other checks.
        let published = self.publisher.publish_acknowledged(
            &open.shared.routing.router,
            &mut batch.collector,
            (publish, ack),
            |topic| lease.client.rights.may_publish(topic),
            || connection.take_acknowledged(ack),
            batch.now,
        );
        published.is_some_and(|published| {
            let bytes = publish.topic().len() + publish.payload().len();
            self.owe(core, gate, ack, &published, bytes, batch);
            true
        })
    }

    /// Notes a published message of `bytes` bytes to acknowledge.
    #[inline(always)] // called in two places
    fn owe(
        &mut self,
        core: &Core,
        gate: &mut DurabilityGate,
        ack: PendingAck,
        published: &Published,
        bytes: usize,
        batch: &mut InputBatch,
    ) {
        batch.hold_until(published.commit_point);
        self.verdicts.push(Verdict::of_published(ack, published));
        batch.count_bytes(bytes);
        if published.reason.is_error() {
            batch.is_over |= refused_while_collecting(core, gate, published);
        }
    }

    /// Publishes a message, or takes the load report in it. `is_small_part`: its payload is a small part of a large
    /// buffer.
    pub(super) fn publish(
        &mut self,
        core: &mut Core,
        gate: &mut DurabilityGate,
        member: &mut Member,
        mut publication: Publication,
        is_small_part: bool,
        batch: &mut InputBatch,
    ) -> Result<(), End> {
        if is_small_part {
            // Lagging receivers would keep the whole read buffer alive for it.
            publication.payload = Bytes::copy_from_slice(&publication.payload);
        }
        // The alias is resolved already, so this checks the topic in either form.
        let reason = match core.open.shared.routing.checks.publish(&publication) {
            Ok(()) if !core.lease.client.rights.may_publish(&publication.topic) => {
                let (peer, rights) = (core.open.peer, &core.lease.client.rights);
                let told = is_told(core, publication.ack);
                core.open.shared.operations.note_denied(Denied::Publish, peer, rights, &publication.topic, told);
                ReasonCode::NotAuthorized
            }
            Ok(()) if publication.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() => {
                member.published_report(core, &publication, batch)
            }
            Ok(()) if is_refused_again(core, &publication) => ReasonCode::QuotaExceeded,
            Ok(()) if let Some(reason) = ask_hooks(core, &mut publication, batch) => reason,
            Ok(()) => {
                #[cfg(feature = "otel")]
                let span = begin_span(core, &mut publication, batch);
                let published = self.publisher.publish(
                    &core.open.shared.routing.router,
                    &mut batch.collector,
                    &publication,
                    batch.now,
                );
                if let Some(hooks) = &mut core.hooks {
                    hooks.note_published(&publication, published);
                    #[cfg(feature = "otel")]
                    hooks.spans.published(span, published);
                }
                if let Some(ack) = publication.ack {
                    let bytes = publication.topic.as_bytes().len() + publication.payload.len();
                    self.owe(core, gate, ack, &published, bytes, batch);
                } else if published.is_unseen || published.reason.is_error() {
                    core.open.shared.operations.metrics.unseen_publishes.add(1);
                }
                return Ok(());
            }
            Err(ReasonCode::PayloadFormatInvalid) if publication.ack.is_none() => {
                return Err(End::Violation(Violation::PayloadFormat)); // QoS 0 has no other answer
            }
            Err(reason) => {
                note_refused(core, &publication, reason);
                reason
            }
        };
        if reason.is_error() && !is_told(core, publication.ack) {
            core.open.shared.operations.metrics.unseen_publishes.add(1);
        }
        if let Some(ack) = publication.ack {
            self.verdicts.push(Verdict::settled(ack, reason));
        }
        Ok(())
    }

    /// Acknowledges a message of QoS 2 that was received before.
    pub(super) fn repeat(&mut self, core: &Core, ack: PendingAck, batch: &mut InputBatch) {
        // The original message may not be durable yet.
        if let Some(durable) = &core.open.shared.storage.durable {
            batch.hold_until(durable.all().and(durable.all_messages()));
        }
        self.verdicts.push(Verdict::settled(ack, ReasonCode::Success));
    }

    /// Delivers the batch to its receivers' queues; returns whether a receiver needs processor time.
    #[inline(always)] // called in one place
    pub(super) fn flush(&mut self, core: &mut Core, gate: &mut DurabilityGate, batch: &mut InputBatch) -> bool {
        let Flushed { pressure, commit_point, mut refused, holding } =
            self.publisher.flush(&core.open.shared.routing.router, &mut batch.collector, batch.now.at);
        batch.hold_until(commit_point);
        if let Some(hooks) = &mut core.hooks {
            refused.sort_unstable();
            hooks.flushed(&refused);
        }
        if !refused.is_empty() {
            self.refuse(core, gate, refused, batch);
        }
        if let Some(holding) = holding {
            gate.acks().hold(holding);
        }
        pressure
    }

    /// Whether the client has published to its own subscriptions since the last call.
    pub(super) fn take_reached_itself(&mut self) -> bool {
        self.publisher.take_reached_itself()
    }

    /// Whether messages wait for their acknowledgement.
    pub(super) fn has_verdicts(&self) -> bool {
        !self.verdicts.is_empty()
    }

    /// Acknowledges the batch's messages of QoS 2.
    pub(super) fn acknowledge_exactly_once(&mut self, core: &mut Core, gate: &mut DurabilityGate, batch: &InputBatch) {
        for verdict in self.verdicts.extract_if(.., |verdict| verdict.ack.qos == QoS::ExactlyOnce) {
            verdict.acknowledge(core, gate, batch);
        }
    }

    /// Acknowledges the rest of the batch.
    pub(super) fn acknowledge(&mut self, core: &mut Core, gate: &mut DurabilityGate, batch: &InputBatch) {
        self.verdicts.drain(..).for_each(|verdict| verdict.acknowledge(core, gate, batch));
    }

    /// Frees memory of a burst.
    #[inline(always)] // called in one place
    pub(super) fn rest(&mut self) {
        self.verdicts.shrink_to(KEPT_VERDICTS);
    }

    /// Refuses messages of the batch: `refused` has one entry for each receiver without room and message.
    ///
    /// MQTT 3.1.1 has no code for that (docs/decisions/0014). There a message without any receiver is not acknowledged:
    /// the connection ends, and the client sends the message again.
    #[cold]
    fn refuse(&mut self, core: &mut Core, gate: &mut DurabilityGate, mut refused: Vec<u32>, batch: &mut InputBatch) {
        refused.sort_unstable();
        let is_told = core.connection.version().is_v5();
        let queue = core.lease.client.outbox.keeps_in();
        let mut outcomes = Outcomes { are_waited_for: true, ..Outcomes::default() };
        self.verdicts.retain_mut(|Verdict { ack, reason, message, receivers, is_unseen }| {
            let first = refused.partition_point(|other| other < message);
            let refusals = refused[first..].partition_point(|other| other == message);
            if *message == 0 || refusals == 0 {
                return true;
            }
            let has_reached_some = *receivers as usize > refusals;
            *is_unseen = !is_told && has_reached_some;
            *reason = if *is_unseen { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
            if ack.qos == QoS::ExactlyOnce && reason.is_error() {
                let mut forgotten = Vec::new();
                if has_reached_some {
                    let most = usize::from(core.connection.limits().receive_maximum);
                    forgotten = core.lease.state.partly_refused.get_or_insert_default().add(ack.packet_id, most);
                }
                if let Some(queue) = &queue {
                    let origin = queue.publishes(ack.packet_id);
                    outcomes.released.push(origin); // [MQTT-4.3.3-9]
                    // If no receiver has it, an earlier record may say that some have: not all full queues were known
                    // then.
                    let judged = if has_reached_some { &mut outcomes.refused } else { &mut outcomes.refused_no_more };
                    judged.push(origin);
                    outcomes.refused_no_more.extend(forgotten.into_iter().map(|id| queue.publishes(id)));
                }
            }
            if reason.is_error() && !is_told {
                core.connection.forget_refused(*ack, *reason);
                gate.acks().end_unanswered();
                return false;
            }
            true
        });
        if let Some(durable) = core.open.shared.storage.durable.as_ref().filter(|_| !outcomes.is_empty()) {
            batch.hold_until(durable.settle(&mut outcomes));
        }
    }
}

/// Whether the client gets the Reason Code of a refused message.
fn is_told(core: &Core, ack: Option<PendingAck>) -> bool {
    ack.is_some() && core.connection.version().is_v5()
}

/// Counts and logs a message that may not be forwarded under any rules.
#[cold]
fn note_refused(core: &Core, publication: &Publication, reason: ReasonCode) {
    let (peer, client, topic) = (core.open.peer, &core.lease.client.id, &publication.topic);
    let told = is_told(core, publication.ack);
    match core.open.shared.routing.checks.bound(topic) {
        Some(bound) => core.open.shared.operations.note_bound(bound, peer, client, told),
        None if reason.is_error() => tracing::info!(%peer, ?client, ?topic, %reason, told, "message refused"),
        None => tracing::debug!(%peer, ?client, ?topic, "message dropped: it tells the state of a bridge"),
    }
}

/// Handles a refusal before the batch is complete; returns whether to stop there.
///
/// That is so if the client cannot be told and no receiver gets the message. The client will send the rest again behind
/// it.
#[cold]
fn refused_while_collecting(core: &Core, gate: &mut DurabilityGate, published: &Published) -> bool {
    let ends = !core.connection.version().is_v5() && published.refusals >= published.receivers;
    if ends {
        gate.acks().end_unanswered();
    }
    ends
}

/// Asks hooks whether to forward a message, which they may change. Else the Reason Code of its acknowledgement.
#[inline]
fn ask_hooks(core: &Core, publication: &mut Publication, batch: &InputBatch) -> Option<ReasonCode> {
    let hooks = core.hooks.as_ref().filter(|hooks| hooks.wants(Events::PUBLISH))?;
    hooks.publish(publication, batch.now.at, |changed| core.open.shared.routing.checks.own(changed))
}

/// Begins the span of a message, if a collector gets one.
#[cfg(feature = "otel")]
#[inline]
fn begin_span(core: &Core, publication: &mut Publication, batch: &InputBatch) -> Option<Box<PublishSpan>> {
    core.hooks.as_ref()?.spans.begin(&core.lease.client.id, publication, batch.now.at)
}

/// Whether to repeat a refusal, because some receivers already have the message.
///
/// A message that is not a resend starts its Packet Identifier afresh.
#[inline]
fn is_refused_again(core: &mut Core, publication: &Publication) -> bool {
    core.lease.state.partly_refused.is_some() && finds_refused(core, publication)
}

#[cold]
fn finds_refused(core: &mut Core, publication: &Publication) -> bool {
    let Some(ack) = publication.ack.filter(|ack| ack.qos == QoS::ExactlyOnce) else { return false };
    let Some(refused) = &mut core.lease.state.partly_refused else { return false };
    if publication.is_resent {
        return refused.contains(ack.packet_id);
    }
    refused.remove(ack.packet_id);
    core.lease.state.partly_refused.take_if(|refused| refused.is_empty());
    false
}

/// Capacity for acknowledgements that an idle connection keeps.
const KEPT_VERDICTS: usize = 512;
