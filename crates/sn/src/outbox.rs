//! Messages for the client: those that wait, and those under way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{PacketId, QoS};
use tenbin_sn_codec::v1_2::{self, Message, MessageId, Publish, Register, Topic};

use crate::gateway::Gateway;

/// Messages from the broker on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Messages that wait, oldest first.
    queue: VecDeque<Queued>,
    /// Bytes of the payloads in `queue`.
    queued_bytes: usize,
    /// QoS 1 and 2 messages under way, oldest first.
    window: Vec<InFlight>,
    /// The one REGISTER under way `[SN-REGISTER-4]`.
    pub(crate) register: Option<Registering>,
    /// MsgId of the last REGISTER.
    last_register: u16,
    /// QoS 2 messages that the client cannot get, while 3.1.1 has no reason in PUBREC: the broker will release them.
    given_up: Vec<PacketId>,
}

/// A message that was not sent yet.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) topic: Topic,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) dup: bool,
    /// Present at QoS 1 and 2.
    pub(crate) packet_id: Option<PacketId>,
    pub(crate) payload: Bytes,
}

/// A QoS 1 or 2 message under way.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: PacketId,
    /// The same number, unless QoS 1 has to prove an address: then one that cannot be guessed `[SN-MSGID-1]`.
    pub(crate) message_id: MessageId,
    /// The answer to it counts for the proof of the address.
    pub(crate) is_proof: bool,
    pub(crate) qos: QoS,
    pub(crate) step: DeliveryStep,
    /// The PUBLISH as sent, for repetitions; empty for a message of an earlier connection.
    datagram: Box<[u8]>,
    /// Its topic, if it is a registered id.
    pub(crate) topic_id: Option<u16>,
    /// The client rejected the topic id once, and the message is sent again after REGISTER.
    pub(crate) is_registered_again: bool,
    pub(crate) retry: Retry,
}

/// Progress of a message under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryStep {
    /// The client has not answered PUBLISH.
    Published,
    /// The client rejected the topic id: REGISTER comes first.
    Unregistered,
    /// QoS 2: the client answered PUBREC, and the broker has not answered it.
    Received,
    /// QoS 2: the client has not answered PUBREL.
    Released,
}

/// A REGISTER under way, or a question for the proof of an address.
#[derive(Debug)]
pub(crate) struct Registering {
    pub(crate) topic_id: u16,
    pub(crate) message_id: MessageId,
    /// It was sent, not only PINGREQ in its place.
    pub(crate) is_sent: bool,
    /// Topic id of a question that is PUBLISH. A client that knows the one of REGISTER takes it for a topic.
    pub(crate) publish_id: u16,
    pub(crate) form: Form,
    /// It was sent as PUBLISH with this MsgId: the next such PUBLISH has DUP `[SN-RETRY-1]`.
    was_published: bool,
    /// Another MsgId was answered, as by a guess: no answer counts until it is repeated, with a new MsgId.
    pub(crate) is_void: bool,
    pub(crate) since: Instant,
    pub(crate) retry: Retry,
}

/// Repetitions of one unanswered message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retry {
    pub(crate) at: Instant,
    left: u8,
}

/// The client answered none of all repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenUp;

impl Registering {
    /// A question for the one answer that only a receiver at the address can give: it repeats a topic id and a MsgId that
    /// cannot be guessed `[SN-ADDRESS-2]`. `is_topic` tells the topic ids that the client may know.
    ///
    /// It is REGISTER, whose answer is REGACK. Some stock clients ignore that: a client that answers PINGREQ behind it, and
    /// not REGISTER, gets PUBLISH on an id without a topic, whose answer is PUBACK.
    pub(crate) fn question(gateway: &Gateway, is_topic: impl Fn(u16) -> bool, now: Instant) -> Self {
        let topic_id = || loop {
            let id = gateway.unguessable_id().get();
            if !is_topic(id) {
                return id;
            }
        };
        let settings = &gateway.settings;
        let retry = Retry::new(now, settings.retry.min(QUESTION_PAUSE), settings.retries);
        let (publish_id, message_id) = (topic_id(), gateway.unguessable_id());
        Self { publish_id, ..Self::register(topic_id(), message_id, false, retry, now) }
    }

