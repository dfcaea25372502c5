//! Input from the client: decoded, applied as one batch, and acknowledged.

use std::time::Instant;

use tenbin_codec::{Decoded, Decoder, Packet, PacketType, QoS, ReasonCode};
use tenbin_session::{DroppedResend, Event, Publication, TakenAck, Violation};

use super::ConnectionTask;
use super::turn::{TURN_PACKETS, Turn};
use crate::durable::Ended;
use crate::hooks::{QosDropReason, Verdict};
use crate::net::core::Core;
use crate::net::end::End;
use crate::net::input_batch::InputBatch;
use crate::net::stream::Stream;
use crate::outbox::Booked;
use crate::router::HeldKey;

impl<S: Stream> ConnectionTask<S> {
    /// Decodes and applies all whole packets received, as one batch.
    pub(super) fn handle_input(&mut self, now: Instant) -> Result<Turn, End> {
        let batch = &mut InputBatch::new(self.core.open.shared.clock.moment(now));
        let applied = self.apply_input(batch);
        let Self { core, gate, publishing, outbound, .. } = self;
        // Also before the connection ends: earlier packets are legal and were accepted.
        let pressure = publishing.flush(core, gate, batch);
        let reached_itself = publishing.take_reached_itself();
        if !publishing.has_verdicts() {
            return applied.map(|()| if pressure { Turn::Over } else { Turn::GoesOn });
        }
        // Order: PUBRECs, the client's own messages, PUBACKs. So a client that receives a PUBACK has received before it
        // the messages that it published to its own subscriptions. PUBACKs and PUBRECs each keep their order.
        // [MQTT-4.6.0-2], [MQTT-4.6.0-3]
        if reached_itself {
            publishing.acknowledge_exactly_once(core, gate, batch);
            outbound.send_own(core, gate, now);
        }
        publishing.acknowledge(core, gate, batch);
        gate.end_batch(core, batch.commit_point(), batch.bytes());
        applied.map(|()| if pressure { Turn::Over } else { Turn::ReceiversFirst })
    }

    fn apply_input(&mut self, batch: &mut InputBatch) -> Result<(), End> {
        let now = batch.now.at;
        self.inbound.filters.go_on(&mut self.core, &mut self.gate, now)?;
        batch.is_over = self.inbound.is_paused() || self.gate.is_ending_unanswered();
        if let Some(hooks) = &mut self.core.hooks {
            hooks.has_input(self.inbound.undecoded());
        }
        let (mut plain, mut packets) = (0, 0);
        let result = loop {
            if self.inbound.may_be_plain() && !self.core.looks_at_each() {
                plain += self.take_plain(batch);
            }
            let before = packets;
            if !self.core.looks_at_each() {
                packets += self.take_acknowledged(batch, TURN_PACKETS - packets);
                // Hooks may know the messages in flight.
                if self.core.hooks.is_none() {
                    packets += self.take_acks(batch, TURN_PACKETS - packets);
                }
                if packets == TURN_PACKETS {
                    batch.is_over = true;
                    self.inbound.cut_turn();
                }
            }
            if packets > before && !batch.is_over {
                continue; // usual packets mostly follow usual ones
            }
            if batch.is_over {
                break Ok(());
            }
            let packet = match self.inbound.decode() {
                Ok(Decoded::Packet(packet)) => {
                    packets += 1;
                    packet
                }
                Ok(Decoded::NeedMore(missing)) => {
                    self.inbound.needs_input(&self.core, missing, plain + packets);
                    break Ok(());
                }
                Err(error) => break Err(End::Violation(error.into())),
            };
            let applied = match self.core.looks_at_packets() {
                true => self.apply_before_hooks(packet, batch),
                false => self.apply_packet(packet, batch),
            };
            if let Err(end) = applied {
                break Err(end);
            }
            if packets == TURN_PACKETS {
                batch.is_over = true;
                self.inbound.cut_turn();
            }
        };
        batch.tell_acknowledged(&self.core.lease.client.load);
        if batch.may_begin {
            self.core.may_begin(now);
        }
        if batch.asks_round_trip {
            self.measure_round_trip();
        }
        self.gate.settle(&self.core);
        let metrics = &self.core.open.shared.operations.metrics;
        metrics.messages_received.add(batch.received);
        metrics.packets_received.add(plain + packets);
        result
    }

