//! Requests of the client, one under way at a time.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tenbin_sn_codec::v1_2::{
    Message, MessageId, PubAck, Publish, QoS, Register, ReturnCode, Subscribe, Subscribed, Topic, Unsubscribe,
};

use super::{ClientEvent, ClientPeer, ClientTopic, ClientWill, RequestId, State};
use crate::outbox::{GivenUp, Retry};
use crate::output::Datagrams;

/// A request that was not sent yet.
#[derive(Debug)]
pub(super) struct Request {
    id: RequestId,
    kind: Kind,
    /// The gateway rejected the topic id once, and the message is sent again after REGISTER.
    is_registered_again: bool,
}

#[derive(Debug)]
enum Kind {
    Register(Arc<str>),
    Publish {
        topic: ClientTopic,
        qos: QoS,
        retain: bool,
        payload: Bytes,
    },
    Subscribe {
        filter: ClientTopic,
        qos: QoS,
    },
    Unsubscribe(ClientTopic),
    /// `None` deletes the Will.
    UpdateWill(Option<ClientWill>),
}

/// A request whose answer is due.
#[derive(Debug)]
pub(super) struct UnderWay {
    request: Request,
    message_id: MessageId,
    step: RequestStep,
    /// The gateway may have the PUBLISH: its repetition has the same MsgId, and DUP.
    was_published: bool,
    /// The last answer was "congestion".
    is_congested: bool,
    pub(super) retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestStep {
    /// REGISTER is sent. The PUBLISH follows, if there is one.
    Registering,
    /// The request itself is sent; of a Will its topic.
    Sent,
    /// PUBREL is sent.
    Released,
    /// WILLMSGUPD is sent.
    WillTopicDone,
}

impl ClientPeer {
    /// Registers a topic name, so that a later PUBLISH needs no REGISTER.
    pub fn register(&mut self, name: &str, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(Kind::Register(name.into()), now, out)
    }

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
        self.request(Kind::Publish { topic, qos, retain, payload }, now, out)
    }

    /// Subscribes to a filter. [`ClientEvent::Subscribed`] follows, or [`ClientEvent::Done`] with the refusal.
    pub fn subscribe(&mut self, filter: ClientTopic, qos: QoS, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(Kind::Subscribe { filter, qos }, now, out)
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, filter: ClientTopic, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(Kind::Unsubscribe(filter), now, out)
    }

    /// Replaces the Will, on this connection and on later ones; `None` deletes it.
    pub fn update_will(&mut self, will: Option<ClientWill>, now: Instant, out: &mut Datagrams) -> RequestId {
        self.request(Kind::UpdateWill(will), now, out)
    }

    /// Forgets the topic ids, which another gateway does not know. To call without a connection.
    pub fn forget_topic_ids(&mut self) {
        self.ids.clear();
        self.names.clear();
    }

    fn request(&mut self, kind: Kind, now: Instant, out: &mut Datagrams) -> RequestId {
        let id = RequestId(self.next_token);
        self.next_token += 1;
        self.requests.push_back(Request { id, kind, is_registered_again: false });
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
        let needs_register = self.needs_register(&request.kind);
        let has_answer = match &request.kind {
            Kind::Register(_) => needs_register,
            Kind::Publish { qos, .. } => needs_register || qos.is_acknowledged(),
            _ => true,
        };
        let step = if needs_register { RequestStep::Registering } else { RequestStep::Sent };
        if has_answer {
            let message_id = self.next_id();
            let under_way = UnderWay {
                request,
                message_id,
                step,
                was_published: false,
                is_congested: false,
                retry: self.first_try(now),
            };
            self.send(&under_way, false, now, out);
            self.under_way = Some(under_way);
        } else {
            let id = request.id;
            let message_id = MessageId::new(1).expect("not 0"); // Not written at QoS 0.
            let retry = self.first_try(now);
            self.send(
                &UnderWay { request, message_id, step, was_published: false, is_congested: false, retry },
                false,
                now,
                out,
            );
            self.events.push_back(ClientEvent::Done(id, ReturnCode::Accepted));
        }
    }