    /// A REGISTER.
    pub(crate) fn register(topic_id: u16, message_id: MessageId, is_sent: bool, retry: Retry, since: Instant) -> Self {
        let (publish_id, form) = (0, Form::Register);
        Self { topic_id, message_id, is_sent, publish_id, form, was_published: false, is_void: false, since, retry }
    }

    /// The question in its form of now. Its name is that of no topic, so that the answer, be it a refusal, says nothing of
    /// one.
    pub(crate) fn message(&mut self) -> Message<'static> {
        let message_id = Some(self.message_id);
        if self.form != Form::Publish {
            return Message::Register(Register { topic_id: self.topic_id, message_id, topic: QUESTION });
        }
        let (qos, topic) = (Some(v1_2::QoS::AtLeastOnce), Topic::Normal(self.publish_id));
        let dup = std::mem::replace(&mut self.was_published, true);
        Message::Publish(Publish { dup, qos, retain: false, topic, message_id, data: &[] })
    }

    /// Bytes of the question in either form.
    pub(crate) const QUESTION_BYTES: usize = 7;

    /// Whether a message is REGACK or PUBACK with both ids of the question; `None` if it is neither.
    pub(crate) fn is_answered_by(&self, message: &Message<'_>) -> Option<bool> {
        let (is_of_topic, message_id) = match message {
            Message::RegAck(regack) => (regack.topic_id == self.topic_id, regack.message_id),
            Message::PubAck(puback) => (puback.topic_id == self.publish_id, puback.message_id),
            _ => return None,
        };
        Some(self.is_sent && !self.is_void && is_of_topic && message_id == Some(self.message_id))
    }

    /// The step after an unanswered question: PINGREQ, or `true` for its repetition.
    ///
    /// # Errors
    /// No repetition is left.
    pub(crate) fn go_on(&mut self, gateway: &Gateway, now: Instant) -> Result<bool, GivenUp> {
        let retry = gateway.settings.retry;
        if self.is_sent && !self.is_void && self.form == Form::Register {
            self.form = Form::Pinged;
            self.retry.at = now + retry;
            return Ok(false);
        }
        self.retry.repeat(now, retry)?;
        self.form = match self.form {
            Form::Publish => Form::Answered,
            Form::Answered => Form::Publish,
            form => form,
        };
        if std::mem::take(&mut self.is_void) {
            self.message_id = gateway.unguessable_id();
            (self.is_sent, self.was_published) = (false, false);
        }
        Ok(true)
    }

    /// The client answers a PINGREQ. True if the question follows in its other form.
    pub(crate) fn is_ignored(&mut self) -> bool {
        let is_ignored = self.form == Form::Pinged && self.is_sent && !self.is_void;
        if is_ignored {
            self.form = Form::Publish;
        }
        is_ignored
    }
}

/// Bytes of PINGREQ.
pub(crate) const PINGREQ_BYTES: usize = 2;

/// Form of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Register,
    /// PINGREQ followed REGISTER.
    Pinged,
    /// The client answered PINGREQ, and not REGISTER.
    Publish,
    /// REGISTER again, in turn with PUBLISH.
    Answered,
}

/// Time for the answer to REGISTER before PINGREQ.
const QUESTION_PAUSE: Duration = Duration::from_secs(1);
/// Name in the REGISTER that proves an address. Short, so that it fits three times the bytes of any CONNECT.
const QUESTION: &str = "~";

impl Retry {
    /// A message is sent now for the first time.
    pub(crate) fn new(now: Instant, retry: Duration, retries: u8) -> Self {
        Self { at: now + retry, left: retries }
    }

    /// Whether the last repetition is under way.
    pub(crate) fn is_last(&self) -> bool {
        self.left == 0
    }

    /// Notes a repetition.
    ///
    /// # Errors
    /// None is left.
    pub(crate) fn repeat(&mut self, now: Instant, retry: Duration) -> Result<(), GivenUp> {
        self.left = self.left.checked_sub(1).ok_or(GivenUp)?; // [SN-RETRY-2]
        self.at = now + retry;
        Ok(())
    }
}

