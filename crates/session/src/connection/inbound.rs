//! Messages of the peer, and this side's acknowledgements.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use super::*;
use crate::Publication;
use tenbin_codec::{AckProperties, Publish, QoS};

impl Connection {
    /// Acknowledges a message that is durable or refused: PUBACK at QoS 1, PUBREC at QoS 2.
    ///
    /// 3.1.1 has no Reason Codes here.
    pub fn acknowledge(&mut self, ack: PendingAck, reason: ReasonCode, now: Instant, out: &mut WriteBuffer) {
        let packet_type = self.close_pending(ack, reason);
        self.write_ack(packet_type, ack.packet_id, reason, now, out);
    }

    /// Acknowledges a message like [`Connection::acknowledge`], with properties.
    ///
    /// Omits them at 3.1.1, and if the packet is too large for the peer `[MQTT-3.4.2-3]`, `[MQTT-3.5.2-3]`.
    pub fn acknowledge_with(
        &mut self,
        ack: PendingAck,
        reason: ReasonCode,
        properties: AckProperties,
        now: Instant,
        out: &mut WriteBuffer,
    ) {
        let with = Ack { packet_id: ack.packet_id, reason, properties: Some(Box::new(properties)) };
        let packet = match self.close_pending(ack, reason) {
            PacketType::PubRec => Packet::PubRec(with),
            _ => Packet::PubAck(with),
        };
        self.write_in_words(packet, now, out);
    }

    /// Refuses a message with a Reason String: see [`Connection::write_in_words`].
    pub fn refuse(&mut self, ack: PendingAck, reason: ReasonCode, words: Text, now: Instant, out: &mut WriteBuffer) {
        let properties = AckProperties { reason_string: Some(words), ..AckProperties::default() };
        self.acknowledge_with(ack, reason, properties, now, out);
    }

    /// Forgets a refused message when the connection ends before the acknowledgement.
    ///
    /// If the peer sends it again on the next connection, it counts as new.
    pub fn forget_refused(&mut self, ack: PendingAck, reason: ReasonCode) {
        debug_assert!(reason.is_error(), "one that was taken is kept in mind");
        self.close_pending(ack, reason);
    }

    /// Closes a pending message. Returns the type of its acknowledgement.
    fn close_pending(&mut self, ack: PendingAck, reason: ReasonCode) -> PacketType {
        debug_assert!(reason.is_valid_in(PacketType::PubAck), "[MQTT-3.4.2-1], [MQTT-3.5.2-1]");
        match ack.qos {
            QoS::ExactlyOnce => {
                if reason.is_error() && self.session.awaiting_release.remove(&ack.packet_id) {
                    if let Some(recovery) = &mut self.recovery {
                        recovery.repeated.remove(&ack.packet_id);
                    }
                    self.close_received(); // [MQTT-4.3.3-9]
                }
                PacketType::PubRec
            }
            _ => {
                self.close_received(); // [MQTT-4.3.2-5]
                PacketType::PubAck
            }
        }
    }

    /// Handles a [`tenbin_codec::PlainPublish`] of the peer: it cannot violate the protocol.
    #[inline]
    pub fn handle_plain(&mut self, now: Instant) {
        self.timers.received(now);
    }

    /// Server: takes a [`tenbin_codec::PlainAcknowledged`] of the peer, as [`Event::Publish`] does. Returns `false`, without
    /// effect, if the message is known already or violates the protocol: then [`Connection::handle_packet`] decides.
    #[inline]
    pub fn take_acknowledged(&mut self, ack: PendingAck) -> bool {
        let is_kept = ack.qos == QoS::ExactlyOnce;
        let has_room =
            self.received_open < i32::from(self.limits.receive_maximum) && !(is_kept && self.keeps_too_many());
        let is_new = ack.qos <= self.limits.maximum_qos
            && has_room
            && (!is_kept || self.session.awaiting_release.insert(ack.packet_id));
        self.received_open += i32::from(is_new);
        is_new
    }

    /// Takes a packet of the peer out of the protocol: it counts for Keep Alive, and its Topic Alias stands from now on.
    ///
    /// # Errors
    /// The Topic Alias is illegal.
    pub fn ignore_packet(&mut self, packet: Packet, now: Instant) -> Result<(), Violation> {
        self.timers.received(now);
        if let Packet::Publish(Publish { topic, topic_alias: Some(alias), .. }) = packet {
            self.inbound_aliases.resolve(topic, alias)?;
        }
        Ok(())
    }

    /// Server: extends Keep Alive, since the server has not read until now and the peer may have sent something.
    pub fn not_read(&mut self, now: Instant) {
        self.timers.received(now);
    }

