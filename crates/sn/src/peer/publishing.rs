//! Messages of the client, and the broker's acknowledgements of them.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;
use tenbin_codec::{Ack, Packet, PublishHeader, ReasonCode, Text, TopicName};
use tenbin_sn_codec::v1_2::{Message, MessageId, PubAck, Publish, QoS, ReturnCode, Topic};

use super::upstream::Upstream;
use super::{Action, GatewayPeer};
use crate::gateway::Gateway;
use crate::message_ids::{Answer, Begin, Doubtful, ExchangeStep, fingerprint};
use crate::outbox::{message_id, packet_id};
use crate::output::{DropCause, Io};
use crate::reason::{ack_code, to_mqtt};
use crate::topic_ids::TopicIds;

/// Bytes of an MQTT PUBLISH without topic and payload, at most.
const PUBLISH_OVERHEAD: usize = 12;

impl GatewayPeer {
    pub(super) fn handle_publish(&mut self, publish: &Publish<'_>, io: &mut Io<'_>) -> Action {
        let settings = &self.gateway.settings;
        let qos = match publish.qos {
            Some(qos) => qos,
            None if settings.qos_minus_one && !matches!(publish.topic, Topic::Normal(_)) => QoS::AtMostOnce,
            None => {
                io.output.drops.note(DropCause::QoSMinusOne); // [SN-PUBLISH-4]
                return Action::Continue;
            }
        };
        let Upstream::Open(link) = &mut self.upstream else {
            io.output.drops.note(DropCause::NoUpstream);
            return Action::Continue;
        };
        let Some(name) = topic_name(publish.topic, &mut self.topics, &self.client_id, &self.gateway, io.now) else {
            io.output.drops.note(DropCause::UnknownTopic);
            return self.refuse(publish, ReturnCode::InvalidTopicId, io); // [SN-PUBLISH-2]
        };
        let size = name.as_bytes().len() + publish.data.len() + PUBLISH_OVERHEAD;
        let is_supported = to_mqtt(qos) <= link.maximum_qos
            && (link.retain_available || !publish.retain)
            && size <= link.maximum_packet_size as usize;
        if !is_supported {
            return self.refuse(publish, ReturnCode::NotSupported, io);
        }
        let mut header = PublishHeader { qos: to_mqtt(qos), retain: publish.retain, ..PublishHeader::default() };
        if let (QoS::AtLeastOnce | QoS::ExactlyOnce, Some(id)) = (qos, publish.message_id) {
            if self.will_update.is_some() {
                io.output.drops.note(DropCause::NoUpstream); // The client repeats it, after the new CONNACK.
                return Action::Continue;
            }
            let content = fingerprint((publish.topic, publish.qos, publish.retain, publish.data));
            let limit = settings.inbound_in_flight.min(link.receive_maximum).into();
            match self.exchanges.look_up(id, content, publish.dup, limit, settings.retry_time(), io.now) {
                Begin::New => {}
                Begin::Doubtful(answer_at) => {
                    let (field, topic) = (publish.topic.field(), name.into_owned());
                    let (retain, data) = (publish.retain, Bytes::copy_from_slice(publish.data));
                    let answer_at = Some(answer_at);
                    let step = ExchangeStep::Doubtful(Box::new(Doubtful { answer_at, field, topic, retain, data }));
                    self.exchanges.begin(id, content, step, io.now);
                    self.answer_doubtful(io);
                    return Action::Continue;
                }
                begin => return self.answer_again(id, &begin, publish, io),
            }
            let topic = publish.topic.field();
            let step = if qos == QoS::AtLeastOnce {
                ExchangeStep::AwaitPubAck(topic)
            } else {
                ExchangeStep::AwaitPubRec(topic)
            };
            self.exchanges.begin(id, content, step, io.now);
            header.packet_id = Some(packet_id(id)); // [SN-MSGID-1]
            header.dup = publish.dup; // [SN-PUBLISH-3]
        }
        link.sent_at = io.now;
        header.encode(&name, publish.data, settings.upstream_version, io.upstream); // [SN-PUBLISH-1]
        Action::Continue
    }

