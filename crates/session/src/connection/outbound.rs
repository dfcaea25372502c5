//! Messages and requests of this side, and the peer's acknowledgements.

use super::*;
use crate::{Extras, Rejected, SentId};
use tenbin_codec::{PublishHeader, QoS, TopicFilter, TopicName, Unsubscribe, UserProperty, VARINT_MAX};

impl Connection {
    /// Number of QoS 1 and 2 messages that [`Connection::send`] accepts now. QoS 0 is always accepted `[MQTT-4.9.0-3]`.
    ///
    /// Zero while messages wait to be sent again: they use all free quota.
    pub fn send_quota(&self) -> u16 {
        self.peer_quota().min(self.session.outbound.free())
    }

    /// Whether Topic Aliases are in use: then packets must be sent in the order of their encoding.
    pub fn uses_aliases(&self) -> bool {
        self.outbound_aliases.is_some()
    }

    /// The topic for which a Topic Alias of this side stands.
    pub fn sent_alias(&self, alias: NonZeroU16) -> Option<&[u8]> {
        self.outbound_aliases.as_ref()?.topic(alias)
    }

    /// The topic for which a Topic Alias of the peer stands.
    pub fn received_alias(&self, alias: NonZeroU16) -> Option<&TopicName> {
        self.inbound_aliases.topic(alias)
    }

    /// The peer's remaining quota, without regard to identifiers. Zero while messages wait to be sent again.
    fn peer_quota(&self) -> u16 {
        let open = u16::try_from(self.sent_open).unwrap_or(u16::MAX);
        self.limits.peer_receive_maximum.saturating_sub(open)
    }

    /// Sends one message.
    pub fn send(&mut self, delivery: Delivery, now: Instant, out: &mut WriteBuffer) -> Sent {
        if delivery.is_expired(now) {
            return Sent::Expired(delivery);
        }
        if delivery.qos.is_acknowledged() && self.peer_quota() == 0 {
            return Sent::Blocked(delivery); // [MQTT-4.9.0-2]
        }
        let Some(header) = self.header(&delivery, now) else {
            return Sent::TooLarge; // A message that is too large uses no Packet Identifier [MQTT-3.1.2-25].
        };
        if !delivery.qos.is_acknowledged() {
            self.write_publish(&delivery, header, now, out);
            return Sent::Written(None);
        }
        if let Some(id) = self.session.withdrawn_id(&delivery)
            && self.session.outbound.reopen(id, Stage::Published(delivery.clone(), now))
        {
            let header = PublishHeader { dup: true, packet_id: Some(id), ..header }; // [MQTT-3.3.1-1]
            self.write_publish(&delivery, header, now, out);
            self.sent_open += 1;
            return Sent::Written(Some(id));
        }
        let Some(id) = self.session.outbound.next_id() else { return Sent::Blocked(delivery) };
        self.write_publish(&delivery, PublishHeader { packet_id: Some(id), ..header }, now, out);
        self.session.outbound.open(Stage::Published(delivery, now));
        self.sent_open += 1;
        Sent::Written(Some(id))
    }

    /// Returns the position of an in-flight message in sending order; `None` if there is no such message.
    pub fn sent_id(&self, id: PacketId) -> Option<SentId> {
        self.session.outbound.sent_id(id)
    }

    /// Sends `count` encoded messages and removes them from `packets`.
    ///
    /// They must match [`Limits::plain_version`] and the peer's Maximum Packet Size.
    pub fn send_plain(&mut self, packets: &mut Vec<u8>, count: u64, now: Instant, out: &mut WriteBuffer) {
        out.put_packets(packets);
        self.timers.sent_many(count, now);
    }

    /// Sends encoded messages like [`Connection::send_plain`], from a slice of a larger buffer.
    pub fn append_plain(&mut self, packets: &[u8], count: u64, now: Instant, out: &mut WriteBuffer) {
        out.append_packets(packets);
        self.timers.sent_many(count, now);
    }

