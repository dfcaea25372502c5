//! SUBSCRIBE and UNSUBSCRIBE.

use tenbin_codec::{
    Packet, ReasonCode, SubAck, Subscribe, Subscription, SubscriptionOptions, TopicFilter, TopicName, UnsubAck,
    Unsubscribe,
};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, QoS, ReturnCode, Subscribed};

use super::upstream::Upstream;
use super::{Action, GatewayPeer};
use crate::message_ids::{Answer, AnsweredTopic, Begin, ExchangeStep, fingerprint};
use crate::outbox::{message_id, packet_id};
use crate::output::{DropCause, Io};
use crate::reason::{ack_code, granted_qos, to_mqtt};
use crate::topic_ids::TopicOwner;

impl GatewayPeer {
    pub(super) fn handle_subscribe(&mut self, subscribe: &v1_2::Subscribe<'_>, io: &mut Io<'_>) -> Action {
        let (id, qos) = (subscribe.message_id, subscribe.qos);
        let content = fingerprint((1, subscribe.topic, qos));
        match self.begin_request(id, content, subscribe.dup, io) {
            Some(Begin::New) => {}
            // Answered again, and applied once. [SN-SUBSCRIBE-4]
            Some(Begin::Answered(Answer::SubAck { qos, topic_id })) => {
                return self.suback(id, qos, topic_id, ReturnCode::Accepted, io);
            }
            Some(Begin::Full) => return self.suback(id, QoS::AtMostOnce, 0, ReturnCode::Congestion, io),
            Some(Begin::InUse) => {
                io.output.drops.note(DropCause::MessageIdInUse);
                return Action::Continue;
            }
            _ => return Action::Continue,
        }
        let Some(filter) = self.filter(subscribe.topic) else {
            return self.suback(id, QoS::AtMostOnce, 0, ReturnCode::InvalidTopicId, io);
        };
        let topic = match subscribe.topic {
            Subscribed::Predefined(id) => AnsweredTopic::Fixed(id),
            Subscribed::Short(_) => AnsweredTopic::Fixed(0),
            Subscribed::Name(_) => match self.answered_topic(&filter, io) {
                Ok(topic) => topic,
                Err(code) => return self.suback(id, QoS::AtMostOnce, 0, code, io),
            },
        };
        self.exchanges.begin(id, content, ExchangeStep::AwaitSubAck(topic), io.now);
        self.awaits_suback = true;
        let options = SubscriptionOptions::at(to_mqtt(qos));
        let subscribe = Subscribe {
            packet_id: packet_id(id),
            subscription_identifier: None,
            user_properties: Vec::new(),
            subscriptions: vec![Subscription { filter, options }],
        };
        self.write(&Packet::Subscribe(subscribe), io); // [SN-SUBSCRIBE-1]
        Action::Continue
    }

    pub(super) fn handle_unsubscribe(&mut self, unsubscribe: &v1_2::Unsubscribe<'_>, io: &mut Io<'_>) -> Action {
        let id = unsubscribe.message_id;
        let content = fingerprint((2, unsubscribe.topic));
        // It has no DUP, and the broker may get it twice.
        match self.begin_request(id, content, false, io) {
            Some(Begin::New) => {}
            Some(Begin::InUse | Begin::Full) => {
                io.output.drops.note(DropCause::MessageIdInUse);
                return Action::Continue;
            }
            _ => return Action::Continue,
        }
        let Some(filter) = self.filter(unsubscribe.topic) else {
            // No such subscription exists, and UNSUBACK has no return code.
            self.send(&Message::UnsubAck(id), io);
            return Action::Continue;
        };
        self.exchanges.forget_subacks();
        let topic_id = topic_of(&filter).and_then(|name| self.topics.id(&name));
        self.exchanges.begin(id, content, ExchangeStep::AwaitUnsubAck(topic_id), io.now);
        let unsubscribe = Unsubscribe { packet_id: packet_id(id), user_properties: Vec::new(), filters: vec![filter] };
        self.write(&Packet::Unsubscribe(unsubscribe), io); // [SN-UNSUBSCRIBE-1]
        Action::Continue
    }

