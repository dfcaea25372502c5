//! Messages of the broker on their way to the client.

use std::time::Instant;

use tenbin_codec::{Ack, Packet, PacketId, Publish, QoS, ReasonCode, TopicName};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, PubAck, ReturnCode, ShortName, Topic};

use super::registering::register_size;
use super::{Action, End, GatewayPeer, PeerState, Reach};
use crate::outbox::{DeliveryStep, Form, Ids, InFlight, PINGREQ_BYTES, Queued};
use crate::output::{DropCause, Io};
use crate::reason::from_mqtt;
use crate::topic_ids::{Knowledge, TopicOwner};

/// Bytes of an MQTT-SN PUBLISH without its payload, with the long length.
const PUBLISH_HEADER: usize = 9;

impl GatewayPeer {
    /// A message of the broker.
    pub(super) fn deliver(&mut self, publish: Publish, io: &mut Io<'_>) -> Action {
        if let PeerState::Awake(awake) = &mut self.state {
            awake.quiet_pings = 0;
            awake.is_pinging = false;
        }
        if let Some(id) = publish.packet_id {
            match self.outbox.in_flight(id).map(|message| message.step) {
                // Repeated after a reconnection of the upstream: the client has it, or gets it again.
                Some(DeliveryStep::Received | DeliveryStep::Released) => {
                    self.acknowledge(id, QoS::ExactlyOnce, ReasonCode::Success, io);
                    return Action::Continue;
                }
                Some(_) => return Action::Continue,
                None if self.outbox.is_queued(id) => return Action::Continue,
                None => {}
            }
        }
        let Some(topic) = self.topic_of(&publish, io) else {
            self.give_up(publish.packet_id, publish.qos, ReasonCode::QuotaExceeded, io);
            return Action::Continue;
        };
        let Publish { qos, retain, dup, packet_id, payload, .. } = publish;
        self.outbox.push(Queued { topic, qos, retain, dup, packet_id, payload });
        self.deliver_waiting(io);
        if self.outbox.register.as_ref().is_some_and(|question| question.form != Form::Register) {
            self.ask_for_bytes(io);
        }
        if self.outbox.queued() > 0 {
            // It waits, and must not keep the read buffer of all clients alive.
            self.outbox.detach_last();
        }
        let (messages, bytes) = (self.settings().sleep_messages, self.settings().sleep_bytes);
        while self.outbox.drop_excess(messages, bytes) {
            io.output.drops.note(DropCause::BufferFull);
        }
        Action::Continue
    }

    /// Sends waiting messages as far as the client may get them.
    pub(super) fn deliver_waiting(&mut self, io: &mut Io<'_>) {
        self.paced_until = None;
        // A broker may send messages of a subscription before its SUBACK, and no client expects that. While the peer reads on,
        // SUBACK comes. [SN-SUBSCRIBE-5]
        if self.awaits_suback && self.accepts_packets() {
            return;
        }
        let is_proven = self.is_proven();
        if !is_proven {
            self.ask_for_proof(io);
            if !matches!(self.reach, Reach::Unproven { is_new: true, .. }) {
                return;
            }
        }
        while self.may_deliver(io.now) && (self.outbox.register.is_none() || !is_proven) {
            let topic_id = match (self.outbox.unregistered(), self.outbox.front().map(|message| message.topic)) {
                (Some(id), _) | (None, Some(Topic::Normal(id))) => Some(id),
                (None, Some(_)) => None,
                (None, None) => return,
            };
            match topic_id.map(|id| (id, self.topics.knowledge(id))) {
                // Messages behind it wait, so that their order stays. [SN-DELIVER-2]
                Some((_, Knowledge::Unknown)) if !is_proven => return,
                Some((id, Knowledge::Unknown)) => return self.register(id, io),
                Some((id, Knowledge::Refused)) => self.drop_refused(id, io),
                Some((id, Knowledge::Known)) if self.outbox.unregistered().is_some() => self.send_again(id, io),
                _ => {
                    if !self.send_front(io) {
                        return;
                    }
                }
            }
        }
    }