    /// Sends the in-flight messages of earlier connections again, in order, with their Packet Identifiers
    /// `[MQTT-4.4.0-1]`.
    ///
    /// First every PUBREL, then as many PUBLISHes as the send quota allows; the others follow as acknowledgements
    /// arrive. Call it once, before anything else is sent.
    pub fn resume(&mut self, now: Instant, out: &mut WriteBuffer) {
        self.resume_but(|_| false, now, out);
    }

    /// As [`Connection::resume`], but holds messages back like [`Connection::hold_resends`].
    pub fn resume_but(&mut self, is_held: impl Fn(&Delivery) -> bool, now: Instant, out: &mut WriteBuffer) {
        // New messages leave the identifiers of withdrawn ones to these.
        if let Some(last) = self.session.withdrawn.as_ref().and_then(|withdrawn| withdrawn.last()) {
            self.session.outbound.begin_after(last);
        }
        let Some((first, _)) = self.session.outbound.next_open(0) else { return };
        let mut from = first;
        while let Some((sequence, id)) = self.session.outbound.next_open(from) {
            from = sequence + 1;
            if let Some(Stage::Released { .. }) = self.session.outbound.stage(id) {
                self.sent_open += 1;
                self.write_ack(PacketType::PubRel, id, ReasonCode::Success, now, out);
            }
        }
        self.recovery().resend = Some((first, from));
        self.hold_resends(is_held, now, out);
    }

    /// Holds back the messages for which `is_held`, among those that wait to be sent again. Returns their number.
    ///
    /// They stay in flight, use no send quota, and are sent again once a later call does not hold them. Messages already
    /// sent on this connection continue.
    pub fn hold_resends(&mut self, is_held: impl Fn(&Delivery) -> bool, now: Instant, out: &mut WriteBuffer) -> usize {
        let Some(recovery) = &mut self.recovery else { return 0 };
        let newest = self.session.outbound.next_sequence();
        let (next, end) = recovery.resend.unwrap_or((newest, newest));
        let mut waiting = std::mem::take(&mut recovery.held);
        recovery.held_bytes = 0;
        waiting.append(&mut recovery.freed);
        let outbound = &self.session.outbound;
        let mut from = next;
        while let Some((sequence, _)) = outbound.next_open(from).filter(|(sequence, _)| *sequence < end) {
            waiting.insert(sequence);
            from = sequence + 1;
        }
        for sequence in waiting {
            match outbound.published(sequence) {
                Some(delivery) if is_held(delivery) => {
                    recovery.held_bytes += delivery.queued_bytes();
                    recovery.held.insert(sequence);
                }
                Some(_) if sequence < next => _ = recovery.freed.insert(sequence),
                _ => {}
            }
        }
        self.resend_more(now, out);
        self.recovery.as_ref().map_or(0, |recovery| recovery.held.len())
    }

    /// Bytes of memory of the in-flight messages that [`Connection::hold_resends`] holds back.
    pub fn held_bytes(&self) -> usize {
        self.recovery.as_ref().map_or(0, |recovery| recovery.held_bytes)
    }

    /// Counts a message that the peer acknowledges out of those that are held back.
    #[cold]
    fn no_longer_held(&mut self, id: PacketId) {
        let outbound = &self.session.outbound;
        if let Some(recovery) = &mut self.recovery
            && let Some(sequence) = outbound.sequence(id).filter(|sequence| recovery.held.remove(sequence))
        {
            let bytes = outbound.published(sequence).map_or(0, Delivery::queued_bytes);
            recovery.held_bytes = recovery.held_bytes.saturating_sub(bytes);
        }
    }

    /// Returns the next message that cannot be sent again, since this peer accepts only smaller packets
    /// `[MQTT-3.1.2-25]`.
    ///
    /// Callers that track the end of every message must call it after [`Connection::resume`] and each
    /// [`Event::Delivered`].
    pub fn poll_dropped(&mut self) -> Option<DroppedResend> {
        self.recovery.as_mut()?.dropped.pop_front()
    }