    pub(super) fn handle_suback(&mut self, suback: &SubAck, io: &mut Io<'_>) -> Action {
        let id = message_id(suback.packet_id);
        let Some(exchange) = self.exchanges.get(id) else { return Action::Continue };
        let ExchangeStep::AwaitSubAck(topic) = &exchange.step else { return Action::Continue };
        let reason = suback.reasons.first().copied().unwrap_or(ReasonCode::UnspecifiedError);
        let code = ack_code(reason);
        if code != ReturnCode::Accepted {
            if let AnsweredTopic::Normal(topic_id) = *topic {
                self.topics.note_unsubscribed(topic_id);
            }
            self.exchanges.forget(id);
            let _ = self.suback(id, QoS::AtMostOnce, 0, code, io);
            return self.finish_subscribe(io);
        }
        let topic_id = match *topic {
            AnsweredTopic::Fixed(topic_id) => topic_id,
            AnsweredTopic::Normal(topic_id) => {
                self.topics.note_subscribed(topic_id);
                topic_id
            }
        };
        let qos = granted_qos(reason); // [SN-SUBSCRIBE-3]
        exchange.finish(Answer::SubAck { qos, topic_id }, io.now);
        let _ = self.suback(id, qos, topic_id, code, io);
        self.finish_subscribe(io)
    }

    /// Goes on behind SUBACK, with the messages that waited for it.
    fn finish_subscribe(&mut self, io: &mut Io<'_>) -> Action {
        self.awaits_suback = self.exchanges.await_suback();
        self.deliver_waiting(io);
        self.begin_will_update(io)
    }

    pub(super) fn handle_unsuback(&mut self, unsuback: &UnsubAck, io: &mut Io<'_>) -> Action {
        let id = message_id(unsuback.packet_id);
        if let Some(ExchangeStep::AwaitUnsubAck(topic_id)) = self.exchanges.get(id).map(|exchange| &exchange.step) {
            if let Some(topic_id) = *topic_id {
                self.topics.note_unsubscribed(topic_id);
            }
            self.exchanges.forget(id);
            self.send(&Message::UnsubAck(id), io);
        }
        self.begin_will_update(io)
    }

    /// Looks a request up; `None` while the broker cannot get it, so that the client repeats it.
    fn begin_request(&mut self, id: MessageId, content: u64, is_repeated: bool, io: &mut Io<'_>) -> Option<Begin> {
        if !matches!(self.upstream, Upstream::Open(_)) || self.will_update.is_some() {
            io.output.drops.note(DropCause::NoUpstream);
            return None;
        }
        let settings = &self.gateway.settings;
        let limit = settings.inbound_in_flight.into();
        Some(self.exchanges.look_up(id, content, is_repeated, limit, settings.retry_time(), io.now))
    }

    fn filter(&self, topic: Subscribed<'_>) -> Option<TopicFilter> {
        match topic {
            Subscribed::Name(name) => TopicFilter::try_from(name).ok(),
            Subscribed::Short(name) => TopicFilter::try_from(name.as_str()).ok(),
            Subscribed::Predefined(id) => {
                let name = self.gateway.predefined.name(id, &self.client_id)?;
                TopicFilter::new(name.text().clone()).ok()
            }
        }
    }

    /// Topic id of a filter's messages: none with wildcards; for a shared subscription the topic id of its filter
    /// `[SN-SUBSCRIBE-2]`.
    fn answered_topic(&mut self, filter: &TopicFilter, io: &mut Io<'_>) -> Result<AnsweredTopic, ReturnCode> {
        let Some(name) = topic_of(filter) else { return Ok(AnsweredTopic::Fixed(0)) };
        let id = self.assign(&name, TopicOwner::Subscription, io);
        id.map(AnsweredTopic::Normal).map_err(|_| ReturnCode::Congestion)
    }

    fn suback(&mut self, id: MessageId, qos: QoS, topic_id: u16, code: ReturnCode, io: &mut Io<'_>) -> Action {
        self.send(&Message::SubAck(v1_2::SubAck { qos, topic_id, message_id: id, code }), io);
        Action::Continue
    }
}

/// The one topic that a filter without wildcards matches.
fn topic_of(filter: &TopicFilter) -> Option<TopicName> {
    let shared = filter.shared();
    let filter = shared.as_ref().map_or(filter, |shared| &shared.filter);
    if filter.has_wildcard() { None } else { TopicName::new(filter.text().clone()).ok() }
}
