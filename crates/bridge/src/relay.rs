//! The relay: packets of one side become packets of the other one, without I/O.

use std::collections::HashMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Instant;

use tenbin_codec::{
    Ack, ConnAck, Disconnect, Packet, PacketId, PacketType, PingReq, ProtocolVersion, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, Subscription, SubscriptionOptions, Text, TopicFilter, UserProperty, WriteBuffer,
};

use crate::error::{Failure, FailureKind};
use crate::flow::{Flow, Waiting};
use crate::rule::{self, Rule};
use crate::settings::Settings;
use crate::status::{Dropped, Side, Status};
use crate::suspect::Suspect;

/// User Property that each bridge adds to its messages; the value is its name.
pub(crate) const PASSED: &str = "tenbin-bridge";

/// Unwritten bytes from which QoS 0 messages are dropped.
const SLOW_BYTES: usize = 1 << 20;
/// Unwritten acknowledgements to a side, in bytes, that no broker needs which keeps to Receive Maximum and reads.
const ACK_BYTES_MAX: usize = 1 << 20;
/// User Properties of a message from which no further one is added: brokers refuse more, this one by default by DISCONNECT.
const USER_PROPERTIES_MAX: usize = 1000;

/// Both sides of a bridge while it has both connections.
pub(crate) struct Relay {
    settings: Arc<Settings>,
    status: Arc<Status>,
    /// Local and remote.
    pub(crate) halves: [Half; 2],
    /// From an earlier connection. Until an answer it is under way alone, so that no other message is blamed.
    suspect: Option<Suspect>,
    /// The bridge's state is to be told once the suspect is answered: it could be the reason of a loss, too.
    owes_state: bool,
    /// Refused subscriptions, for the status.
    refusals: Vec<String>,
}

/// One side.
pub(crate) struct Half {
    pub(crate) agreed: Agreed,
    /// Packets to this side.
    pub(crate) out: WriteBuffer,
    /// Bytes of acknowledgements in `out`, at most.
    ack_bytes: usize,
    /// Messages of this side.
    flow: Flow,
    /// Subscriptions that this side has not answered.
    requests: HashMap<PacketId, TopicFilter>,
    /// A PINGREQ was sent, since when nothing has come.
    awaits_ping: bool,
}

/// Limits of a connection, as its broker has agreed to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Agreed {
    version: ProtocolVersion,
    /// `None` = the broker wants no PINGREQ.
    pub(crate) keep_alive: Option<NonZeroU16>,
    session_present: bool,
    receive_maximum: u16,
    maximum_packet_size: u32,
    maximum_qos: QoS,
    retain_available: bool,
}

impl Agreed {
    pub(crate) fn new(version: ProtocolVersion, keep_alive: NonZeroU16, connack: &ConnAck) -> Self {
        let properties = &connack.properties;
        Self {
            version,
            keep_alive: properties.server_keep_alive.map_or(Some(keep_alive), NonZeroU16::new),
            session_present: connack.session_present,
            receive_maximum: properties.receive_maximum.map_or(u16::MAX, NonZeroU16::get),
            maximum_packet_size: properties.maximum_packet_size.map_or(u32::MAX, NonZeroU32::get),
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain_available: properties.retain_available.unwrap_or(true),
        }
    }

    /// Maximum Packet Size for the other broker. A larger packet cannot go on to this one, even if its topic becomes empty.
    pub(crate) fn packet_size_from_other(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.maximum_packet_size.saturating_add(u16::MAX.into())).filter(|size| *size < NonZeroU32::MAX)
    }
}

impl Half {
    fn new(agreed: Agreed) -> Self {
        let (out, flow, requests) = (WriteBuffer::new(), Flow::default(), HashMap::new());
        Self { agreed, out, ack_bytes: 0, flow, requests, awaits_ping: false }
    }

    fn write(&mut self, packet: &Packet) {
        packet.encode(self.agreed.version, &mut self.out);
    }

    fn acknowledge(&mut self, kind: PacketType, id: PacketId, reason: ReasonCode) {
        let before = self.out.len();
        Ack::new(id, reason).encode(kind, self.agreed.version, &mut self.out);
        self.ack_bytes = self.ack_bytes.min(before) + self.out.len() - before;
    }