    /// Applies a packet.
    #[inline(always)] // called once for each packet
    fn apply_packet(&mut self, packet: Packet, batch: &mut InputBatch) -> Result<(), End> {
        let report = self.member.report_in(&packet);
        match self.core.connection.handle_packet(packet, batch.now.at, &mut self.core.out) {
            Ok(event) => self.apply(event, batch)?,
            Err(violation) => return Err(End::Violation(violation)),
        }
        if let Some(report) = report {
            self.member.take_report(&self.core, report.as_bytes(), batch);
        }
        Ok(())
    }

    /// Asks hooks what to do with a packet, and tells them that it was applied or has ended the connection.
    #[cold]
    #[inline(never)]
    fn apply_before_hooks(&mut self, packet: Packet, batch: &mut InputBatch) -> Result<(), End> {
        let mut read = Verdict::Go;
        if let Core { hooks: Some(hooks), connection, .. } = &mut self.core {
            hooks.trace_received(&packet, connection, self.inbound.undecoded());
            read = hooks.packet_read(&packet);
        }
        match read {
            Verdict::Go => {}
            Verdict::Refuse(reason) => return Err(End::Hook(reason)),
            Verdict::Drop => {
                let ignored = self.core.connection.ignore_packet(packet, batch.now.at);
                return ignored.map_err(End::Violation);
            }
        }
        let kind = packet.packet_type();
        let applied = self.apply_packet(packet, batch);
        if let Some(hooks) = &self.core.hooks {
            let result = match &applied {
                Ok(()) | Err(End::Disconnect(_)) => Ok(()),
                Err(end) => Err(end.row(&self.core).ending.reason.unwrap_or(ReasonCode::UnspecifiedError)),
            };
            hooks.packet_processed(kind, result);
        }
        applied
    }

    /// Publishes the plain messages to known topics at the beginning of the input; returns how many.
    #[inline(never)] // a separate loop is faster
    fn take_plain(&mut self, batch: &mut InputBatch) -> u64 {
        let (mut packets, mut bytes) = (0, 0);
        while !batch.is_over {
            let Some((plain, size)) = self.inbound.peek_plain(bytes) else { break };
            if !self.publishing.publish_plain(&self.core, plain, batch) {
                break;
            }
            (packets, bytes) = (packets + 1, bytes + size);
            self.count_publication(QoS::AtMostOnce, batch);
        }
        if packets > 0 {
            self.core.connection.handle_plain(batch.now.at);
            self.inbound.skip(bytes);
        }
        packets
    }

    /// Publishes the plain messages of QoS 1 and 2 to known topics at the beginning of the input, at most `most`; returns how
    /// many.
    #[inline(always)] // called in one place
    fn take_acknowledged(&mut self, batch: &mut InputBatch, most: u64) -> u64 {
        if self.inbound.may_be_acknowledged() && !batch.is_over { self.publish_acknowledged(batch, most) } else { 0 }
    }

    #[inline(never)] // a separate loop is faster
    fn publish_acknowledged(&mut self, batch: &mut InputBatch, most: u64) -> u64 {
        let (mut packets, mut bytes) = (0, 0);
        while packets < most && !batch.is_over {
            let Some((message, size)) = self.inbound.peek_acknowledged(bytes) else { break };
            let qos = message.qos;
            if !self.publishing.publish_acknowledged(&mut self.core, &mut self.gate, message, batch) {
                break;
            }
            (packets, bytes) = (packets + 1, bytes + size);
            self.count_publication(qos, batch);
        }
        if packets > 0 {
            self.core.connection.handle_plain(batch.now.at);
            self.inbound.skip(bytes);
        }
        packets
    }

    /// Applies the usual acknowledgements at the beginning of the input, at most `most`; returns how many.
    #[inline(always)] // called in one place
    fn take_acks(&mut self, batch: &mut InputBatch, most: u64) -> u64 {
        if self.inbound.peek_ack(0).is_some() && !batch.is_over { self.apply_acks(batch, most) } else { 0 }
    }

    #[inline(never)] // a separate loop is faster
    fn apply_acks(&mut self, batch: &mut InputBatch, most: u64) -> u64 {
        let Self { core, inbound, gate, member, .. } = self;
        let (now, mut packets) = (batch.now.at, 0);
        while packets < most
            && let Some(ack) = inbound.peek_ack(packets as usize * Decoder::PLAIN_ACK_BYTES)
            && let Some(taken) = core.connection.take_ack(ack, now, &mut core.out)
        {
            packets += 1;
            let TakenAck::Delivered { shared, stored } = taken else { continue };
            if let Some(stored) = stored {
                gate.sends().end(Ended::Delivered, core, stored, shared.map(|shared| shared.share));
            }
            if let Some(delivery) = shared {
                member.acknowledged(core, &delivery, ReasonCode::Success, batch);
            }
        }
        if packets > 0 {
            core.connection.handle_plain(now);
            inbound.skip(packets as usize * Decoder::PLAIN_ACK_BYTES);
        }
        packets
    }

