//! Messages for the client.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_sn_codec::v1_2::{Message, MessageId, PubAck, Publish, QoS, RegAck, Register, ReturnCode, Topic};

use super::{ClientEvent, ClientPeer, ClientTopic};
use crate::message_ids::{COPY_TIME, IdRun, RELEASE_TIME, fingerprint};
use crate::output::Datagrams;

/// QoS 2 messages that the client has.
#[derive(Debug, Default)]
pub(super) struct Received {
    unreleased: Vec<(Copied, Option<Doubtful>)>,
    /// The last ones with the times of their release: copies may still be under way.
    released: VecDeque<(Copied, Instant)>,
    ids: IdRun,
}

/// What all copies of a message have in common. A broker without the session of before may count MsgIds anew: then
/// only the content tells a new message from a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    id: MessageId,
    fingerprint: u64,
}

/// A message that is either a new one, or a copy that the network made of the last one with its MsgId: it is passed on
/// only once the gateway releases it.
#[derive(Debug)]
struct Doubtful {
    event: ClientEvent,
    /// When PUBREC is due; `None` once it is sent. Until then, PUBREL belongs to the last message.
    answer_at: Option<Instant>,
}

/// Time in which a gateway may repeat a message.
const REPEAT_TIME: Duration = Duration::from_secs(60);
/// Released messages that are remembered.
const RELEASED_KEPT: usize = IdRun::LONG;
/// Unreleased messages that are remembered: more than any gateway sends at a time.
const UNRELEASED_KEPT: usize = 256;

impl Received {
    /// Takes a message, and returns it if it is a new one. The second value says whether PUBREC is due at once.
    fn take(&mut self, message: Copied, dup: bool, event: ClientEvent, now: Instant) -> (Option<ClientEvent>, bool) {
        let kept = if dup { REPEAT_TIME } else { COPY_TIME };
        let last = self.released.iter().rev().find(|(released, at)| *released == message && now < *at + kept);
        let open = self.unreleased.iter().find(|(other, _)| *other == message);
        if let Some((_, held)) = open {
            return (None, held.as_ref().is_none_or(|held| held.answer_at.is_none()));
        }
        if last.is_some() && (dup || self.ids.is_long()) {
            return (None, true);
        }
        self.ids.note(message.id);
        // Its sender has forgotten the other message with this id.
        self.unreleased.retain(|(other, _)| other.id != message.id);
        if self.unreleased.len() == UNRELEASED_KEPT {
            self.unreleased.remove(0);
        }
        let (held, new, is_due) = match last.map(|(_, at)| *at + RELEASE_TIME) {
            None => (None, Some(event), true),
            Some(at) if at <= now => (Some(Doubtful { event, answer_at: None }), None, true),
            Some(at) => (Some(Doubtful { event, answer_at: Some(at) }), None, false),
        };
        self.unreleased.push((message, held));
        (new, is_due)
    }

    /// Ends an exchange. Returns its message if it was held.
    fn release(&mut self, id: MessageId, now: Instant) -> Option<ClientEvent> {
        let Some(at) = self.unreleased.iter().position(|(unreleased, _)| unreleased.id == id) else {
            // PUBCOMP was lost: a copy of the message has time to come, from now on.
            if let Some((_, at)) = self.released.iter_mut().rev().find(|(released, _)| released.id == id) {
                *at = now;
            }
            return None;
        };
        if let (_, Some(Doubtful { answer_at: Some(at), .. })) = &mut self.unreleased[at] {
            *at = now + RELEASE_TIME;
            return None;
        }
        let (message, held) = self.unreleased.remove(at);
        self.released.push_back((message, now));
        if self.released.len() > RELEASED_KEPT {
            self.released.pop_front();
        }
        held.map(|held| held.event)
    }

    /// When the first PUBREC of a doubtful message is due.
    pub(super) fn answer_at(&self) -> Option<Instant> {
        self.unreleased.iter().filter_map(|(_, held)| held.as_ref()?.answer_at).min()
    }

    /// Returns a doubtful message whose PUBREC is due, and counts it as answered.
    fn take_due(&mut self, now: Instant) -> Option<MessageId> {
        self.unreleased.iter_mut().find_map(|(message, held)| {
            held.as_mut()?.answer_at.take_if(|at| *at <= now)?;
            Some(message.id)
        })
    }
}

impl ClientPeer {
    /// Handles a message of the gateway that begins an exchange.
    pub(super) fn handle_delivery(&mut self, message: &Message<'_>, now: Instant, out: &mut Datagrams) {
        match message {
            Message::Register(register) => self.handle_register(register, out),
            Message::Publish(publish) => self.handle_publish(publish, now, out),
            Message::PubRel(id) => self.handle_pubrel(*id, now, out),
            _ => {}
        }
    }

    fn handle_register(&mut self, register: &Register<'_>, out: &mut Datagrams) {
        self.learn(register.topic_id, register.topic.into());
        let (topic_id, message_id, code) = (register.topic_id, register.message_id, ReturnCode::Accepted);
        out.push(&Message::RegAck(RegAck { topic_id, message_id, code }));
    }

    fn handle_publish(&mut self, publish: &Publish<'_>, now: Instant, out: &mut Datagrams) {
        let topic = match publish.topic {
            Topic::Normal(id) => self.names.get(&id).cloned().map(ClientTopic::Name),
            Topic::Predefined(id) => Some(ClientTopic::Predefined(id)),
            Topic::Short(name) => Some(ClientTopic::Short(name)),
            Topic::Reserved(_) => None,
        };
        let (topic_id, message_id) = (publish.topic.field(), publish.message_id);
        let Some(topic) = topic else {
            out.push(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::InvalidTopicId }));
            return;
        };
        let qos = publish.qos.unwrap_or_default();
        let copied = fingerprint((&topic, publish.data));
        let payload = Bytes::copy_from_slice(publish.data);
        let event = ClientEvent::Message { topic, payload, qos, retain: publish.retain };
        let new = match (qos, message_id) {
            (QoS::ExactlyOnce, Some(id)) => {
                let (new, is_due) = self.received.take(Copied { id, fingerprint: copied }, publish.dup, event, now);
                // A gateway without PUBCOMP would answer a later PUBREC with the release of the last message.
                out.push(&if is_due { Message::PubRec(id) } else { Message::PubComp(id) });
                new
            }
            (QoS::AtLeastOnce, _) => {
                out.push(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }));
                Some(event)
            }
            _ => Some(event),
        };
        self.events.extend(new);
    }

    /// Sends the PUBRECs of doubtful messages that are due.
    pub(super) fn answer_doubtful(&mut self, now: Instant, out: &mut Datagrams) {
        while let Some(id) = self.received.take_due(now) {
            out.push(&Message::PubComp(id));
            out.push(&Message::PubRec(id));
        }
    }

    fn handle_pubrel(&mut self, id: MessageId, now: Instant, out: &mut Datagrams) {
        let held = self.received.release(id, now);
        self.events.extend(held);
        out.push(&Message::PubComp(id));
    }
}