    /// Sends PUBREL once the application has stored that the peer has the message ([`Event::Received`]).
    pub fn release(&mut self, id: PacketId, now: Instant, out: &mut WriteBuffer) {
        if let Some(Stage::Released { .. }) = self.session.outbound.stage(id) {
            self.write_ack(PacketType::PubRel, id, ReasonCode::Success, now, out); // [MQTT-4.3.3-4]
        }
    }

    /// Client: sends SUBSCRIBE; `None` if no Packet Identifier is free or the packet is too large for the server.
    pub fn subscribe(
        &mut self,
        subscriptions: Vec<Subscription>,
        subscription_identifier: Option<u32>,
        user_properties: Vec<UserProperty>,
        now: Instant,
        out: &mut WriteBuffer,
    ) -> Option<PacketId> {
        let packet_id = self.session.outbound.open_next(Stage::Request)?;
        let subscribe = Subscribe { packet_id, subscription_identifier, user_properties, subscriptions };
        self.write_request(packet_id, &Packet::Subscribe(subscribe), now, out)
    }

    /// Client: sends UNSUBSCRIBE; `None` as for [`Connection::subscribe`].
    pub fn unsubscribe(&mut self, filters: Vec<TopicFilter>, now: Instant, out: &mut WriteBuffer) -> Option<PacketId> {
        let packet_id = self.session.outbound.open_next(Stage::Request)?;
        let unsubscribe = Unsubscribe { packet_id, user_properties: Vec::new(), filters };
        self.write_request(packet_id, &Packet::Unsubscribe(unsubscribe), now, out)
    }

    /// Closes the request of a SUBACK or UNSUBACK.
    pub(super) fn close_request(&mut self, id: PacketId) -> Result<(), Violation> {
        match self.session.outbound.stage(id) {
            Some(Stage::Request) => self.session.outbound.close(id),
            Some(_) => return Err(Violation::AckMismatch(id)), // The message stays in flight [MQTT-4.3.2-3].
            None => false,
        };
        Ok(())
    }

    pub(super) fn handle_puback(&mut self, ack: Ack, now: Instant, out: &mut WriteBuffer) -> Result<Event, Violation> {
        match self.session.outbound.stage(ack.packet_id) {
            Some(Stage::Published(delivery, _)) if delivery.qos == QoS::AtLeastOnce => {}
            Some(&Stage::Late(shared)) => return Ok(self.late(&ack, shared, now, out)),
            Some(_) => return Err(Violation::AckMismatch(ack.packet_id)),
            None => return Ok(Event::Handled), // It belongs to an earlier message.
        }
        if ack.reason.is_error() {
            return Ok(self.refused(&ack, now, out));
        }
        Ok(self.delivered(ack.packet_id, ack.reason, now, out))
    }

    /// Handles an acknowledgement without Reason Code and properties that takes its usual course. `None`, without effect, for
    /// any other: then [`Connection::handle_packet`] decides.
    #[inline]
    pub fn take_ack(
        &mut self,
        (packet_type, id): (PacketType, PacketId),
        now: Instant,
        out: &mut WriteBuffer,
    ) -> Option<TakenAck> {
        if self.recovery.is_some() && !self.ends_recovery() {
            return None;
        }
        match packet_type {
            PacketType::PubAck => {
                let is_due = |stage: &Stage| stage.is_published(QoS::AtLeastOnce);
                let ended = self.session.outbound.end_if(id, is_due)?;
                self.sent_open = self.sent_open.saturating_sub(1);
                Some(ended)
            }
            PacketType::PubRec => {
                self.session.outbound.release_unstored(id)?;
                self.write_ack(PacketType::PubRel, id, ReasonCode::Success, now, out); // [MQTT-4.3.3-4]
                Some(TakenAck::Handled)
            }
            PacketType::PubComp => {
                let ended = self.session.outbound.end_if(id, |stage| matches!(stage, Stage::Released { .. }))?;
                self.sent_open = self.sent_open.saturating_sub(1);
                Some(ended)
            }
            PacketType::PubRel => self.take_pubrel(id, now, out).then_some(TakenAck::Handled),
            _ => None,
        }
    }