    /// Whether REGISTER comes first.
    fn needs_register(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Register(name) => !self.ids.contains_key(name),
            Kind::Publish { topic, .. } => self.topic_of(topic).is_none(),
            _ => false,
        }
    }

    /// Sends the request under way again on a new connection, and then the others.
    pub(super) fn resume_request(&mut self, now: Instant, out: &mut Datagrams) {
        if let Some(mut under_way) = self.under_way.take() {
            under_way.retry = self.first_try(now);
            self.register_again(&mut under_way);
            if under_way.step == RequestStep::WillTopicDone {
                under_way.step = RequestStep::Sent; // CONNECT has set the old Will again.
            }
            self.send(&under_way, true, now, out);
            self.under_way = Some(under_way);
        }
        self.send_waiting(now, out);
    }

    /// Registers the topic of a PUBLISH again whose id the gateway has given to another one, or Clean Session discarded.
    fn register_again(&self, under_way: &mut UnderWay) {
        if under_way.step == RequestStep::Sent && self.needs_register(&under_way.request.kind) {
            (under_way.step, under_way.was_published) = (RequestStep::Registering, true);
        }
    }

    /// Repeats the request under way if its answer is overdue.
    pub(super) fn repeat_request(&mut self, now: Instant, out: &mut Datagrams) -> Result<(), GivenUp> {
        if let Some(mut under_way) = self.under_way.take_if(|under_way| under_way.retry.at <= now) {
            let result = under_way.retry.repeat(now, self.options.retry);
            if result.is_err() && under_way.is_congested {
                self.events.push_back(ClientEvent::Done(under_way.request.id, ReturnCode::Congestion));
                self.send_waiting(now, out);
                return Ok(());
            }
            if result.is_ok() {
                self.register_again(&mut under_way);
                self.send(&under_way, true, now, out);
            }
            self.under_way = Some(under_way);
            return result;
        }
        Ok(())
    }

    /// Forgets a request that was not answered.
    pub fn cancel(&mut self, id: RequestId, now: Instant, out: &mut Datagrams) {
        self.requests.retain(|request| request.id != id);
        if self.under_way.take_if(|under_way| under_way.request.id == id).is_some() {
            self.send_waiting(now, out);
        }
    }

    /// Handles the answer to a request.
    pub(super) fn handle_answer(&mut self, message: &Message<'_>, now: Instant, out: &mut Datagrams) {
        if let Message::PubAck(PubAck { topic_id, message_id: None, code: ReturnCode::InvalidTopicId }) = message {
            // A message at QoS 0 was refused: the next one is registered first.
            if let Some(name) = self.names.remove(topic_id) {
                self.ids.remove(&name);
            }
            return;
        }
        let Some(mut under_way) = self.under_way.take() else { return };
        let id = under_way.message_id;
        let code = match (message, under_way.step, &under_way.request.kind) {
            (Message::RegAck(regack), RequestStep::Registering, kind) if regack.message_id == Some(id) => {
                match (regack.code, kind) {
                    (ReturnCode::Accepted, Kind::Publish { topic: ClientTopic::Name(name), .. }) => {
                        self.learn(regack.topic_id, name.clone());
                        if !under_way.was_published {
                            self.begin(under_way.request, now, out);
                            return self.send_waiting(now, out);
                        }
                        self.next_step(&mut under_way, RequestStep::Sent, true, now, out);
                        None
                    }
                    (ReturnCode::Accepted, Kind::Register(name)) => {
                        self.learn(regack.topic_id, name.clone());
                        Some(ReturnCode::Accepted)
                    }
                    (code, _) => Some(code),
                }
            }
            (Message::PubAck(puback), RequestStep::Sent, Kind::Publish { topic, qos, .. })
                if puback.message_id == Some(id) =>
            {
                match (puback.code, topic) {
                    // The gateway lost the topic id, such as by a restart.
                    (ReturnCode::InvalidTopicId, ClientTopic::Name(name)) if !under_way.request.is_registered_again => {
                        if let Some(id) = self.ids.remove(name) {
                            self.names.remove(&id);
                        }
                        under_way.request.is_registered_again = true;
                        under_way.was_published = true;
                        self.next_step(&mut under_way, RequestStep::Registering, false, now, out);
                        None
                    }
                    (ReturnCode::Accepted, _) if *qos == QoS::ExactlyOnce => None,
                    (code, _) => Some(code),
                }
            }
            (Message::PubRec(received), _, Kind::Publish { qos: QoS::ExactlyOnce, .. }) if *received == id => {
                self.next_step(&mut under_way, RequestStep::Released, false, now, out);
                None
            }
            (Message::PubComp(done), RequestStep::Released, _) if *done == id => Some(ReturnCode::Accepted),
            (Message::SubAck(suback), _, Kind::Subscribe { filter, .. }) if suback.message_id == id => {
                if suback.code == ReturnCode::Accepted {
                    if let (ClientTopic::Name(name), 1..) = (filter, suback.topic_id) {
                        self.learn(suback.topic_id, shared_filter(name).unwrap_or(name).into());
                    }
                    self.events.push_back(ClientEvent::Subscribed(under_way.request.id, suback.qos));
                    return self.send_waiting(now, out);
                }
                Some(suback.code)
            }
            (Message::UnsubAck(done), _, Kind::Unsubscribe(_)) if *done == id => Some(ReturnCode::Accepted),
            (Message::WillTopicResp(ReturnCode::Accepted), RequestStep::Sent, Kind::UpdateWill(Some(_))) => {
                self.next_step(&mut under_way, RequestStep::WillTopicDone, false, now, out);
                None
            }
            (Message::WillTopicResp(code), RequestStep::Sent, Kind::UpdateWill(will))
            | (Message::WillMsgResp(code), RequestStep::WillTopicDone, Kind::UpdateWill(will)) => {
                if *code == ReturnCode::Accepted {
                    self.options.will.clone_from(will);
                }
                Some(*code)
            }
            _ => None,
        };
        match code {
            // The gateway is busy: the request is repeated after the retry time.
            Some(ReturnCode::Congestion) => {
                under_way.is_congested = true;
                self.under_way = Some(under_way);
            }
            None => self.under_way = Some(under_way),
            Some(code) => {
                self.events.push_back(ClientEvent::Done(under_way.request.id, code));
                self.send_waiting(now, out);
            }
        }
    }

    fn next_step(&mut self, under_way: &mut UnderWay, step: RequestStep, dup: bool, now: Instant, out: &mut Datagrams) {
        under_way.step = step;
        under_way.is_congested = false;
        under_way.retry = self.first_try(now);
        self.send(under_way, dup, now, out);
    }

    pub(super) fn learn(&mut self, id: u16, name: Arc<str>) {
        self.ids.insert(name.clone(), id);
        if let Some(other) = self.names.insert(id, name.clone())
            && other != name
            && self.ids.get(&other) == Some(&id)
        {
            // The gateway has lost its state: the id is no longer the other topic's.
            self.ids.remove(&other);
        }
    }

    fn send(&mut self, under_way: &UnderWay, dup: bool, now: Instant, out: &mut Datagrams) {
        self.sent_at = now;
        let UnderWay { request, message_id, step, .. } = under_way;
        let message_id = *message_id;
        out.push(&match (step, &request.kind) {
            (RequestStep::Released, _) => Message::PubRel(message_id),
            (RequestStep::Registering, Kind::Register(name) | Kind::Publish { topic: ClientTopic::Name(name), .. }) => {
                Message::Register(Register { topic_id: 0, message_id: Some(message_id), topic: name })
            }
            (_, Kind::Publish { topic, qos, retain, payload }) => {
                let Some(topic) = self.topic_of(topic) else { return };
                let message_id = qos.is_acknowledged().then_some(message_id);
                Message::Publish(Publish { dup, qos: Some(*qos), retain: *retain, topic, message_id, data: payload })
            }
            (_, Kind::Register(_)) => return, // It is known.
            (_, Kind::Subscribe { filter, qos }) => {
                Message::Subscribe(Subscribe { dup, qos: *qos, message_id, topic: filter.subscribed() })
            }
            (_, Kind::Unsubscribe(filter)) => {
                Message::Unsubscribe(Unsubscribe { message_id, topic: filter.subscribed() })
            }
            (RequestStep::WillTopicDone, Kind::UpdateWill(Some(will))) => Message::WillMsgUpd(&will.message),
            (_, Kind::UpdateWill(will)) => Message::WillTopicUpd(will.as_ref().map(ClientWill::topic_field)),
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

impl ClientTopic {
    fn subscribed(&self) -> Subscribed<'_> {
        match self {
            Self::Name(name) => Subscribed::Name(name),
            Self::Predefined(id) => Subscribed::Predefined(*id),
            Self::Short(name) => Subscribed::Short(*name),
        }
    }
}

/// Filter of a shared subscription.
fn shared_filter(filter: &str) -> Option<&str> {
    filter.strip_prefix("$share/")?.split_once('/').map(|(_, filter)| filter)
}
