//! REGISTER in both directions.

use std::time::Instant;

use tenbin_codec::TopicName;
use tenbin_sn_codec::v1_2::{Message, MessageId, RegAck, Register, ReturnCode};

use super::{Action, End, GatewayPeer, PeerState, Reach};
use crate::candidate::GUESSES_MAXIMUM;
use crate::gateway::Gateway;
use crate::outbox::{PINGREQ_BYTES, Registering};
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
        if !is_proven {
            if register.is_answered_by(&Message::RegAck(*regack)) == Some(true) {
                return self.prove(io);
            }
            // One guess for each MsgId, and a few for each client.
            io.output.drops.note(DropCause::Unexpected);
            register.is_void = true;
            self.guesses += 1;
            return if self.guesses == GUESSES_MAXIMUM { self.lose(End::NoAnswer, io) } else { Action::Continue };
        }
        // A refusal may leave the id out.
        let is_of_topic = register.topic_id == regack.topic_id || regack.code != ReturnCode::Accepted;
        if !is_of_topic || Some(register.message_id) != regack.message_id {
            io.output.drops.note(DropCause::Unexpected);
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

    /// The client has answered the question: it gets its messages.
    pub(super) fn prove(&mut self, io: &mut Io<'_>) -> Action {
        let was_new = self.is_new();
        self.reach = Reach::Proven;
        self.outbox.register = None;
        if !was_new {
            self.repeat_all(io);
        }
        self.deliver_waiting(io);
        Action::Continue
    }

    /// Tells the client the id of a topic, before the first PUBLISH on it `[SN-DELIVER-1]`.
    pub(super) fn register(&mut self, topic_id: u16, io: &mut Io<'_>) {
        let Some(name) = self.topics.name(topic_id).cloned() else { return };
        let (message_id, retry) = (self.outbox.next_register(), self.first_try(io.now));
        self.send_register(topic_id, message_id, &name, io);
        self.outbox.register = Some(Registering::register(topic_id, message_id, true, retry, io.now));
    }

    /// Asks the client at an unproven address for the one answer that only it can give `[SN-ADDRESS-2]`.
    pub(super) fn ask_for_proof(&mut self, io: &mut Io<'_>) {
        if self.outbox.has_message() && self.may_deliver(io.now) {
            self.ask(io);
        }
    }

    /// Whether a question for the proof of the address is under way.
    pub fn is_asked(&self) -> bool {
        !self.is_proven() && self.outbox.register.is_some()
    }

    /// When the question for the proof of the address was asked first, if one is under way.
    pub fn asked_at(&self) -> Option<Instant> {
        self.outbox.register.as_ref().filter(|_| !self.is_proven()).map(|question| question.since)
    }

    /// Whether [`GatewayPeer::ask`] asks: the client listens, and is not asked already.
    pub fn may_be_asked(&self) -> bool {
        !self.is_proven()
            && self.outbox.register.is_none()
            && matches!(self.state, PeerState::Active | PeerState::Awake(_))
    }

    /// Asks the client for the proof of its address, unless it is asked already.
    pub fn ask(&mut self, io: &mut Io<'_>) {
        if !self.may_be_asked() {
            return;
        }
        let is_topic = |id| self.topics.may_assign(id);
        self.outbox.register = Some(Registering::question(&self.gateway, is_topic, io.now));
        self.send_question(io);
    }

    /// Goes on with the question, and with messages, after a message of the client: it has added to the bytes that may
    /// be sent.
    pub(super) fn go_on_asking(&mut self, is_pingresp: bool, io: &mut Io<'_>) {
        let fits = self.question_fits();
        match &mut self.outbox.register {
            None => self.ask_for_proof(io),
            Some(register) => {
                let is_unsent = !register.is_sent && (is_pingresp || fits);
                if is_unsent || (is_pingresp && register.is_ignored()) {
                    self.send_question(io);
                }
            }
        }
        self.deliver_waiting(io);
        if is_pingresp {
            self.ask_for_bytes(io);
        }
    }

    /// Sends PINGREQ, if the next message to an unproven address waits for the bytes of its answer.
    pub(super) fn ask_for_bytes(&mut self, io: &mut Io<'_>) {
        if self.lacks_bytes(io.now) {
            self.send_ping(io);
        }
    }

    /// The client has answered neither the question nor its repetitions, but lives.
    pub(super) fn give_register_up(&mut self, io: &mut Io<'_>) -> Action {
        let retry = self.first_try(io.now);
        let is_proven = self.is_proven();
        match &mut self.outbox.register {
            Some(register) if is_proven => {
                // Some clients ignore REGISTER, and have no use for its topic. [SN-REGISTER-5]
                let topic_id = register.topic_id;
                self.topics.set_knowledge(topic_id, Knowledge::Refused);
                self.outbox.register = None;
                self.deliver_waiting(io);
            }
            Some(register) => register.retry = retry,
            None => {}
        }
        Action::Continue
    }

    /// Whether the REGISTER under way may be sent.
    pub(super) fn question_fits(&self) -> bool {
        match self.reach {
            // Messages before the proof need the bytes of a PINGREQ, whose answer allows further ones.
            Reach::Unproven { budget, is_new, .. } => {
                Registering::QUESTION_BYTES + usize::from(is_new) * PINGREQ_BYTES <= budget
            }
            Reach::Proven => true,
        }
    }

    /// Sends the REGISTER that is to prove the address. Until it fits, PINGREQ, whose answers add to the bytes that may be sent.
    fn send_question(&mut self, io: &mut Io<'_>) {
        if !self.question_fits() {
            return self.send_ping(io);
        }
        let Some(register) = &mut self.outbox.register else { return };
        register.is_sent = true;
        let question = register.message();
        self.send(&question, io);
    }

    /// Repeats the REGISTER under way.
    pub(super) fn repeat_register(&mut self, io: &mut Io<'_>) {
        let is_proven = self.is_proven();
        let Some(register) = &mut self.outbox.register else { return };
        let (topic_id, message_id) = (register.topic_id, register.message_id);
        if !is_proven {
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

/// Bytes of a REGISTER.
pub(super) fn register_size(name: &TopicName) -> usize {
    let size = 6 + name.as_bytes().len();
    if size > u8::MAX.into() { size + 2 } else { size }
}