    /// Forgets interrupted handshakes if all of them have gone on; returns whether that is so.
    #[cold]
    fn ends_recovery(&mut self) -> bool {
        self.recovery.take_if(|recovery| recovery.is_over());
        self.recovery.is_none()
    }

    pub(super) fn handle_pubrec(&mut self, ack: Ack, now: Instant, out: &mut WriteBuffer) -> Result<Event, Violation> {
        let id = ack.packet_id;
        let share = |stage: &Stage| stage.shared().map(|shared| shared.share);
        let (stored, share, first) = match self.session.outbound.stage(id) {
            Some(stage @ Stage::Released { .. }) => (stage.stored(), share(stage), None),
            Some(stage @ Stage::Published(delivery, _)) if delivery.qos == QoS::ExactlyOnce => {
                (stage.stored(), share(stage), Some(stage.released()))
            }
            Some(_) => return Err(Violation::AckMismatch(id)),
            None if ack.reason.is_error() => return Ok(Event::Handled), // The handshake is complete on both sides.
            None => {
                // The handshake is complete: see the answer to an unknown PUBREL. [MQTT-4.3.3-4]
                self.write_ack(PacketType::PubRel, id, ReasonCode::Success, now, out);
                return Ok(Event::Handled);
            }
        };
        if ack.reason.is_error() {
            return Ok(self.refused(&ack, now, out)); // [MQTT-4.4.0-2]
        }
        if let Some(released) = first {
            // A message that waits to be sent again continues from here instead.
            if !self.is_counted(id) {
                self.sent_open += 1;
                self.no_longer_held(id);
            }
            self.session.outbound.advance(id, released);
        }
        if let Some(stored) = stored {
            return Ok(Event::Received { packet_id: id, stored, share });
        }
        self.write_ack(PacketType::PubRel, id, ReasonCode::Success, now, out); // [MQTT-4.3.3-4]
        Ok(Event::Handled)
    }

    pub(super) fn handle_pubcomp(&mut self, ack: Ack, now: Instant, out: &mut WriteBuffer) -> Result<Event, Violation> {
        match self.session.outbound.stage(ack.packet_id) {
            Some(Stage::Released { .. }) => Ok(self.delivered(ack.packet_id, ack.reason, now, out)),
            Some(_) => Err(Violation::AckMismatch(ack.packet_id)),
            None => Ok(Event::Handled),
        }
    }

    /// Writes an acknowledgement, which needs no quota `[MQTT-4.9.0-3]`.
    pub(super) fn write_ack(
        &mut self,
        packet_type: PacketType,
        id: PacketId,
        reason: ReasonCode,
        now: Instant,
        out: &mut WriteBuffer,
    ) {
        self.timers.sent(now);
        Ack::new(id, reason).encode(packet_type, self.version, out);
    }

    fn write_request(
        &mut self,
        id: PacketId,
        packet: &Packet,
        now: Instant,
        out: &mut WriteBuffer,
    ) -> Option<PacketId> {
        if self.write(packet, now, out) {
            return Some(id);
        }
        self.session.outbound.close(id);
        None
    }

    fn delivered(&mut self, id: PacketId, reason: ReasonCode, now: Instant, out: &mut WriteBuffer) -> Event {
        // A message acknowledged before it was sent again used no quota and returns none. [MQTT-4.9.0-1]
        if self.is_counted(id) {
            self.sent_open = self.sent_open.saturating_sub(1);
        } else {
            self.no_longer_held(id);
        }
        let ended = self.session.outbound.end(id, |stage| (stage.shared(), stage.stored()));
        let (shared, stored) = ended.unwrap_or_default();
        self.resend_more(now, out);
        Event::Delivered { packet_id: id, reason, shared, stored }
    }

