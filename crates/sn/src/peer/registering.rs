//! REGISTER in both directions.

use tenbin_codec::TopicName;
use tenbin_sn_codec::v1_2::{Message, MessageId, PingReq, RegAck, Register, ReturnCode};

use super::{Action, End, GatewayPeer, Reach};
use crate::gateway::Gateway;
use crate::outbox::Registering;
use crate::output::{DropCause, Io};
use crate::topic_ids::{Knowledge, Room, TableFull, TopicOwner};

/// Beginning of filters of shared subscriptions, which are no topic names.
const SHARE_PREFIX: &str = "$share/";

impl GatewayPeer {
    /// The client asks for the id of a topic.
    pub(super) fn handle_register(&mut self, register: &Register<'_>, io: &mut Io<'_>) -> Action {
        let (topic_id, code) = match TopicName::try_from(register.topic) {
            _ if register.topic.starts_with(SHARE_PREFIX) => (0, ReturnCode::NotSupported), // [SN-REGISTER-3]
            Err(_) => (0, ReturnCode::InvalidTopicId),
            Ok(name) => match self.assign(&name, TopicOwner::Client, io) {
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

    /// Id of a topic name, a new one if necessary. Counts topics without room, and those that make room.
    pub(super) fn assign(&mut self, name: &TopicName, owner: TopicOwner, io: &mut Io<'_>) -> Result<u16, TableFull> {
        let Gateway { names, settings, .. } = &*self.gateway;
        let assigned = self.topics.assign(name, owner, &Room { names, settings, outbox: &self.outbox, now: io.now });
        io.output.topics_freed += u64::from(self.topics.take_freed());
        assigned.inspect_err(|_| io.output.drops.note(DropCause::TopicTableFull))
    }

    /// The client answers the gateway's REGISTER.
    pub(super) fn handle_regack(&mut self, regack: &RegAck, io: &mut Io<'_>) -> Action {
        let is_proven = self.is_proven();
        let Some(register) = &mut self.outbox.register else { return self.unexpected(io) };
        // A refusal may leave the id out, but not where it is half of the proof.
        let is_of_topic = register.topic_id == regack.topic_id || (is_proven && regack.code != ReturnCode::Accepted);
        let is_answer = register.is_sent && !register.is_void && Some(register.message_id) == regack.message_id;
        if !is_of_topic || !is_answer {
            io.output.drops.note(DropCause::Unexpected);
            if !is_proven {
                // One guess for each MsgId, and a few for each client.
                register.is_void = true;
                self.guesses += 1;
                if self.guesses == GUESSES_MAXIMUM {
                    return self.lose(End::NoAnswer, io);
                }
            }
            return Action::Continue;
        }
        if !is_proven {
            self.reach = Reach::Proven;
            self.outbox.register = None;
            self.repeat_all(io);
            self.deliver_waiting(io);
            return Action::Continue;
        }
        match regack.code {
            ReturnCode::Congestion => return Action::Continue, // It is repeated later.
            ReturnCode::Accepted => self.topics.set_knowledge(register.topic_id, Knowledge::Known),
            ReturnCode::InvalidTopicId | ReturnCode::NotSupported => {
                self.topics.set_knowledge(register.topic_id, Knowledge::Refused); // [SN-REGISTER-5]
            }
        }
        self.outbox.register = None;
        self.deliver_waiting(io);
        Action::Continue
    }

    /// Tells the client the id of a topic, before the first PUBLISH on it `[SN-DELIVER-1]`.
    pub(super) fn register(&mut self, topic_id: u16, io: &mut Io<'_>) {
        let Some(name) = self.topics.name(topic_id).cloned() else { return };
        let (message_id, retry) = (self.outbox.next_register(), self.first_try(io.now));
        self.send_register(topic_id, message_id, &name, io);
        self.outbox.register = Some(Registering { topic_id, message_id, is_sent: true, is_void: false, retry });
    }

    /// Asks the client at an unproven address for the one answer that only it can give: messages for it wait until it has
    /// answered a REGISTER, with a topic id and a MsgId that nobody can guess `[SN-ADDRESS-2]`.
    ///
    /// Its name is that of no topic, so that the answer, be it a refusal, says nothing of one.
    pub(super) fn ask_for_proof(&mut self, io: &mut Io<'_>) {
        if self.outbox.register.is_some() || !self.outbox.has_message() || !self.may_deliver(io.now) {
            return;
        }
        let topic_id = loop {
            let id = self.gateway.unguessable_id().get();
            if !self.topics.may_assign(id) {
                break id;
            }
        };
        let (message_id, retry) = (self.gateway.unguessable_id(), self.first_try(io.now));
        self.outbox.register = Some(Registering { topic_id, message_id, is_sent: false, is_void: false, retry });
        self.send_question(io);
    }

    /// Goes on with the question after a message of the client: it has added to the bytes that may be sent.
    pub(super) fn go_on_asking(&mut self, is_pingresp: bool, io: &mut Io<'_>) {
        match &self.outbox.register {
            None => self.ask_for_proof(io),
            Some(register) if !register.is_sent && (is_pingresp || self.question_fits()) => self.send_question(io),
            Some(_) => {}
        }
    }

    /// Whether the REGISTER under way may be sent.
    pub(super) fn question_fits(&self) -> bool {
        match self.reach {
            Reach::Unproven { budget } => QUESTION_BYTES <= budget,
            Reach::Proven => true,
        }
    }

    /// Sends the REGISTER that is to prove the address. Until it fits, PINGREQ, whose answers add to the bytes that may be sent.
    fn send_question(&mut self, io: &mut Io<'_>) {
        if !self.question_fits() {
            self.send(&Message::PingReq(PingReq { client_id: None }), io);
            return;
        }
        let Some(register) = &mut self.outbox.register else { return };
        register.is_sent = true;
        let (topic_id, message_id) = (register.topic_id, Some(register.message_id));
        self.send(&Message::Register(Register { topic_id, message_id, topic: QUESTION }), io);
    }

    /// Repeats the REGISTER under way.
    pub(super) fn repeat_register(&mut self, io: &mut Io<'_>) {
        let Some(register) = &mut self.outbox.register else { return };
        if std::mem::take(&mut register.is_void) {
            register.message_id = self.gateway.unguessable_id();
            register.is_sent = false;
        }
        let (topic_id, message_id) = (register.topic_id, register.message_id);
        if !self.is_proven() {
            self.send_question(io);
        } else if let Some(name) = self.topics.name(topic_id).cloned() {
            self.send_register(topic_id, message_id, &name, io);
        }
    }

    fn send_register(&mut self, topic_id: u16, message_id: MessageId, name: &TopicName, io: &mut Io<'_>) {
        let register = Register { topic_id, message_id: Some(message_id), topic: name.text().as_str() };
        self.send(&Message::Register(register), io);
    }
}

/// Name in the REGISTER that proves an address. Short, so that it fits three times the bytes of any CONNECT.
const QUESTION: &str = "~";
const QUESTION_BYTES: usize = 7;
/// Wrong REGACKs of an unproven client after which it counts as lost.
const GUESSES_MAXIMUM: u8 = 5;

/// Bytes of a REGISTER.
pub(super) fn register_size(name: &TopicName) -> usize {
    let size = 6 + name.as_bytes().len();
    if size > u8::MAX.into() { size + 2 } else { size }
}
