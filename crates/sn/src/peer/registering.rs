//! REGISTER in both directions.

use std::borrow::Cow;

use tenbin_codec::TopicName;
use tenbin_sn_codec::v1_2::{Message, MessageId, PingReq, RegAck, Register, ReturnCode, Topic};

use super::{Action, GatewayPeer, Reach};
use crate::outbox::Registering;
use crate::output::Io;
use crate::topic_ids::Knowledge;

/// Beginning of filters of shared subscriptions, which are no topic names.
const SHARE_PREFIX: &str = "$share/";

impl GatewayPeer {
    /// The client asks for the id of a topic.
    pub(super) fn handle_register(&mut self, register: &Register<'_>, io: &mut Io<'_>) -> Action {
        let (topic_id, code) = match TopicName::try_from(register.topic) {
            _ if register.topic.starts_with(SHARE_PREFIX) => (0, ReturnCode::NotSupported), // [SN-REGISTER-3]
            Err(_) => (0, ReturnCode::InvalidTopicId),
            Ok(name) => match self.topics.assign(&name, &self.gateway.names, &self.gateway.settings) {
                Ok(id) => {
                    self.topics.set_knowledge(id, Knowledge::Known);
                    (id, ReturnCode::Accepted) // [SN-REGISTER-1]
                }
                Err(_) => (0, ReturnCode::Congestion),
            },
        };
        self.send(&Message::RegAck(RegAck { topic_id, message_id: register.message_id, code }), io);
        Action::Continue
    }

    /// The client answers the gateway's REGISTER.
    pub(super) fn handle_regack(&mut self, regack: &RegAck, io: &mut Io<'_>) -> Action {
        let is_proven = self.is_proven();
        let Some(register) = &mut self.outbox.register else { return self.unexpected(io) };
        // A refusal may leave the id out.
        let is_of_topic = register.topic_id == regack.topic_id || regack.code != ReturnCode::Accepted;
        if !is_of_topic || Some(register.message_id) != regack.message_id || register.is_void {
            // One guess for each MsgId.
            register.is_void |= !is_proven;
            return self.unexpected(io);
        }
        let topic_id = register.topic_id;
        self.reach = Reach::Proven;
        match regack.code {
            ReturnCode::Congestion if is_proven => return Action::Continue, // It is repeated later.
            ReturnCode::Congestion => {}
            ReturnCode::Accepted => self.topics.set_knowledge(topic_id, Knowledge::Known),
            ReturnCode::InvalidTopicId | ReturnCode::NotSupported => {
                self.topics.set_knowledge(topic_id, Knowledge::Refused); // [SN-REGISTER-5]
            }
        }
        self.outbox.register = None;
        if !is_proven {
            self.repeat_all(io);
        }
        self.deliver_waiting(io);
        Action::Continue
    }

    /// Tells the client the id of a topic, before the first PUBLISH on it `[SN-DELIVER-1]`.
    pub(super) fn register(&mut self, topic_id: u16, io: &mut Io<'_>) {
        let register =
            Registering { topic_id, message_id: self.next_register(), is_void: false, retry: self.first_try(io.now) };
        if self.send_register(&register, io) {
            self.outbox.register = Some(register);
        }
    }

    /// Asks the client at an unproven address for the one answer that only it can give: messages for it wait until it has
    /// answered a REGISTER `[SN-ADDRESS-2]`.
    pub(super) fn ask_for_proof(&mut self, io: &mut Io<'_>) {
        if self.outbox.register.is_some() || !self.may_deliver(io.now) {
            return;
        }
        let Some(topic) = self.outbox.next_topic() else { return };
        let Some(topic_id) = self.registrable(topic) else { return };
        let size = self.topics.name(topic_id).map_or(0, |name| register_size(name));
        if matches!(self.reach, Reach::Unproven { budget } if size > budget) {
            // Each answer adds to the bytes that may be sent.
            self.send(&Message::PingReq(PingReq { client_id: None }), io);
        } else {
            self.register(topic_id, io);
        }
    }

    /// Repeats the REGISTER under way.
    pub(super) fn repeat_register(&mut self, io: &mut Io<'_>) {
        let Some(mut register) = self.outbox.register.take() else { return };
        if std::mem::take(&mut register.is_void) {
            register.message_id = self.next_register();
        }
        self.send_register(&register, io);
        self.outbox.register = Some(register);
    }

    /// A normal id that proves the address of a client with a message on this topic: the topic's own if possible.
    fn registrable(&mut self, topic: Topic) -> Option<u16> {
        let name = match topic {
            Topic::Normal(id) => return Some(id),
            Topic::Short(name) => TopicName::try_from(name.as_str()).ok(),
            Topic::Predefined(id) => self.gateway.predefined.name(id, &self.client_id).map(Cow::into_owned),
            Topic::Reserved(_) => None,
        };
        let id = name.and_then(|name| self.topics.assign(&name, &self.gateway.names, &self.gateway.settings).ok());
        id.or_else(|| self.topics.first())
    }

    /// MsgId of the next REGISTER: one that nobody can guess if it is to prove the address.
    fn next_register(&mut self) -> MessageId {
        if self.is_proven() { self.outbox.next_register() } else { self.gateway.unguessable_id() }
    }

    /// Sends REGISTER. False if an unproven address may not get so much.
    fn send_register(&mut self, register: &Registering, io: &mut Io<'_>) -> bool {
        let (topic_id, message_id) = (register.topic_id, Some(register.message_id));
        let Some(name) = self.topics.name(topic_id).cloned() else { return false };
        self.send(&Message::Register(Register { topic_id, message_id, topic: name.text().as_str() }), io)
    }
}

/// Bytes of a REGISTER.
pub(super) fn register_size(name: &TopicName) -> usize {
    let size = 6 + name.as_bytes().len();
    if size > u8::MAX.into() { size + 2 } else { size }
}