    /// Ends a message that the peer refused.
    #[cold]
    fn refused(&mut self, ack: &Ack, now: Instant, out: &mut WriteBuffer) -> Event {
        let rejected = match self.session.outbound.stage(ack.packet_id) {
            Some(Stage::Published(delivery, sent_at)) => delivery.shared(*sent_at).zip(Some(delivery.clone())),
            _ => None,
        };
        let delivered = self.delivered(ack.packet_id, ack.reason, now, out);
        match rejected {
            Some((shared, delivery)) => Event::Rejected(Box::new(Rejected::new(ack, shared, delivery))),
            None => delivered,
        }
    }

    /// Ends a message that another receiver has now.
    #[cold]
    fn late(&mut self, ack: &Ack, shared: SharedDelivery, now: Instant, out: &mut WriteBuffer) -> Event {
        self.delivered(ack.packet_id, ack.reason, now, out);
        Event::Late { packet_id: ack.packet_id, reason: ack.reason, shared }
    }

    /// Messages of share groups that were sent on this connection and are not wholly acknowledged, oldest first.
    pub fn unacknowledged(&self) -> impl Iterator<Item = Unacknowledged> {
        let outbound = &self.session.outbound;
        let open = std::iter::successors(outbound.next_open(0), |(at, _)| outbound.next_open(at + 1));
        open.filter_map(move |(_, packet_id)| {
            let stage = outbound.stage(packet_id)?;
            let (shared, is_late) = match stage {
                Stage::Late(shared) => (*shared, true),
                stage => (stage.shared()?, false),
            };
            let is_sent = is_late || self.is_counted(packet_id);
            let may_be_taken = stage.may_be_withdrawn();
            is_sent.then_some(Unacknowledged { packet_id, shared, may_be_taken, is_late })
        })
    }

    /// Takes a QoS 1 message of a share group that its receiver does not acknowledge, so that another one can get it.
    ///
    /// Its Packet Identifier and its send quota stay in use until the receiver acknowledges it ([`Event::Late`]), or the
    /// connection ends ([`Session::end_late`]). `None` if it is no such message.
    pub fn take_late(&mut self, id: PacketId) -> Option<Delivery> {
        let stage = self.session.outbound.stage(id).filter(|stage| stage.may_be_withdrawn() && self.is_counted(id))?;
        let (Stage::Published(delivery, _), Some(shared)) = (stage, stage.shared()) else { return None };
        let delivery = delivery.clone();
        self.session.outbound.advance(id, Stage::Late(shared));
        Some(delivery)
    }

    #[inline]
    fn resend_more(&mut self, now: Instant, out: &mut WriteBuffer) {
        if self.recovery.is_some() {
            self.resend_waiting(now, out);
        }
    }

    fn resend_waiting(&mut self, now: Instant, out: &mut WriteBuffer) {
        while let Some((sequence, id)) = self.next_resend() {
            // A message to send again keeps its identifier, so only quota matters.
            if self.peer_quota() == 0 {
                return;
            }
            let recovery = self.recovery();
            if !recovery.freed.remove(&sequence) {
                recovery.resend = recovery.resend.map(|(_, end)| (sequence + 1, end));
            }
            // PUBRELs were sent at once.
            let Some(delivery) = self.session.outbound.published(sequence).cloned() else { continue };
            // Its delivery has begun, so expiry does not apply any more. [MQTT-4.3.3-7]
            if let Some(header) = self.header(&delivery, now) {
                let header = PublishHeader { dup: true, packet_id: Some(id), ..header }; // [MQTT-3.3.1-1]
                self.write_publish(&delivery, header, now, out);
                self.session.outbound.sent_again(id, now);
                self.sent_open += 1;
            } else {
                self.session.outbound.close(id);
                let (shared, stored) = (delivery.shared(now), delivery.stored);
                self.recovery().dropped.push_back(DroppedResend { packet_id: id, shared, stored });
            }
        }
    }

