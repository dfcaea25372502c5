//! What became of the messages of one batch, and what their publisher is told of it.

use tenbin_codec::{QoS, ReasonCode};
use tenbin_session::{PendingAck, Publication};

use super::connection::ConnectionTask;
use super::stream::Stream;
use crate::durable::Outcomes;
use crate::router::Published;

/// What the client is going to be told of one of its QoS 1 and 2 messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) ack: PendingAck,
    pub(super) reason: ReasonCode,
    /// [`Published::message`]; 0 = it was not published.
    message: u32,
    /// [`Published::receivers`].
    receivers: u32,
}

impl Verdict {
    /// A message that was published. Receivers may still turn out to have no room for it.
    pub(super) fn of_published(ack: PendingAck, published: &Published) -> Self {
        let Published { reason, message, receivers, .. } = *published;
        Self { ack, reason, message, receivers }
    }

    /// A message that nobody has been given on this account.
    pub(super) fn settled(ack: PendingAck, reason: ReasonCode) -> Self {
        Self { ack, reason, message: 0, receivers: 0 }
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Receivers had no room for these messages of the batch: one entry for each receiver and message.
    ///
    /// MQTT 3.1.1 has no word for that (docs/decisions/0014). A message that nobody has got is not answered: the connection
    /// ends, and the client sends it again.
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
                    // Where nobody has got it, it may have been kept as one that some have: not all were known to be full.
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
            let safe_at = durable.settle(&mut outcomes);
            self.hold_batch_until(safe_at);
        }
    }

    /// A message was refused before the rest of the batch is looked at. Where that cannot be told and nobody gets it, the rest
    /// comes again behind it: whether that is so.
    #[cold]
    pub(super) fn refused_while_collecting(&mut self, published: &Published) -> bool {
        let ends = !self.connection.version().is_v5() && published.refusals >= published.receivers;
        if ends {
            self.end_unanswered();
        }
        ends
    }

    /// Whether some receivers have got this message already, and its refusal is to be said again. One that is not sent again
    /// has its identifier anew.
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
