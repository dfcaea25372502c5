//! One Network Connection's protocol state, in either role.

mod inbound;
mod outbound;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::{NonZeroU16, NonZeroU64};
use std::time::Instant;

use tenbin_codec::{
    Ack, AckProperties, Disconnect, DisconnectProperties, Packet, PacketId, PacketType, PingReq, ProtocolVersion,
    ReasonCode, Subscribe, Subscription, Text, WriteBuffer,
};

use crate::aliases::{InboundAliases, OutboundAliases};
use crate::outbound::Stage;
use crate::timers::Timers;
use crate::{Delivery, Event, Limits, PendingAck, Session, SharedDelivery, Violation};

/// Which side of the connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// We answer; the peer subscribes and pings.
    Server,
    /// We ask.
    Client,
}

/// The protocol state of one Network Connection after CONNECT and CONNACK, with the [`Session`] that it serves.
///
/// Every method that may answer appends encoded packets to `out`; nothing is sent by itself. After a
/// [`Violation`] the connection is over: tell the peer with [`Connection::disconnect`] and close.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    version: ProtocolVersion,
    limits: Limits,
    session: Session,
    timers: Timers,
    inbound_aliases: InboundAliases,
    /// `None`: the peer takes none `[MQTT-3.1.2-27]`. Boxed, as whatever few connections need.
    outbound_aliases: Option<Box<OutboundAliases>>,
    /// QoS 1 and 2 messages of the peer that count against our Receive Maximum. Below zero, at most by that
    /// maximum, where the peer ended handshakes of earlier connections: its quota grows by each PUBCOMP, even
    /// one for a PUBREL that took none of it (MQTT 5.0 §4.9).
    received_open: i32,
    /// Our QoS 1 and 2 messages, sent or sent again on this connection, that count against the peer's Receive
    /// Maximum. More than that only by PUBRELs, which wait for no quota `[MQTT-3.3.4-8]`, `[MQTT-3.3.4-10]`.
    sent_open: u32,
    /// `None`: nothing was broken off.
    recovery: Option<Box<Recovery>>,
}

/// What is under way from earlier connections, and what the peer begins again on this one.
#[derive(Debug, Default)]
struct Recovery {
    /// QoS 2 messages of earlier connections that the peer has neither repeated nor released on this one.
    untouched: BTreeSet<PacketId>,
    /// Of QoS 2 messages that came again without DUP on this connection, a hash of what came last: see
    /// [`Violation::PacketIdInUse`].
    repeated: HashMap<PacketId, u64>,
    /// Resending after resumption: sequence number that comes next, and one past the last. Nothing but spent quota
    /// interrupts it, so that no new message overtakes those that wait.
    resend: Option<(u64, u64)>,
    /// Messages that were to be sent again and are too large for this connection.
    dropped: VecDeque<DroppedResend>,
}

/// A message that was to be sent again and never will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedResend {
    /// That of its PUBLISH.
    pub packet_id: PacketId,
    /// Where a share group chose the peer for it.
    pub shared: Option<SharedDelivery>,
    /// [`Delivery::stored`].
    pub stored: Option<NonZeroU64>,
}

/// What became of a delivery.
#[derive(Debug)]
pub enum Sent {
    /// Written; `Some` where an acknowledgement will come.
    Written(Option<PacketId>),
    /// Its time was over: dropped `[MQTT-3.3.2-5]`.
    Expired,
    /// Larger than the peer's Maximum Packet Size: dropped `[MQTT-3.1.2-25]`.
    TooLarge,
    /// No send quota: given back, to be tried again after the next [`Event::Delivered`].
    Blocked(Delivery),
}

impl Connection {
    /// A connection whose CONNECT and CONNACK have passed. What `session` has under way is sent again by
    /// [`Connection::resume`].
    pub fn new(role: Role, version: ProtocolVersion, limits: Limits, session: Session, now: Instant) -> Self {
        let aliases = |maximum| if version.is_v5() { maximum } else { 0 };
        Self {
            role,
            version,
            limits,
            timers: Timers::new(now),
            inbound_aliases: InboundAliases::new(aliases(limits.topic_alias_maximum)),
            outbound_aliases: NonZeroU16::new(aliases(limits.peer_topic_alias_maximum))
                .map(|maximum| Box::new(OutboundAliases::new(maximum))),
            received_open: 0,
            sent_open: 0,
            recovery: (!session.awaiting_release.is_empty())
                .then(|| Box::new(Recovery { untouched: session.awaiting_release.clone(), ..Recovery::default() })),
            session,
        }
    }

    /// The version that is spoken.
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// What was agreed on.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Control packets written so far, but for DISCONNECT.
    pub fn packets_sent(&self) -> u64 {
        self.timers.packets_sent()
    }

    /// The session as it is now.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Ends the connection's state and gives the session back for the next one.
    pub fn into_session(mut self) -> Session {
        self.session.outbound.drop_requests();
        self.session.receive_maximum = self.session.receive_maximum.max(self.limits.receive_maximum);
        self.session
    }

