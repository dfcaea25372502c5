//! Requests of the client, one under way at a time.

use std::time::Instant;

use bytes::Bytes;
use tenbin_sn_codec::v1_2::{
    Message, MessageId, Publish, QoS, Register, ReturnCode, Subscribe, Subscribed, Topic, Unsubscribe,
};

use super::{ClientEvent, ClientPeer, ClientTopic, RequestId, State};
use crate::outbox::{GivenUp, Retry};
use crate::output::Datagrams;

/// A request that was not sent yet.
#[derive(Debug)]
pub(super) struct Request {
    id: RequestId,
    topic: ClientTopic,
    qos: QoS,
    kind: Kind,
    /// The gateway rejected the topic id once, and the message is sent again after REGISTER.
    is_registered_again: bool,
}

#[derive(Debug)]
enum Kind {
    Publish { retain: bool, payload: Bytes },
    Subscribe,
    Unsubscribe,
}

/// A request whose answer is due.
#[derive(Debug)]
pub(super) struct UnderWay {
    request: Request,
    message_id: MessageId,
    step: Step,
    pub(super) retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// REGISTER is sent, and the PUBLISH follows.
    Registering,
    /// The request itself is sent.
    Sent,
    /// PUBREL is sent.
    Released,
}

impl ClientPeer {
    /// Publishes a message. A topic by name is registered first.
    pub fn publish(
        &mut self,
        topic: ClientTopic,
        qos: QoS,
        retain: bool,
        payload: Bytes,
        now: Instant,
        out: &mut Datagrams,
    ) -> RequestId {
        self.request(topic, qos, Kind::Publish { retain, payload }, now, out)
    }

    /// Subscribes to a filter.
    pub fn subscribe(&mut self, filter: ClientTopic, qos: QoS, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(filter, qos, Kind::Subscribe, now, out)
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, filter: ClientTopic, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(filter, QoS::AtMostOnce, Kind::Unsubscribe, now, out)
    }

    fn request(&mut self, topic: ClientTopic, qos: QoS, kind: Kind, now: Instant, out: &mut Datagrams) -> RequestId {
        let id = RequestId(self.next_token);
        self.next_token += 1;
        self.requests.push_back(Request { id, topic, qos, kind, is_registered_again: false });
        self.send_waiting(now, out);
        id
    }

    /// Sends waiting requests up to the first that has to be answered.
    fn send_waiting(&mut self, now: Instant, out: &mut Datagrams) {
        while matches!(self.state, State::Active) && self.under_way.is_none() {
            let Some(request) = self.requests.pop_front() else { return };
            self.begin(request, now, out);
        }
    }

    fn begin(&mut self, request: Request, now: Instant, out: &mut Datagrams) {
        let is_publish = matches!(request.kind, Kind::Publish { .. });
        let is_registered = self.topic_of(&request.topic).is_some();
        let has_answer = !is_publish || !is_registered || request.qos.is_acknowledged();
        let step = if is_publish && !is_registered { Step::Registering } else { Step::Sent };
        if has_answer {
            let message_id = self.next_id();
            let under_way = UnderWay { request, message_id, step, retry: self.first_try(now) };
            self.send(&under_way, false, now, out);
            self.under_way = Some(under_way);
        } else {
            let id = request.id;
            let message_id = MessageId::new(1).expect("not 0"); // Not written at QoS 0.
            self.send(&UnderWay { request, message_id, step, retry: self.first_try(now) }, false, now, out);
            self.events.push_back(ClientEvent::Done(id, ReturnCode::Accepted));
        }
    }

    /// Sends the request under way again on a new connection, and then the others.
    pub(super) fn resume_request(&mut self, now: Instant, out: &mut Datagrams) {
        if let Some(mut under_way) = self.under_way.take() {
            under_way.retry = self.first_try(now);
            let needs_register = matches!(under_way.request.kind, Kind::Publish { .. })
                && under_way.step == Step::Sent
                && self.topic_of(&under_way.request.topic).is_none();
            if needs_register {
                under_way.step = Step::Registering; // Clean Session has discarded the topic id.
            }
            self.send(&under_way, true, now, out);
            self.under_way = Some(under_way);
        }
        self.send_waiting(now, out);
    }

    /// Repeats the request under way if its answer is overdue.
    pub(super) fn repeat_request(&mut self, now: Instant, out: &mut Datagrams) -> Result<(), GivenUp> {
        if let Some(mut under_way) = self.under_way.take_if(|under_way| under_way.retry.at <= now) {
            let result = under_way.retry.repeat(now, self.options.retry);
            if result.is_ok() {
                self.send(&under_way, true, now, out);
            }
            self.under_way = Some(under_way);
            return result;
        }
        Ok(())
    }