    /// Sends the first waiting message, whose topic the client knows. False if it has to wait.
    fn send_front(&mut self, io: &mut Io<'_>) -> bool {
        let Some(front) = self.outbox.front() else { return false };
        let size = publish_size(&front.payload);
        let is_acknowledged = front.qos.is_acknowledged();
        if is_acknowledged && self.outbox.window().len() >= self.settings().in_flight.get().into() {
            return false; // [SN-DELIVER-3]
        }
        if !is_acknowledged && let Some(pace) = &self.pace {
            self.paced_until = pace.wait(io.now); // [SN-PACE-1]
            if self.paced_until.is_some() {
                return false;
            }
        }
        // The bytes of a PINGREQ stay, whose answer allows further ones.
        if matches!(self.reach, Reach::Unproven { budget, .. } if size > SMALL || size + PINGREQ_BYTES > budget) {
            return false; // [SN-ADDRESS-1]
        }
        let Some(message) = self.outbox.pop() else { return false };
        let ids = message.packet_id.map(|id| self.ids_of(id, message.qos));
        let publish = v1_2::Publish {
            dup: message.dup,
            qos: Some(from_mqtt(message.qos)),
            retain: message.retain,
            topic: message.topic,
            message_id: ids.map(|ids| ids.message_id), // [SN-MSGID-1]
            data: &message.payload,
        };
        self.send(&Message::Publish(publish), io);
        if let PeerState::Awake(awake) = &mut self.state {
            awake.delivered = awake.delivered.saturating_add(1);
        }
        match ids {
            Some(ids) => {
                let retry = self.first_try(io.now);
                let sent = InFlight::published(&message, ids, io.output.datagrams.last(), retry);
                self.outbox.window_mut().push(sent);
            }
            None => {
                if let Some(pace) = &mut self.pace {
                    pace.spend(size, io.now);
                }
            }
        }
        true
    }

    /// Numbers of a message that is sent now. At an unproven address the MsgId of QoS 1 cannot be guessed. That of QoS 2 is
    /// the same on the next connection, by which the client knows the message again.
    fn ids_of(&self, id: PacketId, qos: QoS) -> Ids {
        let is_proof = !self.is_proven() && qos == QoS::AtLeastOnce;
        let is_used = |of| self.outbox.window().iter().any(|message| message.message_id == of);
        let mut message_id = crate::outbox::message_id(id);
        if is_proof || is_used(message_id) {
            message_id = loop {
                let drawn = self.gateway.unguessable_id();
                if !is_used(drawn) {
                    break drawn;
                }
            };
        }
        Ids { id, message_id, is_proof }
    }

    /// Whether the next message waits for bytes that may be sent to an unproven address.
    pub(super) fn lacks_bytes(&self, now: Instant) -> bool {
        let (Reach::Unproven { budget, is_new: true, .. }, Some(front)) = (self.reach, self.outbox.front()) else {
            return false;
        };
        let has_room =
            !front.qos.is_acknowledged() || self.outbox.window().len() < self.settings().in_flight.get().into();
        let is_known = !matches!(front.topic, Topic::Normal(id) if self.topics.knowledge(id) != Knowledge::Known);
        let size = publish_size(&front.payload);
        has_room && is_known && self.may_deliver(now) && size <= SMALL && size + PINGREQ_BYTES > budget
    }

    /// Counts an answer with a MsgId that cannot be guessed. Two of them prove the address: they have 30 bits.
    fn count_hit(&mut self, io: &mut Io<'_>) {
        if let Reach::Unproven { hits, .. } = &mut self.reach {
            *hits += 1;
            if *hits == HITS {
                let _ = self.prove(io);
            }
        }
    }

    /// Whether the client listens: it is active, or awake and has not got all messages of this wake.
    pub(super) fn may_deliver(&self, now: Instant) -> bool {
        match &self.state {
            PeerState::Active => true,
            PeerState::Awake(awake) => !self.has_enough(awake, now),
            _ => false,
        }
    }