    /// Takes a packet of the peer.
    ///
    /// # Errors
    /// The peer broke a rule; see the type's documentation.
    #[inline]
    pub fn handle_packet(&mut self, packet: Packet, now: Instant, out: &mut WriteBuffer) -> Result<Event, Violation> {
        self.timers.received(now);
        match packet {
            Packet::Publish(publish) => self.handle_publish(publish, now),
            Packet::PubAck(ack) => self.handle_puback(ack, now, out),
            Packet::PubRec(ack) => self.handle_pubrec(ack, now, out),
            Packet::PubRel(ack) => self.handle_pubrel(ack, now, out),
            Packet::PubComp(ack) => self.handle_pubcomp(ack, now, out),
            Packet::Disconnect(disconnect) => self.handle_disconnect(disconnect),
            Packet::Auth(auth) => Ok(Event::Auth(auth)),
            packet => match self.role {
                Role::Server => self.handle_client_packet(packet, now, out),
                Role::Client => self.handle_server_packet(packet),
            },
        }
    }

    /// Server: answers SUBSCRIBE or UNSUBSCRIBE, or client: anything that needs no state. `false`: larger than
    /// the peer's Maximum Packet Size, nothing written `[MQTT-3.1.2-24]`, `[MQTT-3.2.2-15]`.
    pub fn write(&mut self, packet: &Packet, now: Instant, out: &mut WriteBuffer) -> bool {
        let written = self.put(packet, out);
        if written {
            self.timers.sent(now);
        }
        written
    }