impl InFlight {
    /// A message that is sent now for the first time.
    pub(crate) fn published(message: &Queued, ids: Ids, datagram: &[u8], retry: Retry) -> Self {
        let topic_id = if let Topic::Normal(id) = message.topic { Some(id) } else { None };
        let Ids { id, message_id, is_proof } = ids;
        let (qos, datagram) = (message.qos, datagram.into());
        let step = DeliveryStep::Published;
        Self { id, message_id, is_proof, qos, step, datagram, topic_id, is_registered_again: false, retry }
    }

    /// A message of an earlier connection that the broker releases.
    pub(crate) fn released(id: PacketId, retry: Retry) -> Self {
        Self {
            id,
            message_id: message_id(id),
            is_proof: false,
            qos: QoS::ExactlyOnce,
            step: DeliveryStep::Released,
            datagram: Box::default(),
            topic_id: None,
            is_registered_again: false,
            retry,
        }
    }

    /// Bytes of the PUBLISH.
    pub(crate) fn size(&self) -> usize {
        self.datagram.len()
    }

    /// The PUBLISH with DUP.
    pub(crate) fn repeated(&mut self) -> &[u8] {
        Publish::mark_dup(&mut self.datagram); // [SN-RETRY-1]
        &self.datagram
    }
}

/// Numbers of a message under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    /// The broker's.
    pub(crate) id: PacketId,
    /// The client's.
    pub(crate) message_id: MessageId,
    pub(crate) is_proof: bool,
}

/// MsgId of a Packet Identifier: the same number.
pub(crate) fn message_id(id: PacketId) -> MessageId {
    MessageId::new(id.get()).expect("a Packet Identifier is not 0")
}

/// Packet Identifier of a MsgId: the same number.
pub(crate) fn packet_id(id: MessageId) -> PacketId {
    PacketId::new(id.get()).expect("a MsgId is not 0")
}

/// Given up messages that are remembered. A broker releases them at once.
const GIVEN_UP_MAXIMUM: usize = 64;

impl Outbox {
    /// Appends a message.
    pub(crate) fn push(&mut self, message: Queued) {
        self.queued_bytes += message.payload.len();
        self.queue.push_back(message);
    }

    pub(crate) fn front(&self) -> Option<&Queued> {
        self.queue.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Queued> {
        let message = self.queue.pop_front()?;
        self.queued_bytes -= message.payload.len();
        Some(message)
    }

    /// Copies the last payload out of the read buffer that it would keep alive.
    pub(crate) fn detach_last(&mut self) {
        if let Some(last) = self.queue.back_mut() {
            last.payload = Bytes::copy_from_slice(&last.payload);
        }
    }

    /// Removes the oldest QoS 0 message if there are too many messages. True if it removed one.
    pub(crate) fn drop_excess(&mut self, messages_maximum: usize, bytes_maximum: usize) -> bool {
        if self.queue.len() <= messages_maximum && self.queued_bytes <= bytes_maximum {
            return false;
        }
        let Some(oldest) = self.queue.iter().position(|message| message.qos == QoS::AtMostOnce) else { return false };
        let dropped = self.queue.remove(oldest).expect("it was found");
        self.queued_bytes -= dropped.payload.len(); // [SN-SLEEP-3]
        true
    }

    /// Messages that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the payloads that wait.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Waiting messages that cannot be dropped.
    pub(crate) fn queued_acknowledged(&self) -> usize {
        self.queue.iter().filter(|message| message.qos.is_acknowledged()).count()
    }

    pub(crate) fn is_queued(&self, id: PacketId) -> bool {
        self.queue.iter().any(|message| message.packet_id == Some(id))
    }

    /// Messages under way.
    pub(crate) fn window(&self) -> &[InFlight] {
        &self.window
    }

    pub(crate) fn window_mut(&mut self) -> &mut Vec<InFlight> {
        &mut self.window
    }

    pub(crate) fn in_flight(&mut self, id: PacketId) -> Option<&mut InFlight> {
        self.window.iter_mut().find(|message| message.id == id)
    }

    /// The message under way with a MsgId of the client.
    pub(crate) fn in_flight_of(&mut self, id: MessageId) -> Option<&mut InFlight> {
        self.window.iter_mut().find(|message| message.message_id == id)
    }

    pub(crate) fn remove(&mut self, id: PacketId) {
        self.window.retain(|message| message.id != id);
    }

    /// Whether a message or the REGISTER under way needs a topic id.
    pub(crate) fn uses(&self, topic_id: u16) -> bool {
        self.queue.iter().any(|message| message.topic == Topic::Normal(topic_id))
            || self.window.iter().any(|message| message.topic_id == Some(topic_id))
            || self.register.as_ref().is_some_and(|register| register.topic_id == topic_id)
    }

    /// Whether nothing is under way and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.nothing_under_way()
    }