    /// A PUBLISH that is not passed on.
    fn answer_again(&mut self, id: MessageId, begin: &Begin, publish: &Publish<'_>, io: &mut Io<'_>) -> Action {
        match begin {
            Begin::Answered(Answer::PubAck(topic_id)) => {
                let (topic_id, message_id) = (*topic_id, Some(id));
                self.send(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }), io);
            }
            // A client that repeats a completed QoS 2 message goes through the rest of the exchange again.
            Begin::Received | Begin::Answered(Answer::PubComp) => {
                self.send(&Message::PubRec(id), io);
            }
            Begin::Full => return self.refuse(publish, ReturnCode::Congestion, io),
            Begin::New | Begin::Doubtful(_) | Begin::UnderWay => {}
            Begin::InUse | Begin::Answered(_) => io.output.drops.note(DropCause::MessageIdInUse),
        }
        Action::Continue
    }

    /// Sends the PUBRECs of doubtful messages that are due.
    pub(super) fn answer_doubtful(&mut self, io: &mut Io<'_>) {
        while let Some(id) = self.exchanges.take_due(io.now) {
            self.send(&Message::PubRec(id), io);
        }
    }

    fn refuse(&mut self, publish: &Publish<'_>, code: ReturnCode, io: &mut Io<'_>) -> Action {
        if publish.qos.is_some() {
            let (topic_id, message_id) = (publish.topic.field(), publish.message_id);
            self.send(&Message::PubAck(PubAck { topic_id, message_id, code }), io);
        }
        Action::Continue
    }

    /// Most messages of the client under way.
    fn inbound_limit(&self) -> usize {
        let of_broker = if let Upstream::Open(link) = &self.upstream { link.receive_maximum } else { u16::MAX };
        self.gateway.settings.inbound_in_flight.min(of_broker).into()
    }

    /// The client releases its QoS 2 message.
    pub(super) fn handle_client_pubrel(&mut self, id: MessageId, io: &mut Io<'_>) -> Action {
        if !matches!(self.upstream, Upstream::Open(_)) || self.will_update.is_some() {
            io.output.drops.note(DropCause::NoUpstream);
            return Action::Continue;
        }
        let is_full = self.exchanges.under_way() >= self.inbound_limit();
        if self.exchanges.is_released_again(id, io.now) {
            self.send(&Message::PubComp(id), io);
            return Action::Continue;
        }
        match self.exchanges.get(id).map(|exchange| &mut exchange.step) {
            Some(step @ ExchangeStep::AwaitPubRel) => *step = ExchangeStep::AwaitPubComp,
            // It is no copy: the broker gets it now, and its release behind it. [SN-DUPLICATE-3]
            Some(step @ ExchangeStep::Doubtful(_)) if !is_full => {
                if let ExchangeStep::Doubtful(message) = std::mem::replace(step, ExchangeStep::AwaitPubComp) {
                    *step = ExchangeStep::AwaitPubRecOfReleased(message.field);
                    self.publish_released(id, *message, io);
                }
                return Action::Continue;
            }
            // The release is under way, or the id belongs to another exchange.
            Some(_) => return Action::Continue,
            None if is_full => {
                io.output.drops.note(DropCause::MessageIdInUse);
                return Action::Continue;
            }
            // A message of an earlier connection: the broker knows it, or answers that it does not.
            None => self.exchanges.begin(id, 0, ExchangeStep::AwaitPubComp, io.now),
        }
        self.write(&Packet::PubRel(Ack::new(packet_id(id), ReasonCode::Success)), io); // [SN-QOS2-1]
        Action::Continue
    }

    /// Publishes a QoS 2 message that the client has released already.
    fn publish_released(&mut self, id: MessageId, message: Doubtful, io: &mut Io<'_>) {
        let Doubtful { topic, retain, data, .. } = message;
        let mut publish = tenbin_codec::Publish::new(topic, data);
        (publish.qos, publish.retain, publish.packet_id) =
            (tenbin_codec::QoS::ExactlyOnce, retain, Some(packet_id(id)));
        self.write(&Packet::Publish(publish), io);
    }

    pub(super) fn handle_broker_puback(&mut self, ack: &Ack, io: &mut Io<'_>) -> Action {
        let id = message_id(ack.packet_id);
        let Some(exchange) = self.exchanges.get(id) else { return Action::Continue };
        let ExchangeStep::AwaitPubAck(topic_id) = exchange.step else { return Action::Continue };
        let code = ack_code(ack.reason);
        if code == ReturnCode::Accepted {
            exchange.finish(Answer::PubAck(topic_id), io.now);
        } else {
            self.exchanges.forget(id);
        }
        self.send(&Message::PubAck(PubAck { topic_id, message_id: Some(id), code }), io);
        self.begin_will_update(io)
    }

    pub(super) fn handle_broker_pubrec(&mut self, ack: &Ack, io: &mut Io<'_>) -> Action {
        let id = message_id(ack.packet_id);
        let code = ack_code(ack.reason);
        match self.exchanges.get(id).map(|exchange| &mut exchange.step) {
            Some(ExchangeStep::AwaitPubRec(topic_id) | ExchangeStep::AwaitPubRecOfReleased(topic_id))
                if code != ReturnCode::Accepted =>
            {
                let topic_id = *topic_id;
                self.exchanges.forget(id);
                // MQTT-SN has no refusal in PUBREC. [SN-PUBACK-1]
                self.send(&Message::PubAck(PubAck { topic_id, message_id: Some(id), code }), io);
            }
            Some(step @ ExchangeStep::AwaitPubRec(_)) => {
                *step = ExchangeStep::AwaitPubRel;
                self.send(&Message::PubRec(id), io);
            }
            Some(step @ ExchangeStep::AwaitPubRecOfReleased(_)) => {
                *step = ExchangeStep::AwaitPubComp;
                self.write(&Packet::PubRel(Ack::new(ack.packet_id, ReasonCode::Success)), io);
            }
            Some(_) => {}
            None if code == ReturnCode::Accepted => {
                let not_found = Ack::new(ack.packet_id, ReasonCode::PacketIdentifierNotFound);
                self.write(&Packet::PubRel(not_found), io);
            }
            None => {}
        }
        self.begin_will_update(io)
    }

    pub(super) fn handle_broker_pubcomp(&mut self, ack: &Ack, io: &mut Io<'_>) -> Action {
        let id = message_id(ack.packet_id);
        let Some(exchange) = self.exchanges.get(id) else { return Action::Continue };
        if matches!(exchange.step, ExchangeStep::AwaitPubComp) {
            exchange.finish(Answer::PubComp, io.now);
            self.send(&Message::PubComp(id), io);
        }
        self.begin_will_update(io)
    }
}

/// Topic of a client's PUBLISH; `None` if the client may not use the id.
#[inline]
fn topic_name<'a>(
    topic: Topic,
    topics: &'a mut TopicIds,
    client_id: &Text,
    gateway: &'a Gateway,
    now: Instant,
) -> Option<Cow<'a, TopicName>> {
    match topic {
        Topic::Normal(id) => topics.published_name(id, &gateway.settings, now).map(Cow::Borrowed),
        Topic::Predefined(id) => gateway.predefined.name(id, client_id),
        Topic::Short(name) => TopicName::try_from(name.as_str()).ok().map(Cow::Owned),
        Topic::Reserved(_) => None, // [SN-TOPICID-4]
    }
}
