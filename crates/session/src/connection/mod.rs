//! One Network Connection's protocol state, in either role.

mod inbound;
mod outbound;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU16;
use std::time::Instant;

use tenbin_codec::{
    Ack, AckProperties, Disconnect, DisconnectProperties, Packet, PacketId, PacketType, PingReq, ProtocolVersion,
    ReasonCode, Subscribe, Subscription, Text, WriteBuffer,
};

use crate::aliases::{InboundAliases, OutboundAliases};
use crate::outbound::Stage;
use crate::timers::Timers;
use crate::{Delivery, Event, Limits, PendingAck, Session, SharedDelivery, Stored, TakenAck, Violation};

/// Side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Answers; its peer subscribes and pings.
    Server,
    /// Subscribes and pings.
    Client,
}

/// Protocol state of one Network Connection after CONNECT and CONNACK, with its [`Session`].
///
/// Methods append encoded packets to `out`; nothing else is sent. After a [`Violation`], report it with
/// [`Connection::disconnect`] and close the connection.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    version: ProtocolVersion,
    limits: Limits,
    session: Session,
    timers: Timers,
    inbound_aliases: InboundAliases,
    /// `None` if the peer accepts no aliases `[MQTT-3.1.2-27]`. Boxed, since few connections need it.
    outbound_aliases: Option<Box<OutboundAliases>>,
    /// Open QoS 1 and 2 messages of the peer, which count against this side's Receive Maximum.
    ///
    /// Negative, at most down to minus that maximum, if the peer completed handshakes of earlier connections: each
    /// PUBCOMP raises its quota, even for a PUBREL that used none (MQTT 5.0 §4.9).
    received_open: i32,
    /// QoS 1 and 2 messages sent or sent again on this connection that count against the peer's Receive Maximum.
    ///
    /// Only PUBRELs can raise it above that maximum, since they need no quota `[MQTT-3.3.4-8]`, `[MQTT-3.3.4-10]`.
    sent_open: u32,
    /// `None` if no handshake was interrupted.
    recovery: Option<Box<Recovery>>,
}

/// Interrupted handshakes of earlier connections, and messages that the peer repeats on this one.
#[derive(Debug, Default)]
struct Recovery {
    /// QoS 2 messages of earlier connections that the peer has neither repeated nor released on this one.
    untouched: BTreeSet<PacketId>,
    /// QoS 2 messages that came again without DUP on this connection, with a hash of the last copy: see
    /// [`Violation::PacketIdInUse`].
    repeated: HashMap<PacketId, u64>,
    /// Messages to send again: next sequence number, and one past the last. Only lack of quota interrupts this, so that
    /// no new message overtakes them.
    resend: Option<(u64, u64)>,
    /// Sequence numbers of messages to send again that are held back: see [`Connection::hold_resends`].
    held: BTreeSet<u64>,
    /// Bytes of memory of the messages in `held`.
    held_bytes: usize,
    /// Those that were held back, and are to be sent again before the messages of `resend`, which are newer.
    freed: BTreeSet<u64>,
    /// Messages to send again that are too large for this connection.
    dropped: VecDeque<DroppedResend>,
}

impl Recovery {
    /// Whether nothing of it is left.
    fn is_over(&self) -> bool {
        let Self { untouched, repeated, resend, held, held_bytes: _, freed, dropped } = self;
        let has_handshakes = !untouched.is_empty() || !repeated.is_empty();
        !has_handshakes && resend.is_none() && held.is_empty() && freed.is_empty() && dropped.is_empty()
    }

    /// Whether the message with this sequence number waits to be sent again.
    fn is_to_resend(&self, sequence: u64) -> bool {
        self.resend.is_some_and(|(next, end)| (next..end).contains(&sequence))
            || self.held.contains(&sequence)
            || self.freed.contains(&sequence)
    }
}

/// An in-flight message that cannot be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedResend {
    /// Packet Identifier of its PUBLISH.
    pub packet_id: PacketId,
    /// Present if a share group chose the peer.
    pub shared: Option<SharedDelivery>,
    /// [`Delivery::stored`].
    pub stored: Option<Stored>,
}