    /// Topic id of a message: a registered one, the name itself if it has two bytes, a predefined one, or a new one.
    /// `None` for a message that the client cannot get.
    fn topic_of(&mut self, publish: &Publish, io: &mut Io<'_>) -> Option<Topic> {
        let (name, maximum) = (&publish.topic, usize::from(self.settings().datagram_bytes_maximum));
        let known = self.topics.id_for_delivery(name, io.now).map(Topic::Normal).or_else(|| self.fixed_topic_of(name));
        let needs_register = match known {
            Some(Topic::Normal(id)) => self.topics.knowledge(id) != Knowledge::Known,
            Some(_) => false,
            None => true,
        };
        // Before it takes another topic's place.
        let is_name_too_long = needs_register && register_size(name) > maximum;
        if is_name_too_long || PUBLISH_HEADER + publish.payload.len() > maximum {
            io.output.drops.note(DropCause::TooLarge); // [SN-BOUND-3]
            return None;
        }
        known.or_else(|| self.assign(name, TopicOwner::Gateway, io).ok().map(Topic::Normal))
    }

    /// Topic id of a name that no client registers.
    fn fixed_topic_of(&self, name: &TopicName) -> Option<Topic> {
        if name.as_bytes().len() == 2
            && let Some(short) = ShortName::new(name.text().as_str())
        {
            return Some(Topic::Short(short)); // [SN-TOPICID-3]
        }
        self.gateway.predefined.id(name, &self.client_id).map(Topic::Predefined)
    }

    /// Drops the messages of a topic that the client refused `[SN-REGISTER-5]`.
    fn drop_refused(&mut self, topic_id: u16, io: &mut Io<'_>) {
        while let Some(message) =
            self.outbox.window().iter().find(|message| is_blocked_by(message, topic_id)).map(|m| (m.id, m.qos))
        {
            io.output.drops.note(DropCause::TopicRefused);
            self.outbox.remove(message.0);
            self.give_up(Some(message.0), message.1, ReasonCode::TopicNameInvalid, io);
        }
        while self.outbox.front().is_some_and(|message| message.topic == Topic::Normal(topic_id)) {
            let Some(message) = self.outbox.pop() else { return };
            io.output.drops.note(DropCause::TopicRefused);
            self.give_up(message.packet_id, message.qos, ReasonCode::TopicNameInvalid, io);
        }
    }

    /// Sends the messages again that waited for this topic's REGISTER. The answer to it has proven the address.
    fn send_again(&mut self, topic_id: u16, io: &mut Io<'_>) {
        let retry = self.first_try(io.now);
        for message in self.outbox.window_mut() {
            if is_blocked_by(message, topic_id) {
                message.step = DeliveryStep::Published;
                message.retry = retry;
                io.output.datagrams.push_bytes(message.repeated());
            }
        }
    }

    pub(super) fn handle_client_puback(&mut self, puback: &PubAck, io: &mut Io<'_>) -> Action {
        if !self.is_proven()
            && let Some(question) = &mut self.outbox.register
        {
            if question.is_answered_by(&Message::PubAck(*puback)) == Some(true) {
                return self.prove(io);
            }
            // One guess for each MsgId. The answer to a message names a topic of the client.
            question.is_void |= !self.topics.may_assign(puback.topic_id);
        }
        let is_unknown_topic = puback.code == ReturnCode::InvalidTopicId;
        let Some(message) = puback.message_id.and_then(|id| self.outbox.in_flight_of(id)) else {
            self.outbox.forget_proofs();
            if is_unknown_topic {
                // A QoS 0 message was refused: the next one is registered first.
                self.topics.set_knowledge(puback.topic_id, Knowledge::Unknown);
            }
            return Action::Continue;
        };
        if message.step != DeliveryStep::Published {
            return Action::Continue;
        }
        let (id, qos) = (message.id, message.qos);
        let is_proof = std::mem::take(&mut message.is_proof);
        match (puback.code, message.topic_id) {
            // Repeated later, as if it was lost.
            (ReturnCode::Congestion, _) => return Action::Continue,
            (ReturnCode::InvalidTopicId, Some(topic_id)) if !message.is_registered_again => {
                message.is_registered_again = true; // [SN-PUBACK-2]
                message.step = DeliveryStep::Unregistered;
                self.topics.set_knowledge(topic_id, Knowledge::Unknown);
            }
            (ReturnCode::Accepted, _) if qos == QoS::AtLeastOnce => {
                self.outbox.remove(id);
                self.acknowledge(id, qos, ReasonCode::Success, io);
            }
            // PUBREC is the positive answer at QoS 2.
            (ReturnCode::Accepted, _) => return Action::Continue,
            _ => {
                self.outbox.remove(id);
                io.output.drops.note(DropCause::MessageRefused); // [SN-PUBACK-1]
                self.give_up(Some(id), qos, ReasonCode::ImplementationSpecificError, io);
            }
        }
        if is_proof {
            self.count_hit(io);
        }
        self.deliver_waiting(io);
        Action::Continue
    }