    /// Whether no message waits or is under way.
    pub(crate) fn has_nothing_but_register(&self) -> bool {
        self.queue.is_empty() && self.window.is_empty()
    }

    pub(crate) fn nothing_under_way(&self) -> bool {
        self.window.is_empty() && self.register.is_none()
    }

    /// The first message under way whose topic must be registered again.
    pub(crate) fn unregistered(&self) -> Option<u16> {
        self.window.iter().find(|message| message.step == DeliveryStep::Unregistered)?.topic_id
    }

    /// Whether the client has to get a message, be it for the first time or again.
    pub(crate) fn has_message(&self) -> bool {
        let is_again =
            |message: &InFlight| matches!(message.step, DeliveryStep::Published | DeliveryStep::Unregistered);
        !self.queue.is_empty() || self.window.iter().any(is_again)
    }

    /// An unknown answer came, as by a guess: those to messages under way prove nothing.
    pub(crate) fn forget_proofs(&mut self) {
        self.window.iter_mut().for_each(|message| message.is_proof = false);
    }

    /// Notes a QoS 2 message that the client cannot get.
    pub(crate) fn note_given_up(&mut self, id: PacketId) {
        if self.given_up.len() == GIVEN_UP_MAXIMUM {
            self.given_up.remove(0);
        }
        self.given_up.push(id);
    }

    /// Whether the broker releases a message that the client cannot get.
    pub(crate) fn take_given_up(&mut self, id: PacketId) -> bool {
        let at = self.given_up.iter().position(|&given_up| given_up == id);
        at.map(|at| self.given_up.swap_remove(at)).is_some()
    }

    /// MsgId of the next REGISTER.
    pub(crate) fn next_register(&mut self) -> MessageId {
        self.last_register = self.last_register % u16::MAX + 1;
        MessageId::new(self.last_register).expect("1 to 65,535")
    }

    /// When the first repetition is due.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let messages = self.window.iter().filter(|message| message.awaits_client()).map(|message| message.retry.at);
        messages.chain(self.register.as_ref().map(|register| register.retry.at)).min()
    }
}

impl InFlight {
    /// Whether the client's answer is due, and not the broker's or another message's.
    pub(crate) fn awaits_client(&self) -> bool {
        matches!(self.step, DeliveryStep::Published | DeliveryStep::Released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(qos: QoS, payload: &'static [u8]) -> Queued {
        let packet_id = qos.is_acknowledged().then(|| PacketId::new(1).expect("not 0"));
        let payload = Bytes::from_static(payload);
        Queued { topic: Topic::Normal(1), qos, retain: false, dup: false, packet_id, payload }
    }

    #[test]
    fn excess_drops_the_oldest_message_at_qos_0_only() {
        let mut outbox = Outbox::default();
        outbox.push(queued(QoS::AtLeastOnce, b"one"));
        outbox.push(queued(QoS::AtMostOnce, b"two"));
        outbox.push(queued(QoS::AtMostOnce, b"three"));
        assert!(!outbox.drop_excess(3, 11));
        assert!(outbox.drop_excess(3, 10), "too many bytes");
        assert!(outbox.drop_excess(1, 10), "too many messages");
        assert!(!outbox.drop_excess(0, 0), "only QoS 1 is left");
        assert_eq!((outbox.queued(), outbox.queued_bytes()), (1, 3));
        assert_eq!(outbox.pop().expect("QoS 1").payload, "one");
        assert_eq!(outbox.queued_bytes(), 0);
    }
}