    /// Whether the broker reads too slowly for QoS 0 messages.
    fn is_slow(&self) -> bool {
        self.out.len() >= SLOW_BYTES
    }

    /// Whether the broker accepts a packet of this size.
    fn takes(&self, publish: &Publish) -> bool {
        let maximum = self.agreed.maximum_packet_size as usize;
        if bytes_at_most(publish) <= maximum {
            return true; // As nearly always.
        }
        let mut aside = WriteBuffer::new();
        Packet::Publish(publish.clone()).encode(self.agreed.version, &mut aside);
        !aside.is_empty() && aside.len() <= maximum
    }

    /// Makes the subscriptions whose messages come from this side. Each has a packet, so that it fits.
    ///
    /// Identifiers are taken from the end. Until the answer, no message to this side uses them.
    fn subscribe(&mut self, side: Side, rules: &[Rule], maximum_qos: QoS) {
        let ids = (1..=u16::MAX).rev().filter_map(PacketId::new);
        for ((filter, qos), id) in rules.iter().filter_map(|rule| Some((rule.source(side)?, rule.qos()))).zip(ids) {
            let options = SubscriptionOptions {
                qos: qos.min(maximum_qos),
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::IfNew,
            };
            let subscription = Subscription { filter: filter.clone(), options };
            self.write(&Packet::Subscribe(Subscribe {
                packet_id: id,
                subscription_identifier: None,
                user_properties: Vec::new(),
                subscriptions: vec![subscription],
            }));
            self.requests.insert(id, filter.clone());
        }
    }
}

impl Relay {
    /// Subscribes at both sides, of which both have a new connection.
    pub(crate) fn new(
        settings: Arc<Settings>,
        status: Arc<Status>,
        agreed: [Agreed; 2],
        suspect: Option<Suspect>,
    ) -> Self {
        let halves = agreed.map(Half::new);
        let mut relay = Self { settings, status, halves, suspect, owes_state: false, refusals: Vec::new() };
        for side in Side::BOTH {
            let maximum_qos = relay.half(side.other()).agreed.maximum_qos;
            relay.halves[side as usize].subscribe(side, &relay.settings.rules, maximum_qos);
        }
        relay
    }

    pub(crate) fn half(&mut self, side: Side) -> &mut Half {
        &mut self.halves[side as usize]
    }

    /// Whether both brokers have answered all subscriptions.
    pub(crate) fn is_subscribed(&self) -> bool {
        Side::BOTH.into_iter().all(|side| self.is_subscribed_at(side))
    }

    /// Whether this broker has answered all subscriptions.
    pub(crate) fn is_subscribed_at(&self, side: Side) -> bool {
        self.halves[side as usize].requests.is_empty()
    }

    /// Subscriptions that the brokers have refused; `None` if there are none.
    pub(crate) fn refusals(&self) -> Option<String> {
        (!self.refusals.is_empty()).then(|| self.refusals.join("; "))
    }

    /// Whether this side is read.
    ///
    /// Receive Maximum bounds the messages of a 5.0 broker. An older one is not read while too many of its messages wait.
    /// The other side is 5.0 then, so it is always read, and its acknowledgements make room.
    pub(crate) fn is_read(&self, side: Side) -> bool {
        let half = &self.halves[side as usize];
        half.agreed.version.is_v5() || half.flow.waiting() < usize::from(self.settings.receive_maximum.get())
    }

    /// Handles a packet of a broker.
    pub(crate) fn receive(&mut self, from: Side, packet: Packet, now: Instant) -> Result<(), FailureKind> {
        match packet {
            Packet::Publish(publish) => self.publish(from, publish, now)?,
            Packet::PubRel(ack) => self.release(from, ack.packet_id),
            Packet::PubAck(ack) => self.acknowledged(from, PacketType::PubAck, &ack, now)?,
            Packet::PubRec(ack) => self.acknowledged(from, PacketType::PubRec, &ack, now)?,
            Packet::PubComp(ack) => self.completed(from, ack.packet_id, now),
            Packet::SubAck(suback) => self.subscribed(from, &suback, now),
            Packet::PingResp => {}
            Packet::Disconnect(Disconnect { reason, properties }) => {
                let detail = properties.and_then(|properties| properties.reason_string).map(|text| text.to_string());
                return Err(FailureKind::Disconnected { reason, detail });
            }
            packet => return Err(FailureKind::Unexpected(packet.packet_type())),
        }
        for side in Side::BOTH {
            self.status.set_in_flight(side, self.halves[side as usize].flow.len());
        }
        if self.halves.iter().any(|half| half.ack_bytes > ACK_BYTES_MAX) { Err(FailureKind::Unread) } else { Ok(()) }
    }