    /// As [`Connection::write`] for an acknowledgement with words on it, which are left out where the peer wants none
    /// `[MQTT-3.1.2-29]` or takes no packet of that size `[MQTT-3.4.2-2]`, `[MQTT-3.5.2-2]`, `[MQTT-3.9.2-1]`,
    /// `[MQTT-3.11.2-1]`.
    pub fn write_in_words(&mut self, mut packet: Packet, now: Instant, out: &mut WriteBuffer) -> bool {
        if self.limits.problem_information && self.write(&packet, now, out) {
            return true;
        }
        match &mut packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) => ack.properties = None,
            Packet::SubAck(suback) => suback.properties = AckProperties::default(),
            Packet::UnsubAck(unsuback) => unsuback.properties = AckProperties::default(),
            _ => {}
        }
        self.write(&packet, now, out)
    }

    /// Whether the peer takes a packet of that size.
    pub fn takes(&self, packet: &Packet) -> bool {
        self.limits.peer_maximum_packet_size == u32::MAX || self.encode_aside(packet).is_some()
    }

    fn put(&self, packet: &Packet, out: &mut WriteBuffer) -> bool {
        if self.limits.peer_maximum_packet_size == u32::MAX {
            packet.encode(self.version, out);
        } else {
            let Some(aside) = self.encode_aside(packet) else { return false };
            out.put_payload(&aside.to_bytes());
        }
        true
    }

    /// `None`: larger than the peer's Maximum Packet Size.
    fn encode_aside(&self, packet: &Packet) -> Option<WriteBuffer> {
        let mut aside = WriteBuffer::new();
        packet.encode(self.version, &mut aside);
        (aside.len() <= self.limits.peer_maximum_packet_size as usize).then_some(aside)
    }

    /// Appends DISCONNECT. A server writes nothing at 3.1.1, which has none in this direction. A code that
    /// DISCONNECT cannot carry is told as a Protocol Error `[MQTT-3.14.2-1]`.
    pub fn disconnect(&mut self, reason: ReasonCode, out: &mut WriteBuffer) {
        self.disconnect_with(reason, None, out);
    }

    /// Appends DISCONNECT for what the peer did, in words too where the peer takes a packet of that size
    /// `[MQTT-3.14.2-3]`; nothing where it would not listen.
    pub fn disconnect_for(&mut self, violation: &Violation, out: &mut WriteBuffer) {
        if !violation.ends_in_silence() {
            self.disconnect_with(violation.reason(), Text::try_from(violation.to_string()).ok(), out);
        }
    }

    fn disconnect_with(&mut self, reason: ReasonCode, words: Option<Text>, out: &mut WriteBuffer) {
        if self.role == Role::Server && !self.version.is_v5() {
            return; // 3.1.1 [MQTT-4.8.0-1]
        }
        let is_sayable = reason.is_valid_in(PacketType::Disconnect);
        let plain = Disconnect::new(if is_sayable { reason } else { ReasonCode::ProtocolError });
        let in_words = words.map(|words| {
            let properties = DisconnectProperties { reason_string: Some(words), ..DisconnectProperties::default() };
            Disconnect { properties: Some(Box::new(properties)), ..plain.clone() }
        });
        for disconnect in in_words.into_iter().chain([plain]) {
            if self.put(&Packet::Disconnect(disconnect), out) {
                return;
            }
        }
    }

    /// When [`Connection::handle_timeout`] wants to be called; `None` without Keep Alive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.role {
            Role::Server => self.timers.receive_deadline(self.limits.keep_alive),
            Role::Client => {
                match (self.timers.ping_due(self.limits.keep_alive), self.timers.ping_deadline(self.limits.keep_alive))
                {
                    (Some(due), Some(deadline)) => Some(due.min(deadline)),
                    (due, deadline) => due.or(deadline),
                }
            }
        }
    }

    /// Time has passed. A client whose PINGREQ is due sends a plain one.
    ///
    /// # Errors
    /// [`Violation::KeepAlive`] at a server, [`Violation::PingResponse`] at a client.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut WriteBuffer) -> Result<(), Violation> {
        match self.role {
            Role::Server => match self.timers.receive_deadline(self.limits.keep_alive) {
                Some(deadline) if deadline <= now => Err(Violation::KeepAlive), // [MQTT-3.1.2-22]
                _ => Ok(()),
            },
            Role::Client => {
                if self.timers.ping_deadline(self.limits.keep_alive).is_some_and(|deadline| deadline <= now) {
                    return Err(Violation::PingResponse);
                }
                if self.timers.ping_due(self.limits.keep_alive).is_some_and(|due| due <= now) {
                    self.ping(PingReq::PLAIN, now, out);
                }
                Ok(())
            }
        }
    }

    /// Client: sends a PINGREQ now, plain or extended.
    pub fn ping(&mut self, ping: PingReq, now: Instant, out: &mut WriteBuffer) {
        self.timers.ping_sent(now);
        Packet::PingReq(ping).encode(self.version, out);
    }

    fn recovery(&mut self) -> &mut Recovery {
        self.recovery.get_or_insert_default()
    }

    fn handle_client_packet(
        &mut self,
        packet: Packet,
        now: Instant,
        out: &mut WriteBuffer,
    ) -> Result<Event, Violation> {
        match packet {
            Packet::Subscribe(subscribe) => {
                self.check_subscribe(&subscribe)?;
                Ok(Event::Subscribe(subscribe))
            }
            Packet::Unsubscribe(unsubscribe) => Ok(Event::Unsubscribe(unsubscribe)),
            Packet::PingReq(ping) => {
                self.write(&Packet::PingResp, now, out); // [MQTT-3.12.4-1]
                Ok(Event::Ping(ping))
            }
            Packet::Connect(_) => Err(Violation::SecondConnect), // [MQTT-3.1.0-2]
            packet => Err(Violation::Unexpected(packet.packet_type())),
        }
    }

    /// At v5 the client was told in CONNACK what is not served. 3.1.1 has no word for it: what of it is asked for
    /// is the application's to refuse.
    fn check_subscribe(&self, subscribe: &Subscribe) -> Result<(), Violation> {
        let limits = &self.limits;
        if !self.version.is_v5() {
            return Ok(());
        }
        if subscribe.subscription_identifier.is_some() && !limits.subscription_identifiers_available {
            return Err(Violation::SubscriptionIdentifiersOff);
        }
        for Subscription { filter, .. } in &subscribe.subscriptions {
            if filter.is_shared() && !limits.shared_subscriptions_available {
                return Err(Violation::SharedSubscriptionsOff);
            }
            if filter.has_wildcard() && !limits.wildcard_subscriptions_available {
                return Err(Violation::WildcardSubscriptionsOff);
            }
        }
        Ok(())
    }

    fn handle_server_packet(&mut self, packet: Packet) -> Result<Event, Violation> {
        match packet {
            Packet::SubAck(suback) => {
                self.close_request(suback.packet_id)?;
                Ok(Event::SubAck(suback))
            }
            Packet::UnsubAck(unsuback) => {
                self.close_request(unsuback.packet_id)?;
                Ok(Event::UnsubAck(unsuback))
            }
            Packet::PingResp => {
                self.timers.ping_answered();
                Ok(Event::PingResp)
            }
            packet => Err(Violation::Unexpected(packet.packet_type())),
        }
    }

    fn handle_disconnect(&mut self, disconnect: Disconnect) -> Result<Event, Violation> {
        if self.role == Role::Client && !self.version.is_v5() {
            return Err(Violation::Unexpected(PacketType::Disconnect)); // 3.1.1 §3.14: a Client's word only
        }
        if let (Role::Server, Some(properties)) = (self.role, &disconnect.properties)
            && properties.server_reference.is_some()
        {
            return Err(Violation::ServerReference);
        }
        if self.role == Role::Server && disconnect.reason.is_servers_word() {
            return Err(Violation::ServersReason(disconnect.reason)); // [MQTT-3.14.2-1]
        }
        Ok(Event::Disconnect(disconnect))
    }
}

#[cfg(test)]
mod tests;