    /// Applies one event.
    #[inline(always)] // called once for each packet
    fn apply(&mut self, event: Event, batch: &mut InputBatch) -> Result<(), End> {
        let now = batch.now.at;
        let Self { core, inbound, gate, publishing, member, reauthentication, departure, .. } = self;
        match event {
            Event::Publish(publication) => {
                let qos = publication.qos;
                self.publish(publication, batch)?;
                self.count_publication(qos, batch);
            }
            Event::Duplicate(ack) => publishing.repeat(core, ack, batch),
            Event::Subscribe(subscribe) => {
                batch.asks_round_trip |= subscribe.subscriptions.iter().any(|asked| asked.filter.is_shared());
                inbound.filters.subscribe(core, gate, subscribe, member.weight(), now)?;
                batch.is_over |= inbound.is_paused();
            }
            Event::Unsubscribe(unsubscribe) => {
                inbound.filters.unsubscribe(core, gate, unsubscribe, now)?;
                batch.is_over |= inbound.is_paused();
            }
            Event::Ping(ping) => {
                batch.asks_round_trip |= core.lease.client.outbox.is_in_groups();
                member.pinged(core, &ping, batch);
            }
            Event::Disconnect(disconnect) => return Err(departure.disconnected(core, &disconnect)),
            Event::Auth(auth) => reauthentication.received(core, *auth)?,
            Event::Delivered { packet_id, reason, shared, stored } => {
                if let Some(hooks) = &mut core.hooks {
                    hooks.delivered(packet_id, reason);
                }
                if let Some(stored) = stored {
                    gate.sends().end(Ended::Delivered, core, stored, shared.map(|shared| shared.share));
                }
                if let Some(delivery) = shared {
                    member.acknowledged(core, &delivery, reason, batch);
                }
                self.count_dropped_resends(now);
            }
            Event::Rejected(rejected) => self.rejected(*rejected, batch),
            Event::Late { packet_id, reason, shared } => self.late(packet_id, reason, &shared, batch),
            // Only from stored sessions.
            Event::Received { packet_id, stored, share } => gate.sends().received(core, packet_id, stored, share, now),
            Event::Released(packet_id) => gate.released(core, packet_id, now),
            Event::Handled => {}
            // Only servers send these; decoder and session reject them.
            Event::SubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::SubAck))),
            Event::UnsubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::UnsubAck))),
            Event::PingResp => return Err(End::Violation(Violation::Unexpected(PacketType::PingResp))),
        }
        Ok(())
    }

    fn publish(&mut self, publication: Publication, batch: &mut InputBatch) -> Result<(), End> {
        let Self { core, inbound, gate, publishing, member, .. } = self;
        let is_small_part = inbound.is_small_part(publication.payload.len());
        publishing.publish(core, gate, member, publication, is_small_part, batch)
    }

    #[inline]
    fn count_publication(&mut self, qos: QoS, batch: &mut InputBatch) {
        batch.received[qos as usize] += 1;
        batch.is_over |= self.inbound.count_publication(&self.core, batch.now.at);
    }

    /// Completes in-flight messages that are too large for the Maximum Packet Size of the new connection.
    pub(super) fn count_dropped_resends(&mut self, now: Instant) {
        let Self { core, gate, .. } = self;
        while let Some(DroppedResend { packet_id, shared, stored }) = core.connection.poll_dropped() {
            if let Some(stored) = stored {
                gate.sends().end(Ended::TooLarge, core, stored, shared.map(|shared| shared.share));
            }
            let booked = shared.as_ref().map_or(Booked::NOTHING, Booked::of_sent);
            booked.take_back(&core.lease.client.load, core.open.shared.clock.nanos(now));
            core.keys_done(shared.as_ref().and_then(HeldKey::of_sent));
            core.open.shared.operations.metrics.dropped_too_large.add(1);
            if let Some(hooks) = &core.hooks {
                hooks.qos_dropped(packet_id, QosDropReason::TooLarge);
            }
            tracing::info!(peer = %core.open.peer, client = ?core.lease.client.id, %packet_id, "message is too large to be sent again");
            core.may_begin(now);
        }
    }
}