    /// Records that bytes of this side have come. PINGRESP may be long behind other packets.
    pub(crate) fn hear(&mut self, side: Side) {
        self.half(side).awaits_ping = false;
    }

    /// Sends a PINGREQ, `seconds` after the last one.
    ///
    /// # Errors
    /// The side has been silent since then, although it was read.
    pub(crate) fn ping(&mut self, side: Side, seconds: u64) -> Result<(), FailureKind> {
        let is_read = self.is_read(side);
        let half = self.half(side);
        half.write(&Packet::PingReq(PingReq::PLAIN));
        if std::mem::replace(&mut half.awaits_ping, true) && is_read {
            return Err(FailureKind::NoAnswer(seconds));
        }
        Ok(())
    }

    /// Publishes the bridge's state at the remote broker, if it takes packets of that size.
    pub(crate) fn tell_state(&mut self, is_connected: bool) {
        let Some(topic) = self.settings.state_topic.clone() else { return };
        self.owes_state = is_connected && self.is_careful(Side::Local);
        if self.owes_state {
            return;
        }
        let remote = self.half(Side::Remote);
        let retain = remote.agreed.retain_available;
        let payload: &'static [u8] = if is_connected { b"1" } else { b"0" };
        let state = Publish { retain, ..Publish::new(topic, payload.into()) };
        if remote.takes(&state) {
            remote.write(&Packet::Publish(state));
        } else {
            self.drop_message(Side::Local, &state, QoS::AtMostOnce, Dropped::TooLarge);
        }
    }

    /// Whether messages of this side go one by one, as one of them may be the reason of a loss.
    fn is_careful(&self, from: Side) -> bool {
        self.suspect.as_ref().is_some_and(|suspect| suspect.is_from(from))
    }

    /// Forgets the suspect of this side: it is answered, or dropped.
    fn clear_suspect(&mut self, from: Side) {
        self.suspect.take_if(|suspect| suspect.is_from(from));
        if self.owes_state && !self.is_careful(Side::Local) {
            self.tell_state(true);
        }
    }

    /// The message that may be the reason of the loss, with the losses from before.
    pub(crate) fn suspect_after(&self, failure: &Failure) -> Option<Suspect> {
        let from = failure.side.other();
        match self.halves[from as usize].flow.oldest() {
            Some((id, topic)) if failure.kind.is_of_a_packet() => {
                Some(Suspect::after(self.suspect.as_ref(), from, id, topic))
            }
            _ => self.suspect.clone(),
        }
    }

    pub(crate) fn disconnect(&mut self, side: Side, reason: ReasonCode) {
        self.half(side).write(&Packet::Disconnect(Disconnect::new(reason)));
    }

    fn publish(&mut self, from: Side, mut publish: Publish, now: Instant) -> Result<(), FailureKind> {
        if publish.topic.is_empty() || publish.topic_alias.is_some() {
            return Err(FailureKind::Unexpected(PacketType::Publish)); // The bridge accepts no Topic Alias.
        }
        let source_qos = publish.qos;
        if let Err(reason) = self.translate(from, &mut publish) {
            self.drop_message(from, &publish, source_qos, reason);
            return Ok(());
        }
        if self.suspect.as_ref().is_some_and(|suspect| suspect.is_hopeless(from, &publish)) {
            let (bridge, by) = (self.settings.name.as_str(), from.other().name());
            let topic = publish.topic.text().as_str();
            tracing::error!(bridge, by, topic, "a broker refuses this message by DISCONNECT, so the bridge drops it");
            self.drop_message(from, &publish, source_qos, Dropped::Refused);
            self.clear_suspect(from);
        } else if source_qos.is_acknowledged() {
            let receive_maximum = self.settings.receive_maximum.get();
            let source = self.half(from);
            source.flow.wait(Waiting { since: now, source_qos, publish });
            if source.agreed.version.is_v5() && source.flow.exceeds(receive_maximum) {
                return Err(FailureKind::TooMany(receive_maximum));
            }
            self.send_waiting(from, now);
        } else if self.is_careful(from) || self.half(from.other()).is_slow() {
            self.drop_message(from, &publish, source_qos, Dropped::Slow);
        } else {
            self.half(from.other()).write(&Packet::Publish(publish));
            self.status.count_message(from);
        }
        Ok(())
    }

