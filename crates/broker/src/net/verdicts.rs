//! Results of a batch's messages, and their acknowledgements to the publisher.

use tenbin_codec::{QoS, ReasonCode};
use tenbin_session::{PendingAck, Publication};

use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::durable::Outcomes;
use crate::router::Published;

/// Pending acknowledgement of a QoS 1 or 2 message from the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) ack: PendingAck,
    pub(super) reason: ReasonCode,
    /// [`Published::message`]; 0 = not published.
    message: u32,
    /// [`Published::receivers`].
    receivers: u32,
}

impl Verdict {
    /// A published message. Receivers may still refuse it for want of room.
    pub(super) fn of_published(ack: PendingAck, published: &Published) -> Self {
        let Published { reason, message, receivers, .. } = *published;
        Self { ack, reason, message, receivers }
    }

    /// A message that this packet has given to no receiver.
    pub(super) fn settled(ack: PendingAck, reason: ReasonCode) -> Self {
        Self { ack, reason, message: 0, receivers: 0 }
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Refuses messages of the batch: `refused` has one entry for each receiver without room and message.
    ///
    /// MQTT 3.1.1 has no code for that (docs/decisions/0014). There a message without any receiver is not acknowledged:
    /// the connection ends, and the client sends the message again.
    #[cold]
    pub(super) fn refuse_published(&mut self, mut refused: Vec<u32>) {
        refused.sort_unstable();
        let is_told = self.connection.version().is_v5();
        let queue = self.lease.client.outbox.keeps_in();
        let mut outcomes = Outcomes { are_waited_for: true, ..Outcomes::default() };
        let mut verdicts = std::mem::take(&mut self.acks);
        verdicts.retain_mut(|Verdict { ack, reason, message, receivers }| {
            let first = refused.partition_point(|other| other < message);
            let refusals = refused[first..].partition_point(|other| other == message);
            if *message == 0 || refusals == 0 {
                return true;
            }
            let has_reached_some = *receivers as usize > refusals;
            *reason = if !is_told && has_reached_some { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
            if ack.qos == QoS::ExactlyOnce && reason.is_error() {
                let mut forgotten = Vec::new();
                if has_reached_some {
                    let most = usize::from(self.connection.limits().receive_maximum);
                    forgotten = self.lease.state.partly_refused.get_or_insert_default().add(ack.packet_id, most);
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
                self.connection.forget_refused(*ack, *reason);
                self.end_unanswered();
                return false;
            }
            true
        });
        self.acks = verdicts;
        if let Some(durable) = self.shared.durable.as_ref().filter(|_| !outcomes.is_empty()) {
            let commit_point = durable.settle(&mut outcomes);
            self.hold_batch_until(commit_point);
        }
    }

    /// Handles a refusal before the batch is complete; returns whether to stop there.
    ///
    /// That is so if the client cannot be told and no receiver gets the message. The client will send the rest again
    /// behind it.
    #[cold]
    pub(super) fn refused_while_collecting(&mut self, published: &Published) -> bool {
        let ends = !self.connection.version().is_v5() && published.refusals >= published.receivers;
        if ends {
            self.end_unanswered();
        }
        ends
    }

    /// Whether to repeat a refusal, because some receivers already have the message.
    ///
    /// A message that is not a resend starts its Packet Identifier afresh.
    #[inline]
    pub(super) fn is_refused_again(&mut self, publication: &Publication) -> bool {
        self.lease.state.partly_refused.is_some() && self.finds_refused(publication)
    }

    #[cold]
    fn finds_refused(&mut self, publication: &Publication) -> bool {
        let Some(ack) = publication.ack.filter(|ack| ack.qos == QoS::ExactlyOnce) else { return false };
        let Some(refused) = &mut self.lease.state.partly_refused else { return false };
        if publication.is_resent {
            return refused.contains(ack.packet_id);
        }
        refused.remove(ack.packet_id);
        self.lease.state.partly_refused.take_if(|refused| refused.is_empty());
        false
    }
}