/// A message of a share group that was sent on this connection, whose receiver has not wholly acknowledged it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Packet Identifier of its PUBLISH.
    pub packet_id: PacketId,
    /// Data for the share group.
    pub shared: SharedDelivery,
    /// Whether [`Connection::take_late`] may take it.
    pub may_be_taken: bool,
    /// Whether that was done.
    pub is_late: bool,
}

/// Result of sending a delivery.
#[derive(Debug)]
pub enum Sent {
    /// Written; `Some` if an acknowledgement is expected.
    Written(Option<PacketId>),
    /// Expired, and not to be sent `[MQTT-3.3.2-5]`.
    Expired(Delivery),
    /// Larger than the peer's Maximum Packet Size, and dropped `[MQTT-3.1.2-25]`.
    TooLarge,
    /// No send quota: returned, to be tried again after the next [`Event::Delivered`].
    Blocked(Delivery),
}

impl Connection {
    /// State of a connection after CONNECT and CONNACK. [`Connection::resume`] sends in-flight messages of `session`
    /// again.
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

    /// Protocol version of the connection.
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Agreed limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of control packets written so far, except DISCONNECT.
    pub fn packets_sent(&self) -> u64 {
        self.timers.packets_sent()
    }

    /// The session of the connection.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Ends the connection and returns its session for the next one.
    pub fn into_session(mut self) -> Session {
        self.session.outbound.drop_requests();
        self.session.receive_maximum = self.session.receive_maximum.max(self.limits.receive_maximum);
        self.session
    }

    /// Handles a packet of the peer.
    ///
    /// # Errors
    /// The peer violated the protocol; see the type's documentation.
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

    /// Writes an answer to SUBSCRIBE or UNSUBSCRIBE (server), or any packet without state (client).
    ///
    /// `false` if it exceeds the peer's Maximum Packet Size; then nothing is written `[MQTT-3.1.2-24]`,
    /// `[MQTT-3.2.2-15]`.
    pub fn write(&mut self, packet: &Packet, now: Instant, out: &mut WriteBuffer) -> bool {
        let written = self.put(packet, out);
        if written {
            self.timers.sent(now);
        }
        written
    }

    /// Writes an acknowledgement with properties, like [`Connection::write`].
    ///
    /// Omits the properties if the peer rejects them `[MQTT-3.1.2-29]` or the packet is too large for it
    /// `[MQTT-3.4.2-2]`, `[MQTT-3.5.2-2]`, `[MQTT-3.9.2-1]`, `[MQTT-3.11.2-1]`.
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

    /// Whether the packet is within the peer's Maximum Packet Size.
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

    /// Encodes a packet separately; `None` if it exceeds the peer's Maximum Packet Size.
    fn encode_aside(&self, packet: &Packet) -> Option<WriteBuffer> {
        let mut aside = WriteBuffer::new();
        packet.encode(self.version, &mut aside);
        (aside.len() <= self.limits.peer_maximum_packet_size as usize).then_some(aside)
    }

    /// Appends DISCONNECT. A 3.1.1 server appends nothing, since the version has no DISCONNECT in this direction.
    ///
    /// Protocol Error replaces a Reason Code that DISCONNECT cannot carry `[MQTT-3.14.2-1]`.
    pub fn disconnect(&mut self, reason: ReasonCode, out: &mut WriteBuffer) {
        self.disconnect_with(reason, None, out);
    }

    /// Appends DISCONNECT for a violation, with a Reason String if the packet is not too large for the peer
    /// `[MQTT-3.14.2-3]`.
    ///
    /// Appends nothing if the peer would not read it.
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

    /// When [`Connection::handle_timeout`] must be called; `None` without Keep Alive.
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

    /// Handles the passage of time. A client sends a plain PINGREQ if one is due.
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

    /// Client: sends a PINGREQ, plain or extended.
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

    /// Checks a SUBSCRIBE against the limits in CONNACK. 3.1.1 has no such limits: there the application must refuse.
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
            return Err(Violation::Unexpected(PacketType::Disconnect)); // 3.1.1 §3.14: only clients send it
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