    /// Handles the answer to a request.
    pub(super) fn handle_answer(&mut self, message: &Message<'_>, now: Instant, out: &mut Datagrams) {
        let Some(mut under_way) = self.under_way.take() else { return };
        let id = under_way.message_id;
        let (is_publish, step) = (matches!(under_way.request.kind, Kind::Publish { .. }), under_way.step);
        let code = match message {
            Message::RegAck(regack) if step == Step::Registering && regack.message_id == Some(id) => {
                match (regack.code, &under_way.request.topic) {
                    (ReturnCode::Accepted, ClientTopic::Name(name)) => {
                        self.learn(regack.topic_id, name.clone());
                        self.begin(under_way.request, now, out);
                        return self.send_waiting(now, out);
                    }
                    (code, _) => Some(code),
                }
            }
            Message::PubAck(puback) if is_publish && step == Step::Sent && puback.message_id == Some(id) => {
                match (puback.code, &under_way.request.topic) {
                    // The gateway lost the topic id, such as by a restart.
                    (ReturnCode::InvalidTopicId, ClientTopic::Name(name)) if !under_way.request.is_registered_again => {
                        if let Some(id) = self.ids.remove(name) {
                            self.names.remove(&id);
                        }
                        under_way.request.is_registered_again = true;
                        self.begin(under_way.request, now, out);
                        return self.send_waiting(now, out);
                    }
                    (ReturnCode::Accepted, _) if under_way.request.qos == QoS::ExactlyOnce => None,
                    (code, _) => Some(code),
                }
            }
            Message::PubRec(received) if is_publish && *received == id && under_way.request.qos == QoS::ExactlyOnce => {
                under_way.step = Step::Released;
                under_way.retry = self.first_try(now);
                self.send(&under_way, false, now, out);
                None
            }
            Message::PubComp(done) if step == Step::Released && *done == id => Some(ReturnCode::Accepted),
            Message::SubAck(suback) if matches!(under_way.request.kind, Kind::Subscribe) && suback.message_id == id => {
                if let (ReturnCode::Accepted, ClientTopic::Name(name)) = (suback.code, &under_way.request.topic)
                    && suback.topic_id != 0
                {
                    let name = shared_filter(name).unwrap_or(name).into();
                    self.learn(suback.topic_id, name);
                }
                Some(suback.code)
            }
            Message::UnsubAck(done) if matches!(under_way.request.kind, Kind::Unsubscribe) && *done == id => {
                Some(ReturnCode::Accepted)
            }
            _ => None,
        };
        match code {
            // The gateway is busy: the request is repeated after the retry time.
            Some(ReturnCode::Congestion) | None => self.under_way = Some(under_way),
            Some(code) => {
                self.events.push_back(ClientEvent::Done(under_way.request.id, code));
                self.send_waiting(now, out);
            }
        }
    }

    pub(super) fn learn(&mut self, id: u16, name: std::sync::Arc<str>) {
        self.ids.insert(name.clone(), id);
        self.names.insert(id, name);
    }

    fn send(&mut self, under_way: &UnderWay, dup: bool, now: Instant, out: &mut Datagrams) {
        self.sent_at = now;
        let UnderWay { request, message_id, step, .. } = under_way;
        let (message_id, qos) = (*message_id, request.qos);
        let subscribed = match &request.topic {
            ClientTopic::Name(name) => Subscribed::Name(name),
            ClientTopic::Predefined(id) => Subscribed::Predefined(*id),
            ClientTopic::Short(name) => Subscribed::Short(*name),
        };
        out.push(&match (step, &request.kind, &request.topic) {
            (Step::Released, ..) => Message::PubRel(message_id),
            (Step::Registering, _, ClientTopic::Name(name)) => {
                Message::Register(Register { topic_id: 0, message_id: Some(message_id), topic: name })
            }
            (_, Kind::Publish { retain, payload }, topic) => {
                let Some(topic) = self.topic_of(topic) else { return };
                let message_id = qos.is_acknowledged().then_some(message_id);
                Message::Publish(Publish { dup, qos: Some(qos), retain: *retain, topic, message_id, data: payload })
            }
            (_, Kind::Subscribe, _) => Message::Subscribe(Subscribe { dup, qos, message_id, topic: subscribed }),
            (_, Kind::Unsubscribe, _) => Message::Unsubscribe(Unsubscribe { message_id, topic: subscribed }),
        });
    }

    /// Topic field of a PUBLISH; `None` if the name has no id yet.
    fn topic_of(&self, topic: &ClientTopic) -> Option<Topic> {
        match topic {
            ClientTopic::Name(name) => self.ids.get(name).copied().map(Topic::Normal),
            ClientTopic::Predefined(id) => Some(Topic::Predefined(*id)),
            ClientTopic::Short(name) => Some(Topic::Short(*name)),
        }
    }
}

/// Filter of a shared subscription.
fn shared_filter(filter: &str) -> Option<&str> {
    filter.strip_prefix("$share/")?.split_once('/').map(|(_, filter)| filter)
}
