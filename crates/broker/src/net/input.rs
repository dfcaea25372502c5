//! What has come from the client: taken apart, applied as one batch, and acknowledged.

use std::time::Instant;

use tenbin_codec::{Decoded, QoS, ReasonCode};
use tenbin_session::PendingAck;

use super::connection::{ConnectionTask, Turn};
use super::ending::End;
use super::stream::Stream;
use super::words::words;
use crate::clock::Moment;
use crate::router::Flushed;

/// All whole packets that have come, while they are applied.
pub(super) struct InputBatch {
    pub(super) now: Moment,
    /// Messages so far.
    pub(super) received: u64,
    /// The packets behind wait: the publisher has to pause, others go first, or the connection ends.
    pub(super) is_over: bool,
    /// When the message was sent that was acknowledged last. Mostly the next one was sent with it.
    pub(super) sent: Moment,
}

impl<S: Stream> ConnectionTask<S> {
    /// Decodes and applies all whole packets that have come, as one batch.
    pub(super) fn handle_input(&mut self, now: Instant) -> Result<Turn, End> {
        let applied = self.apply_input(self.shared.clock.moment(now));
        // Also before an end: what came before it is legal and has been taken.
        let Flushed { pressure, safe_at, refused } = self.publisher.flush(&self.shared.router, now);
        if !refused.is_empty() {
            self.refuse_published(refused);
        }
        let reached_itself = self.publisher.take_reached_itself();
        if self.acks.is_empty() {
            return applied.map(|()| if pressure { Turn::Over } else { Turn::GoesOn });
        }
        // PUBRECs, the client's own messages, PUBACKs: one that waits for a PUBACK finds what it published and
        // subscribed to before it. PUBACKs and PUBRECs have an order of their own each. [MQTT-4.6.0-2], [MQTT-4.6.0-3]
        self.hold_batch_until(safe_at);
        let mut acks = std::mem::take(&mut self.acks);
        if reached_itself {
            for verdict in acks.extract_if(.., |verdict| verdict.ack.qos == QoS::ExactlyOnce) {
                self.acknowledge_when_safe(verdict.ack, verdict.reason, now);
            }
            self.send_own(now);
        }
        for verdict in acks.drain(..) {
            self.acknowledge_when_safe(verdict.ack, verdict.reason, now);
        }
        self.acks = acks;
        self.end_held_batch();
        applied.map(|()| if pressure { Turn::Over } else { Turn::ReceiversFirst })
    }

    #[inline]
    pub(super) fn acknowledge(&mut self, ack: PendingAck, reason: ReasonCode, now: Instant) {
        let out = &mut self.transport.out;
        match words(reason) {
            Some(words) => self.connection.refuse(ack, reason, words, now, out),
            None => self.connection.acknowledge(ack, reason, now, out),
        }
    }

    fn apply_input(&mut self, now: Moment) -> Result<(), End> {
        if self.filter_work.is_some() {
            self.go_on_with_filters(now.at)?;
        }
        let is_over = self.throttle.is_paused() || self.filters_in_turn.are_many() || self.is_ending_unanswered();
        let (mut batch, mut packets) = (InputBatch { now, received: 0, is_over, sent: now }, 0);
        let result = loop {
            if batch.is_over {
                break Ok(());
            }
            if self.take_plain(&mut batch) {
                packets += 1;
                continue;
            }
            let packet = match self.decoder.decode(&mut self.transport.input) {
                Ok(Decoded::Packet(packet)) => {
                    packets += 1;
                    packet
                }
                Ok(Decoded::NeedMore(missing)) => {
                    self.needs_input(missing, packets);
                    break Ok(());
                }
                Err(error) => break Err(End::Violation(error.into())),
            };
            let report = self.report_in(&packet);
            let applied = match self.connection.handle_packet(packet, now.at, &mut self.transport.out) {
                Ok(event) => self.apply(event, &mut batch),
                Err(violation) => Err(End::Violation(violation)),
            };
            if let Err(end) = applied {
                break Err(end);
            }
            if let Some(report) = report {
                self.take_report(report.as_bytes(), now.at);
            }
        };
        self.tell_acknowledged();
        self.settle();
        self.shared.metrics.messages_received.add(batch.received);
        self.shared.metrics.packets_received.add(packets);
        result
    }
}
