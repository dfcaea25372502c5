//! REGISTER in both directions.

use tenbin_codec::TopicName;
use tenbin_sn_codec::v1_2::{Message, RegAck, Register, ReturnCode};

use super::{Action, Confirmation, GatewayPeer};
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
        let is_awaited = self.outbox.register.as_ref().is_some_and(|register| {
            register.topic_id == regack.topic_id && Some(register.message_id) == regack.message_id
        });
        if !is_awaited {
            return self.unexpected(io);
        }
        match regack.code {
            ReturnCode::Congestion => return Action::Continue, // It is repeated later.
            ReturnCode::Accepted => self.topics.set_knowledge(regack.topic_id, Knowledge::Known),
            ReturnCode::InvalidTopicId | ReturnCode::NotSupported => {
                self.topics.set_knowledge(regack.topic_id, Knowledge::Refused); // [SN-REGISTER-5]
            }
        }
        self.outbox.register = None;
        self.deliver_waiting(io);
        Action::Continue
    }

    /// Tells the client the id of a topic, before the first PUBLISH on it `[SN-DELIVER-1]`.
    pub(super) fn register(&mut self, topic_id: u16, io: &mut Io<'_>) {
        let message_id = self.outbox.next_register();
        if self.send_register(topic_id, message_id, io) {
            self.outbox.register = Some(Registering { topic_id, message_id, retry: self.first_try(io.now) });
        }
    }

    /// Sends REGISTER. False if an unconfirmed client may not get it.
    pub(super) fn send_register(
        &mut self,
        topic_id: u16,
        message_id: tenbin_sn_codec::v1_2::MessageId,
        io: &mut Io<'_>,
    ) -> bool {
        let Some(name) = self.topics.name(topic_id).cloned() else { return false };
        if let Confirmation::Unconfirmed { has_delivery, .. } = &mut self.confirmation {
            *has_delivery = true;
        }
        let topic = name.text().as_str();
        self.send(&Message::Register(Register { topic_id, message_id: Some(message_id), topic }), io)
    }
}