    /// Makes a message of the other side out of a message.
    fn translate(&mut self, from: Side, publish: &mut Publish) -> Result<(), Dropped> {
        let settings = Arc::clone(&self.settings);
        let name = &settings.name;
        let passed = publish.properties.iter().flat_map(|properties| &properties.user_properties);
        if passed.into_iter().any(|property| property.name.as_str() == PASSED && property.value == *name) {
            return Err(Dropped::Loop);
        }
        let topic = rule::translate(&settings.rules, from, &publish.topic).ok_or(Dropped::Unmatched)?;
        publish.topic = topic.map_err(|()| Dropped::TooLarge)?;
        publish.subscription_identifiers.clear();
        let destination = self.half(from.other());
        publish.qos = publish.qos.min(destination.agreed.maximum_qos);
        publish.retain &= destination.agreed.retain_available;
        if destination.agreed.version.is_v5() {
            let hop = UserProperty::new(Text::from_static(PASSED), name.clone());
            let properties = &mut publish.properties.get_or_insert_default().user_properties;
            if properties.len() >= USER_PROPERTIES_MAX {
                return Err(Dropped::TooLarge);
            }
            properties.push(hop);
        }
        if destination.takes(publish) { Ok(()) } else { Err(Dropped::TooLarge) }
    }

    /// Acknowledges a message that is not passed on. The handshake of QoS 2 goes on at the destination, which does not know
    /// the message, or has it from an earlier connection.
    fn drop_message(&mut self, from: Side, publish: &Publish, source_qos: QoS, reason: Dropped) {
        if self.status.count_dropped(reason) {
            tracing::warn!(
                bridge = self.settings.name.as_str(),
                from = from.name(),
                topic = publish.topic.text().as_str(),
                reason = reason.name(),
                "the bridge drops a message; further ones of the next minute are only counted"
            );
        }
        if let Some(id) = publish.packet_id {
            self.half(from).acknowledge(first_answer(source_qos), id, ReasonCode::Success);
        }
    }

    /// Sends the messages for which the destination has quota, or room.
    pub(crate) fn send_waiting(&mut self, from: Side, now: Instant) {
        let is_careful = self.is_careful(from);
        let [source, destination] = self.both(from);
        let quota = if is_careful { 1 } else { destination.agreed.receive_maximum };
        let mut sent = 0;
        let is_used = |requests: &HashMap<PacketId, TopicFilter>, id| requests.contains_key(&id);
        while let Some(waiting) =
            source.flow.next(quota, destination.is_slow(), |id| is_used(&destination.requests, id))
        {
            let Waiting { since, source_qos, mut publish } = waiting;
            let Some(id) = publish.packet_id else { continue };
            let is_clearing = destination.agreed.session_present && source.flow.may_be_stale(&publish);
            if is_clearing {
                destination.acknowledge(PacketType::PubRel, id, ReasonCode::Success);
            }
            if let Some(expiry) = publish.properties.as_mut().and_then(|found| found.message_expiry_interval.as_mut()) {
                // Not 0, which some brokers take for no expiry.
                *expiry = expiry.saturating_sub(now.saturating_duration_since(since).as_secs() as u32).max(1);
            }
            if !publish.qos.is_acknowledged() {
                sent += 1;
                (publish.packet_id, publish.dup) = (None, false);
                destination.write(&Packet::Publish(publish));
                source.acknowledge(first_answer(source_qos), id, ReasonCode::Success);
                continue;
            }
            source.flow.open(&publish, id, source_qos, is_clearing);
            destination.write(&Packet::Publish(publish));
        }
        (0..sent).for_each(|_| self.status.count_message(from));
    }

