//! What a client's packets do to the broker.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use tenbin_balancer::Rng;
use tenbin_codec::{
    AckProperties, Disconnect, Packet, PacketType, ReasonCode, ReportCarrier, SubAck, Subscribe, Subscription,
    SubscriptionOptions, TopicFilter, TopicName, UnsubAck, Unsubscribe,
};
use tenbin_session::{DroppedResend, Event, Publication, SessionExpiry, Violation};

use super::connection::ConnectionTask;
use super::ending::End;
use super::input::InputBatch;
use super::stream::Stream;
use super::verdicts::Verdict;
use super::weight::weight_in;
use super::words::words;
use crate::durable::{Changes, SafeAt};
use crate::lifecycle;
use crate::outbox::Booked;
use crate::router::{Grant, HeldKey, Router};

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
                // What it was taken for the first time may not be safe yet.
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
            // Of sessions that are stored.
            Event::Received { packet_id, stored, share } => self.received(packet_id, stored, share, now),
            Event::Released(packet_id) => self.released(packet_id, now),
            Event::Handled => {}
            // Only a server says these; the decoder and the session let none through.
            Event::SubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::SubAck))),
            Event::UnsubAck(_) => return Err(End::Violation(Violation::Unexpected(PacketType::UnsubAck))),
            Event::PingResp => return Err(End::Violation(Violation::Unexpected(PacketType::PingResp))),
        }
        Ok(())
    }

    /// Takes a message that comes as most do: at QoS 0, with nothing but topic and payload, and to a topic that is known
    /// already. `false`, and nothing is done, if there is no such one.
    #[inline]
    pub(super) fn take_plain(&mut self, batch: &mut InputBatch) -> bool {
        let Some((plain, size)) = self.decoder.peek_plain(&self.transport.input) else { return false };
        // What is remembered has passed all other checks.
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
            // Receivers that lag would keep all of the read buffer alive for it.
            publication.payload = Bytes::copy_from_slice(&publication.payload);
        }
        // The topic is what counts, however it was said: an alias stands for it already.
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
                    self.hold_batch_until(published.safe_at);
                    self.acks.push(Verdict::of_published(ack, &published));
                    // No packet is larger.
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

    fn subscribe(&mut self, subscribe: Subscribe, now: Instant) -> Result<(), End> {
        let suback = |reasons: Vec<ReasonCode>| {
            let reason_string = reasons.iter().find_map(|&reason| words(reason));
            let properties = AckProperties { reason_string, ..AckProperties::default() };
            Packet::SubAck(SubAck { packet_id: subscribe.packet_id, properties, reasons })
        };
        self.expect_to_answer(&suback(vec![ReasonCode::Success; subscribe.subscriptions.len()]))?;
        let weight = weight_in(&subscribe.user_properties, self.shared.peer).unwrap_or(self.weight);
        let mut added = 0;
        let mut changes = Changes::default();
        let capabilities = &self.shared.capabilities;
        let Some(account) = self.lease.client.outbox.account() else { return Ok(()) };
        let limits = self.shared.config.subscription_limits();
        let is_kept = self.lease.state.durable.is_some();
        let is_disk_behind = is_kept && self.shared.durable.as_ref().is_some_and(|durable| durable.is_congested());
        let filters_maximum = self.shared.config.filters_per_packet_maximum();
        self.filters_in_turn.count(subscribe.subscriptions.len());
        let mut edit = None;
        let taken = subscribe.subscriptions.iter().take(filters_maximum).map(|Subscription { filter, options }| {
            let options = SubscriptionOptions { qos: options.qos.min(capabilities.maximum_qos), ..*options };
            let grant = Grant { options, identifier: subscribe.subscription_identifier, weight };
            let rights = &self.lease.client.rights;
            let state = &mut *self.lease.state;
            let is_new = !state.subscriptions.contains(filter);
            if filter.as_bytes().len() > self.shared.config.topic_bytes_maximum()
                || filter.levels().count() > self.shared.config.topic_levels_maximum()
            {
                return ReasonCode::TopicFilterInvalid;
            }
            // At v5 these ended the connection before.
            if filter.has_wildcard() && !capabilities.wildcard_subscriptions_available {
                return ReasonCode::WildcardSubscriptionsNotSupported;
            }
            if filter.is_shared() && !capabilities.shared_subscriptions_available {
                return ReasonCode::SharedSubscriptionsNotSupported;
            }
            if let Err(reason) = rights.check_subscription(filter) {
                return reason;
            }
            if is_disk_behind {
                return ReasonCode::QuotaExceeded;
            }
            let is_same = state.subscriptions.get(filter) == Some(&grant);
            if !state.subscriptions.insert(filter, grant, limits, &account) {
                return ReasonCode::QuotaExceeded;
            }
            // Nobody's routes change with a subscription that stays as it is.
            if state.suspended.remove(filter) || !is_same {
                lifecycle::joins(&self.shared, &self.lease.client, filter, now);
                let edit = edit.get_or_insert_with(|| self.shared.router.edit());
                edit.subscribe(filter, &self.lease.client.receiver(), grant, now);
                added += u64::from(is_new);
                if let Some(session) = &state.durable {
                    changes.subscribed(session, filter, &grant);
                }
            }
            if Router::brings_retained(filter, options, is_new) {
                state.retained_pages.begin(filter, grant);
            }
            match options.qos.bits() {
                0 => ReasonCode::Success,
                1 => ReasonCode::GrantedQoS1,
                _ => ReasonCode::GrantedQoS2,
            }
        });
        let mut reasons: Vec<_> = taken.collect();
        drop(edit); // publishers see all of it
        reasons.resize(subscribe.subscriptions.len(), ReasonCode::QuotaExceeded);
        self.shared.metrics.subscriptions.add(added);
        let safe_at = if is_disk_behind { SafeAt::NOW } else { self.keep(&changes) };
        self.answer_when_safe(safe_at, suback(reasons), now)?; // [MQTT-3.8.4-1]
        let taken = subscribe.subscriptions.iter().take(filters_maximum);
        let filters = taken.map(|subscription| &subscription.filter);
        self.shared.router.connected(filters, now, &mut Rng::new(self.lease.client.number));
        Ok(())
    }

    fn unsubscribe(&mut self, unsubscribe: Unsubscribe, now: Instant) -> Result<(), End> {
        let unsuback = |reasons| {
            let properties = AckProperties::default();
            Packet::UnsubAck(UnsubAck { packet_id: unsubscribe.packet_id, properties, reasons })
        };
        self.expect_to_answer(&unsuback(vec![ReasonCode::Success; unsubscribe.filters.len()]))?;
        let mut changes = Changes::default();
        let reasons = self.remove_subscriptions(&unsubscribe.filters, &mut changes, now);
        let safe_at = self.keep(&changes);
        self.answer_when_safe(safe_at, unsuback(reasons), now) // [MQTT-3.10.4-4]
    }

    /// What UNSUBACK says of each filter. Messages of share groups that were not sent go to other members.
    fn remove_subscriptions(
        &mut self,
        filters: &[TopicFilter],
        changes: &mut Changes,
        now: Instant,
    ) -> Vec<ReasonCode> {
        let client = Arc::clone(&self.lease.client);
        let leaves_groups = filters.iter().any(TopicFilter::is_shared);
        // Before it leaves: what is published meanwhile must not overtake the messages that go to others.
        let handover = leaves_groups.then(|| self.shared.router.begin_handover(client.number, &client.outbox));
        let mut removed = 0;
        self.filters_in_turn.count(filters.len());
        let mut edit = None;
        let reasons = filters.iter().map(|filter| {
            if !self.lease.state.subscriptions.remove(filter) {
                return ReasonCode::NoSubscriptionExisted;
            }
            if let Some(session) = &self.lease.state.durable {
                changes.unsubscribed(session, filter);
            }
            lifecycle::leaves(&self.shared, &self.lease.client, filter, now);
            self.lease.state.suspended.remove(filter);
            let edit = edit.get_or_insert_with(|| self.shared.router.edit());
            edit.unsubscribe(filter, self.lease.client.number);
            self.lease.state.retained_pages.cancel(filter);
            removed += 1;
            ReasonCode::Success
        });
        let reasons = reasons.collect();
        drop(edit);
        if let Some(handover) = handover {
            let left = handover.left();
            let waiting = client.outbox.withdraw(|delivery| delivery.share.is_some_and(|group| left.contains(&group)));
            handover.finish(waiting, now, &mut Rng::new(client.number));
        }
        self.shared.metrics.subscriptions.subtract(removed);
        reasons
    }

    /// Keeps changes of our subscriptions: when that is safe. What is not there need not be taken away, but whoever took
    /// it away may have gone before that was safe.
    fn keep(&self, changes: &Changes) -> SafeAt {
        match &self.shared.durable {
            Some(durable) if self.lease.state.durable.is_some() => {
                durable.make(changes);
                durable.all()
            }
            _ => SafeAt::NOW,
        }
    }

    /// Asked before anything is done: who does not take the answer cannot know what has become of its request.
    fn expect_to_answer(&self, answer: &Packet) -> Result<(), End> {
        if self.connection.takes(answer) { Ok(()) } else { Err(End::AnswerTooLarge(answer.packet_type())) }
    }

    /// A client that came back with a smaller Maximum Packet Size misses what was under way and no longer fits.
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