    #[inline]
    pub(super) fn handle_publish(&mut self, publish: Publish, now: Instant) -> Result<Event, Violation> {
        if self.role == Role::Server {
            self.check_client_publish(&publish)?;
        }
        let topic = match publish.topic_alias {
            Some(alias) => self.inbound_aliases.resolve(publish.topic, alias)?,
            None => publish.topic,
        };
        let ack = publish.packet_id.map(|packet_id| PendingAck { packet_id, qos: publish.qos });
        if let Some(ack) = ack {
            let is_kept = ack.qos == QoS::ExactlyOnce;
            let has_room =
                self.received_open < i32::from(self.limits.receive_maximum) && !(is_kept && self.keeps_too_many());
            let kept = &mut self.session.awaiting_release;
            // A refused message is not stored: otherwise a repetition would count as known.
            let is_known =
                is_kept && if has_room { !kept.insert(ack.packet_id) } else { kept.contains(&ack.packet_id) };
            if is_known {
                let recovery = self.recovery.get_or_insert_default();
                if recovery.untouched.remove(&ack.packet_id) {
                    self.received_open += 1;
                } else if !publish.dup {
                    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((topic, publish.payload));
                    if recovery.repeated.insert(ack.packet_id, hash) == Some(hash) {
                        return Err(Violation::PacketIdInUse(ack.packet_id)); // [MQTT-3.3.1-1]
                    }
                }
                return Ok(Event::Duplicate(ack)); // [MQTT-4.3.3-10]
            }
            if !has_room {
                return Err(Violation::ReceiveMaximum(self.limits.receive_maximum)); // [MQTT-3.3.4-7]
            }
            self.received_open += 1;
        }
        Ok(Event::Publish(Publication {
            topic,
            qos: publish.qos,
            retain: publish.retain,
            expires_at: Publication::expiry(publish.properties.as_deref(), now),
            payload: publish.payload,
            properties: publish.properties,
            subscription_identifiers: publish.subscription_identifiers,
            ack,
            is_resent: publish.dup,
        }))
    }

    pub(super) fn handle_pubrel(&mut self, ack: Ack, now: Instant, out: &mut WriteBuffer) -> Result<Event, Violation> {
        let known = self.session.awaiting_release.remove(&ack.packet_id);
        if let Some(recovery) = &mut self.recovery {
            recovery.untouched.remove(&ack.packet_id);
            recovery.repeated.remove(&ack.packet_id);
        }
        if known || self.session.receive_maximum > 0 {
            self.close_received();
        }
        // An unknown identifier may repeat a PUBREL whose result is not yet stored; PUBCOMP would confirm that it is.
        if self.session.is_stored {
            return Ok(Event::Released(ack.packet_id));
        }
        self.complete(ack.packet_id, now, out);
        Ok(Event::Handled)
    }

    /// Handles a PUBREL of a known message in a session that is not stored, without interrupted handshakes. Returns `false`,
    /// without effect, for any other.
    #[inline]
    pub(super) fn take_pubrel(&mut self, id: PacketId, now: Instant, out: &mut WriteBuffer) -> bool {
        let is_usual = !self.session.is_stored && self.session.awaiting_release.remove(&id);
        if is_usual {
            self.close_received();
            self.complete(id, now, out);
        }
        is_usual
    }

    /// Answers a PUBREL once the application has stored [`Event::Released`].
    pub fn complete(&mut self, id: PacketId, now: Instant, out: &mut WriteBuffer) {
        // An unknown identifier belongs to a completed handshake. During the peer's recovery that is no error, and
        // recovery is not detectable. PUBCOMP is right in either case: the handshake is complete.
        self.write_ack(PacketType::PubComp, id, ReasonCode::Success, now, out); // [MQTT-4.3.3-11]
    }

    fn check_client_publish(&self, publish: &Publish) -> Result<(), Violation> {
        if !publish.subscription_identifiers.is_empty() {
            return Err(Violation::SubscriptionIdentifier); // [MQTT-3.3.4-6]
        }
        if publish.qos > self.limits.maximum_qos {
            return Err(Violation::MaximumQoS); // [MQTT-3.2.2-11]
        }
        if publish.retain && !self.limits.retain_available {
            return Err(Violation::Retain); // [MQTT-3.2.2-14]
        }
        Ok(())
    }

    /// Bounds the unreleased messages of a peer that interrupts and restarts handshakes again and again.
    ///
    /// A peer that resumes its session stays far below, even if the maximum became smaller.
    fn keeps_too_many(&self) -> bool {
        let maximum = self.limits.receive_maximum.max(self.session.receive_maximum);
        self.session.awaiting_release.len() >= 2 * usize::from(maximum)
    }

    /// Counts one open message less; see the field's documentation.
    fn close_received(&mut self) {
        self.received_open = (self.received_open - 1).max(-i32::from(self.limits.receive_maximum));
    }
}
