//! Messages for the client: those that wait, and those under way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_codec::{PacketId, QoS};
use tenbin_sn_codec::v1_2::{MessageId, Publish, Topic};

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
    pub(crate) qos: QoS,
    pub(crate) step: Step,
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
pub(crate) enum Step {
    /// The client has not answered PUBLISH.
    Published,
    /// The client rejected the topic id: REGISTER comes first.
    Unregistered,
    /// QoS 2: the client answered PUBREC, and the broker has not answered it.
    Received,
    /// QoS 2: the client has not answered PUBREL.
    Released,
}

/// A REGISTER under way.
#[derive(Debug)]
pub(crate) struct Registering {
    pub(crate) topic_id: u16,
    pub(crate) message_id: MessageId,
    /// It was sent, not only PINGREQ in its place.
    pub(crate) is_sent: bool,
    /// Another MsgId was answered, as by a guess: no answer counts until it is repeated, with a new MsgId.
    pub(crate) is_void: bool,
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

impl Retry {
    /// A message is sent now for the first time.
    pub(crate) fn new(now: Instant, retry: Duration, retries: u8) -> Self {
        Self { at: now + retry, left: retries }
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
    pub(crate) fn published(id: PacketId, qos: QoS, topic: Topic, datagram: &[u8], retry: Retry) -> Self {
        let topic_id = if let Topic::Normal(id) = topic { Some(id) } else { None };
        let datagram = datagram.into();
        Self { id, qos, step: Step::Published, datagram, topic_id, is_registered_again: false, retry }
    }

    /// A message of an earlier connection that the broker releases.
    pub(crate) fn released(id: PacketId, retry: Retry) -> Self {
        Self {
            id,
            qos: QoS::ExactlyOnce,
            step: Step::Released,
            datagram: Box::default(),
            topic_id: None,
            is_registered_again: false,
            retry,
        }
    }

    /// The PUBLISH with DUP.
    pub(crate) fn repeated(&mut self) -> &[u8] {
        Publish::mark_dup(&mut self.datagram); // [SN-RETRY-1]
        &self.datagram
    }

    /// MsgId, the same number as the broker's Packet Identifier `[SN-MSGID-1]`.
    pub(crate) fn message_id(&self) -> MessageId {
        message_id(self.id)
    }
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

    pub(crate) fn nothing_under_way(&self) -> bool {
        self.window.is_empty() && self.register.is_none()
    }

    /// The first message under way whose topic must be registered again.
    pub(crate) fn unregistered(&self) -> Option<u16> {
        self.window.iter().find(|message| message.step == Step::Unregistered)?.topic_id
    }

    /// Whether the client has to get a message, be it for the first time or again.
    pub(crate) fn has_message(&self) -> bool {
        let is_again = |message: &InFlight| matches!(message.step, Step::Published | Step::Unregistered);
        !self.queue.is_empty() || self.window.iter().any(is_again)
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
        matches!(self.step, Step::Published | Step::Released)
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
