//! Effects of a client's packets on the broker.

use std::time::Instant;

use bytes::{Buf as _, Bytes};
use tenbin_codec::{Disconnect, PacketType, ReasonCode, ReportCarrier, TopicName};
use tenbin_session::{DroppedResend, Event, Publication, SessionExpiry, Violation};

use super::connection::ConnectionTask;
use super::ending::End;
use super::input::InputBatch;
use super::stream::Stream;
use super::verdicts::Verdict;
use crate::outbox::Booked;
use crate::router::HeldKey;

impl<S: Stream> ConnectionTask<S> {
    /// Applies one event.
    #[inline(always)] // called once for each packet
    pub(super) fn apply(&mut self, event: Event, batch: &mut InputBatch) -> Result<(), End> {
        let now = batch.now.at;
        match event {
            Event::Publish(publication) => {
                self.publish(publication, batch)?;
                self.count_publication(batch);
            }
            Event::Duplicate(ack) => {
                // The original message may not be durable yet.
                if let Some(all) = self.shared.durable.as_ref().map(|durable| durable.all().and(durable.all_messages()))
                {
                    self.hold_batch_until(all);
                }
                self.acks.push(Verdict::settled(ack, ReasonCode::Success));
            }
            Event::Subscribe(subscribe) => {
                self.subscribe(subscribe, now)?;
                batch.is_over |= self.filters_in_turn.are_many();
            }
            Event::Unsubscribe(unsubscribe) => {
                self.unsubscribe(unsubscribe, now)?;
                batch.is_over |= self.filters_in_turn.are_many();
            }
            Event::Ping(ping) => self.pinged(&ping, now),
            Event::Disconnect(disconnect) => return Err(self.disconnect(&disconnect)),
            Event::Auth(auth) => self.handle_auth(*auth)?,
            Event::Delivered { reason, shared, stored, .. } => {
                if let Some(stored) = stored {
                    self.done(stored, shared.map(|shared| shared.share));
                }
                if let Some(delivery) = shared {
                    self.acknowledged(&delivery, reason, batch);
                }
                self.count_dropped_resends(now);
            }
            // Only from stored sessions.
            Event::Received { packet_id, stored, share } => self.received(packet_id, stored, share, now),
            Event::Released(packet_id) => self.released(packet_id, now),
            Event::Handled => {}
            // Only servers send these; decoder and session reject them.
            Event::SubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::SubAck))),
            Event::UnsubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::UnsubAck))),
            Event::PingResp => return Err(End::Violation(Violation::Unexpected(PacketType::PingResp))),
        }
        Ok(())
    }

    /// Publishes a plain message: QoS 0 with only topic and payload, to a known topic.
    ///
    /// Returns `false` without effect if the next packet is none.
    #[inline]
    pub(super) fn take_plain(&mut self, batch: &mut InputBatch) -> bool {
        let Some((plain, size)) = self.decoder.peek_plain(&self.transport.input) else { return false };
        // Cached topics have passed all other checks.
        let is_allowed = |topic: &TopicName| self.lease.client.rights.may_publish(topic);
        if !self.publisher.publish_plain(&self.shared.router, plain, is_allowed, batch.now) {
            return false;
        }
        self.connection.handle_plain(batch.now.at);
        self.transport.input.advance(size);
        self.count_publication(batch);
        true
    }

    fn count_publication(&mut self, batch: &mut InputBatch) {
        batch.received += 1;
        if self.throttle.count(batch.now.at) {
            self.shared.metrics.publishers_paused.add(1);
            batch.is_over = true;
        }
    }

    fn publish(&mut self, mut publication: Publication, batch: &mut InputBatch) -> Result<(), End> {
        if self.transport.is_small_part(publication.payload.len()) {
            // Lagging receivers would keep the whole read buffer alive for it.
            publication.payload = Bytes::copy_from_slice(&publication.payload);
        }
        // The alias is resolved already, so this checks the topic in either form.
        let reason = match self.shared.check_publish(&publication) {
            Ok(()) if !self.lease.client.rights.may_publish(&publication.topic) => {
                tracing::debug!(peer = %self.shared.peer, client = ?self.lease.client.id, topic = ?publication.topic, "not authorized to publish");
                ReasonCode::NotAuthorized
            }
            Ok(()) if publication.topic.as_bytes() == ReportCarrier::TOPIC.as_bytes() => {
                self.published_report(&publication, batch.now.at)
            }
            Ok(()) if self.is_refused_again(&publication) => ReasonCode::QuotaExceeded,
            Ok(()) => {
                let published = self.publisher.publish(&self.shared.router, &publication, batch.now);
                if let Some(ack) = publication.ack {
                    self.hold_batch_until(published.commit_point);
                    self.acks.push(Verdict::of_published(ack, &published));
                    // Packet sizes fit in `u32`.
                    let bytes = (publication.topic.as_bytes().len() + publication.payload.len()) as u32;
                    self.batch_bytes = self.batch_bytes.saturating_add(bytes);
                    if published.reason.is_error() {
                        batch.is_over |= self.refused_while_collecting(&published);
                    }
                }
                return Ok(());
            }
            Err(ReasonCode::PayloadFormatInvalid) if publication.ack.is_none() => {
                return Err(End::Violation(Violation::PayloadFormat)); // QoS 0 has no other answer
            }
            Err(reason) => {
                tracing::debug!(peer = %self.shared.peer, client = ?self.lease.client.id, topic = ?publication.topic, %reason, "message refused");
                reason
            }
        };
        if let Some(ack) = publication.ack {
            self.acks.push(Verdict::settled(ack, reason));
        }
        Ok(())
    }

    /// Completes in-flight messages that are too large for the Maximum Packet Size of the new connection.
    pub(super) fn count_dropped_resends(&mut self, now: Instant) {
        while let Some(DroppedResend { packet_id, shared, stored }) = self.connection.poll_dropped() {
            if let Some(stored) = stored {
                self.done(stored, shared.map(|shared| shared.share));
            }
            let booked = shared.as_ref().map_or(Booked::NOTHING, Booked::of_sent);
            booked.take_back(&self.lease.client.load, self.shared.clock.nanos(now));
            self.shared.router.keys_done(shared.as_ref().and_then(HeldKey::of_sent), self.lease.client.number);
            self.shared.metrics.dropped_too_large.add(1);
            tracing::info!(peer = %self.shared.peer, client = ?self.lease.client.id, %packet_id, "message is too large to be sent again");
        }
    }

    fn disconnect(&mut self, disconnect: &Disconnect) -> End {
        let expiry = disconnect.properties.as_ref().and_then(|properties| properties.session_expiry_interval);
        if let Some(seconds) = expiry {
            if self.session_expiry == SessionExpiry::AtDisconnect && seconds > 0 {
                return End::Violation(Violation::SessionExpiryRaised);
            }
            let maximum = self.shared.capabilities.session_expiry_maximum.seconds();
            self.session_expiry = SessionExpiry::from_seconds(seconds.min(maximum));
        }
        End::Disconnect(disconnect.reason)
    }
}
