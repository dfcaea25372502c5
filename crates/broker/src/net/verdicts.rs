//! What became of the messages of one batch, and what their publisher is told of it.

use tenbin_codec::{QoS, ReasonCode};
use tenbin_session::PendingAck;

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
}

impl Verdict {
    /// A message that was published. Receivers may still turn out to have no room for it.
    pub(super) fn of_published(ack: PendingAck, published: &Published) -> Self {
        Self { ack, reason: published.reason, message: published.message }
    }

    /// A message that nobody has been given on this account.
    pub(super) fn settled(ack: PendingAck, reason: ReasonCode) -> Self {
        Self { ack, reason, message: 0 }
    }
}

impl<S: Stream> ConnectionTask<S> {
    /// Receivers had no room for these messages of the batch: one entry for each receiver and message.
    #[cold]
    pub(super) fn refuse_published(&mut self, mut refused: Vec<u32>) {
        refused.sort_unstable();
        let queue = self.lease.client.outbox.keeps_in();
        let mut outcomes = Outcomes { are_waited_for: true, ..Outcomes::default() };
        for verdict in &mut self.acks {
            if verdict.message == 0 || refused.binary_search(&verdict.message).is_err() {
                continue;
            }
            verdict.reason = ReasonCode::QuotaExceeded;
            if let (QoS::ExactlyOnce, Some(queue)) = (verdict.ack.qos, &queue) {
                outcomes.released.push(queue.publishes(verdict.ack.packet_id)); // [MQTT-4.3.3-9]
            }
        }
        if let Some(durable) = self.shared.durable.as_ref().filter(|_| !outcomes.is_empty()) {
            let safe_at = durable.settle(&mut outcomes);
            self.hold_batch_until(safe_at);
        }
    }
}
