//! Input from the client: decoded, applied as one batch, and acknowledged.

use std::time::Instant;

use tenbin_codec::{Decoded, QoS, ReasonCode};
use tenbin_session::PendingAck;

use super::connection::{ConnectionTask, Turn};
use super::ending::End;
use super::reason_strings::reason_string;
use super::stream::Stream;
use crate::router::Flushed;
use crate::values::Moment;

/// State of a batch: all whole packets received, while they are applied.
pub(super) struct InputBatch {
    pub(super) now: Moment,
    /// Messages so far.
    pub(super) received: u64,
    /// Stop decoding: the publisher has to pause, other tasks go first, or the connection ends.
    pub(super) is_over: bool,
    /// When the last acknowledged message was sent. Mostly the next one was sent with it.
    pub(super) sent: Moment,
}

impl<S: Stream> ConnectionTask<S> {
    /// Decodes and applies all whole packets received, as one batch.
    pub(super) fn handle_input(&mut self, now: Instant) -> Result<Turn, End> {
        let applied = self.apply_input(self.shared.clock.moment(now));
        // Also before the connection ends: earlier packets are legal and were accepted.
        let Flushed { pressure, commit_point, refused } = self.publisher.flush(&self.shared.router, now);
        if !refused.is_empty() {
            self.refuse_published(refused);
        }
        let reached_itself = self.publisher.take_reached_itself();
        if self.acks.is_empty() {
            return applied.map(|()| if pressure { Turn::Over } else { Turn::GoesOn });
        }
        // Order: PUBRECs, the client's own messages, PUBACKs. So a client that receives a PUBACK has received before it
        // the messages that it published to its own subscriptions. PUBACKs and PUBRECs each keep their order.
        // [MQTT-4.6.0-2], [MQTT-4.6.0-3]
        self.hold_batch_until(commit_point);
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
        match reason_string(reason) {
            Some(reason_string) => self.connection.refuse(ack, reason, reason_string, now, out),
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