    pub(super) fn handle_client_pubrec(&mut self, id: MessageId, io: &mut Io<'_>) -> Action {
        match self.outbox.in_flight_of(id) {
            Some(message) if message.step == DeliveryStep::Released => {
                let message_id = message.message_id;
                self.send(&Message::PubRel(message_id), io);
            }
            Some(message) if message.step == DeliveryStep::Published && message.qos == QoS::ExactlyOnce => {
                message.step = DeliveryStep::Received;
                let (id, is_proof) = (message.id, std::mem::take(&mut message.is_proof));
                self.acknowledge(id, QoS::ExactlyOnce, ReasonCode::Success, io); // [SN-QOS2-2]
                if is_proof {
                    self.count_hit(io);
                }
            }
            Some(_) => {}
            None => self.outbox.forget_proofs(),
        }
        Action::Continue
    }

    pub(super) fn handle_client_pubcomp(&mut self, id: MessageId, io: &mut Io<'_>) -> Action {
        let message = self.outbox.in_flight_of(id).filter(|message| message.step == DeliveryStep::Released);
        if let Some(id) = message.map(|message| message.id) {
            self.outbox.remove(id);
            self.write(&Packet::PubComp(Ack::new(id, ReasonCode::Success)), io);
            self.deliver_waiting(io);
        }
        Action::Continue
    }

    /// The broker releases a QoS 2 message.
    pub(super) fn handle_broker_pubrel(&mut self, id: PacketId, io: &mut Io<'_>) -> Action {
        if self.outbox.take_given_up(id) {
            self.write(&Packet::PubComp(Ack::new(id, ReasonCode::Success)), io);
            return Action::Continue;
        }
        let retry = self.first_try(io.now);
        match self.outbox.in_flight(id) {
            Some(message) if message.step == DeliveryStep::Released => return Action::Continue,
            Some(message) => {
                message.step = DeliveryStep::Released;
                message.retry = retry;
            }
            // A message of an earlier connection.
            None => self.outbox.window_mut().push(InFlight::released(id, retry)),
        }
        // A sleeping client gets it at its next wake.
        let message_id = self.outbox.in_flight(id).map(|message| message.message_id);
        if let Some(message_id) = message_id.filter(|_| !matches!(self.state, PeerState::Asleep(_))) {
            self.send(&Message::PubRel(message_id), io);
        }
        Action::Continue
    }

    /// Sends all unanswered messages again: the client wakes or returns, or has proven its address.
    pub(super) fn repeat_all(&mut self, io: &mut Io<'_>) {
        let retry = self.first_try(io.now);
        for message in self.outbox.window_mut() {
            message.retry = retry;
        }
        let ids: Vec<PacketId> = self.outbox.window().iter().map(|message| message.id).collect();
        ids.into_iter().for_each(|id| self.repeat(id, io));
        if let Some(register) = &mut self.outbox.register {
            register.retry = retry;
            self.repeat_register(io);
        }
    }