    /// PUBREL of a source.
    fn release(&mut self, from: Side, id: PacketId) {
        let [source, destination] = self.both(from);
        if destination.agreed.maximum_qos < QoS::ExactlyOnce {
            source.acknowledge(PacketType::PubComp, id, ReasonCode::Success);
            return;
        }
        source.flow.release(id);
        destination.acknowledge(PacketType::PubRel, id, ReasonCode::Success);
    }

    /// PUBACK or PUBREC of a destination.
    fn acknowledged(&mut self, by: Side, kind: PacketType, ack: &Ack, now: Instant) -> Result<(), FailureKind> {
        let (id, mut reason) = (ack.packet_id, ack.reason);
        let from = by.other();
        let Some(open) = self.half(from).flow.answered(id) else { return Ok(()) };
        if first_answer(open.qos) != kind {
            return Err(FailureKind::Unexpected(kind));
        }
        if open.is_repeated && reason == ReasonCode::PacketIdentifierInUse {
            reason = ReasonCode::Success; // The identifier is in use by this message.
        }
        if !reason.is_error() {
            // PUBREC may come twice.
            open.topic.iter().for_each(|_| self.status.count_message(from));
        } else if self.status.count_dropped(Dropped::Refused) {
            let (bridge, by) = (self.settings.name.as_str(), by.name());
            let topic = open.topic.as_ref().map(|topic| topic.text().as_str());
            let event = "a broker refuses a message of the bridge; further ones of the next minute are only counted";
            tracing::warn!(bridge, by, topic, %reason, "{event}");
        }
        self.clear_suspect(from);
        let source = self.half(from);
        let is_ended = kind == PacketType::PubAck || reason.is_error();
        if is_ended {
            source.flow.close(id);
        }
        let told = if reason.is_error() { reason } else { ReasonCode::Success };
        source.acknowledge(first_answer(open.source_qos), id, told);
        if is_ended {
            self.send_waiting(from, now);
        }
        Ok(())
    }

    /// PUBCOMP of a destination.
    fn completed(&mut self, by: Side, id: PacketId, now: Instant) {
        let from = by.other();
        let source = self.half(from);
        if !source.flow.cleared(id) {
            source.acknowledge(PacketType::PubComp, id, ReasonCode::Success);
            self.send_waiting(from, now);
        }
    }

    fn subscribed(&mut self, by: Side, suback: &SubAck, now: Instant) {
        let filter = self.half(by).requests.remove(&suback.packet_id);
        if let (Some(filter), Some(reason)) = (filter, suback.reasons.iter().find(|reason| reason.is_error())) {
            let (bridge, filter) = (self.settings.name.as_str(), filter.text().as_str());
            tracing::error!(bridge, side = by.name(), filter, %reason, "a broker refuses a subscription of the bridge");
            self.refusals.push(format!("{} broker: it refuses the subscription {filter:?}: {reason}", by.name()));
        }
        self.send_waiting(by.other(), now);
    }

    /// The half from which messages come, and the other one.
    fn both(&mut self, from: Side) -> [&mut Half; 2] {
        let [local, remote] = &mut self.halves;
        match from {
            Side::Local => [local, remote],
            Side::Remote => [remote, local],
        }
    }
}

/// Type of the acknowledgement of a PUBLISH.
fn first_answer(qos: QoS) -> PacketType {
    if qos == QoS::ExactlyOnce { PacketType::PubRec } else { PacketType::PubAck }
}

/// Upper bound of a packet's size.
fn bytes_at_most(publish: &Publish) -> usize {
    const HEADERS: usize = 64;
    let properties = publish.properties.as_deref().map_or(0, |properties| {
        let texts = [&properties.content_type, &properties.response_topic];
        let texts: usize = texts.iter().map(|text| text.as_ref().map_or(0, Text::len)).sum();
        let pairs = properties.user_properties.iter();
        let pairs: usize = pairs.map(|pair| 5 + pair.name.len() + pair.value.len()).sum();
        texts + pairs + properties.correlation_data.as_ref().map_or(0, |data| data.len())
    });
    HEADERS + publish.topic.as_bytes().len() + publish.payload.len() + properties
}

#[cfg(test)]
mod tests;