    /// Returns sequence number and identifier of the next packet that may have to be sent again.
    fn next_resend(&mut self) -> Option<(u64, PacketId)> {
        let (outbound, recovery) = (&self.session.outbound, self.recovery.as_mut()?);
        while let Some(&sequence) = recovery.freed.first() {
            if outbound.published(sequence).is_some() {
                return outbound.next_open(sequence);
            }
            recovery.freed.pop_first(); // acknowledged before it was sent again
        }
        let (mut from, end) = recovery.resend?;
        while let Some((sequence, id)) = outbound.next_open(from).filter(|(sequence, _)| *sequence < end) {
            if !recovery.held.contains(&sequence) {
                return Some((sequence, id));
            }
            from = sequence + 1;
        }
        recovery.resend = None;
        None
    }

    /// Whether `sent_open` counts the open message `id`: all but those that wait to be sent again.
    #[inline]
    fn is_counted(&self, id: PacketId) -> bool {
        let Some(recovery) = &self.recovery else { return true };
        let Some(Stage::Published(..)) = self.session.outbound.stage(id) else { return true };
        self.session.outbound.sequence(id).is_none_or(|sequence| !recovery.is_to_resend(sequence))
    }

    /// Makes the header of a PUBLISH; `None` if the packet is too large `[MQTT-3.1.2-24]`.
    ///
    /// Omits the alias if only then the packet is within the peer's Maximum Packet Size. The Packet Identifier is a
    /// placeholder.
    fn header<'a>(&self, delivery: &'a Delivery, now: Instant) -> Option<PublishHeader<'a>> {
        let plain = PublishHeader {
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id: PacketId::new(1).filter(|_| delivery.qos.is_acknowledged()),
            subscription_identifiers: delivery.identifiers(),
            message_expiry_interval: delivery.remaining_expiry(now),
            deliveries: delivery.extras.as_deref().map_or(0, delivery_number),
            ..PublishHeader::default()
        };
        let alias = self.outbound_aliases.as_ref().and_then(|aliases| aliases.find(delivery.template.topic()));
        let aliased =
            alias.map(|(alias, known)| PublishHeader { topic_alias: Some(alias), topic_is_aliased: known, ..plain });
        let maximum = self.limits.peer_maximum_packet_size.min(LARGEST_PACKET) as usize;
        // The cheap upper bound nearly always suffices.
        let fits = |header: &PublishHeader<'_>| {
            delivery.template.encoded_len_maximum(header) <= maximum
                || delivery.template.encoded_len(header, self.version) <= maximum
        };
        // The number of deliveries is a service: the message is not lost for it.
        let first = || Some(PublishHeader { deliveries: 0, ..plain }).filter(|_| plain.deliveries > 0);
        aliased.filter(fits).or_else(|| Some(plain).filter(fits)).or_else(|| first().filter(fits))
    }

    fn write_publish(&mut self, delivery: &Delivery, header: PublishHeader<'_>, now: Instant, out: &mut WriteBuffer) {
        if let (Some(alias), false) = (header.topic_alias, header.topic_is_aliased)
            && let Some(aliases) = &mut self.outbound_aliases
        {
            aliases.introduce(delivery.template.topic(), alias);
        }
        delivery.template.encode(&header, self.version, out);
        self.timers.sent(now);
    }
}

/// Value of the User Property of a delivery; 0 = it has none, as for the first one.
fn delivery_number(extras: &Extras) -> u32 {
    if extras.deliveries == 0 { 0 } else { extras.deliveries.saturating_add(1) }
}

/// Largest packet that the Remaining Length can express, with its fixed header.
const LARGEST_PACKET: u32 = VARINT_MAX + 5;