    /// Repeats messages whose answer is overdue. Ends the peer after the last repetition.
    pub(super) fn repeat_overdue(&mut self, io: &mut Io<'_>) -> Action {
        let (now, retry) = (io.now, self.settings().retry);
        while let Some(message) =
            self.outbox.window_mut().iter_mut().find(|message| message.awaits_client() && message.retry.at <= now)
        {
            if message.retry.repeat(now, retry).is_err() {
                return self.not_answered(io);
            }
            let id = message.id;
            self.repeat(id, io);
        }
        let (fits, is_proven) = (self.question_fits(), self.is_proven());
        if let Some(register) = &mut self.outbox.register
            && register.retry.at <= now
        {
            let next = match (is_proven, fits) {
                (true, _) => register.retry.repeat(now, retry).map(|()| true),
                (false, true) => register.go_on(&self.gateway, now),
                (false, false) => {
                    register.retry.at = now + retry; // PINGREQ is no repetition of it.
                    Ok(true)
                }
            };
            let is_last = register.retry.is_last();
            match next {
                Ok(true) => {
                    self.repeat_register(io);
                    self.ask_for_bytes(io);
                }
                Ok(false) => self.send_ping(io),
                Err(_) if self.received_at + retry < now => return self.not_answered(io),
                Err(_) => return self.give_register_up(io),
            }
            if is_last && next == Ok(true) {
                self.send_ping(io); // Some clients ignore REGISTER: are they there?
            }
        }
        Action::Continue
    }

    /// The client did not answer the last repetition.
    fn not_answered(&mut self, io: &mut Io<'_>) -> Action {
        match self.state {
            // Its PINGREQ was an old copy, or it sleeps already: its messages wait, and its sleep has a deadline.
            PeerState::Awake(awake) => {
                self.state = PeerState::Asleep(awake.duration);
                Action::Continue
            }
            _ => self.lose(End::NoAnswer, io),
        }
    }

    fn repeat(&mut self, id: PacketId, io: &mut Io<'_>) {
        let Some(message) = self.outbox.in_flight(id) else { return };
        match message.step {
            DeliveryStep::Published => match &mut self.reach {
                Reach::Proven => io.output.datagrams.push_bytes(message.repeated()),
                Reach::Unproven { budget, is_new: true, .. } if message.size() + PINGREQ_BYTES <= *budget => {
                    *budget -= message.size();
                    io.output.datagrams.push_bytes(message.repeated());
                }
                // Its answer adds to the bytes that may be sent.
                Reach::Unproven { is_new: true, .. } => self.send_ping(io),
                // [SN-ADDRESS-2]
                Reach::Unproven { .. } => {}
            },
            DeliveryStep::Released => {
                let message_id = message.message_id;
                self.send(&Message::PubRel(message_id), io);
            }
            DeliveryStep::Unregistered | DeliveryStep::Received => {}
        }
    }

    /// Acknowledges a message to the broker: PUBACK at QoS 1, PUBREC at QoS 2.
    fn acknowledge(&mut self, id: PacketId, qos: QoS, reason: ReasonCode, io: &mut Io<'_>) {
        let ack = Ack::new(id, reason);
        let packet = if qos == QoS::AtLeastOnce { Packet::PubAck(ack) } else { Packet::PubRec(ack) };
        self.write(&packet, io);
    }

    /// Refuses a message that the client cannot get.
    fn give_up(&mut self, id: Option<PacketId>, qos: QoS, reason: ReasonCode, io: &mut Io<'_>) {
        if let Some(id) = id {
            self.acknowledge(id, qos, reason, io);
            if qos == QoS::ExactlyOnce && !self.settings().upstream_version.is_v5() {
                self.outbox.note_given_up(id);
            }
        }
    }
}

/// Bytes of an MQTT-SN PUBLISH.
fn publish_size(payload: &[u8]) -> usize {
    let size = PUBLISH_HEADER - 2 + payload.len();
    if size > u8::MAX.into() { size + 2 } else { size }
}

/// Bytes of a PUBLISH that needs no proof of the address.
const SMALL: usize = 128;

/// Answers with an unguessable MsgId that prove an address.
const HITS: u8 = 2;

fn is_blocked_by(message: &InFlight, topic_id: u16) -> bool {
    message.step == DeliveryStep::Unregistered && message.topic_id == Some(topic_id)
}
