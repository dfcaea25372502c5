//! Messages for the client.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenbin_sn_codec::v1_2::{Message, MessageId, PubAck, Publish, QoS, RegAck, Register, ReturnCode, Topic};

use super::{ClientEvent, ClientPeer, ClientTopic};
use crate::message_ids::{COPY_TIME, fingerprint};
use crate::output::Datagrams;

/// QoS 2 messages that the client has.
#[derive(Debug, Default)]
pub(super) struct Received {
    unreleased: Vec<Copied>,
    /// The last ones with the times of their release: copies may still be under way.
    released: VecDeque<(Copied, Instant)>,
}

/// What all copies of a message have in common. A broker without the session of before may count MsgIds anew: then
/// only the content tells a new message from a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    id: MessageId,
    fingerprint: u64,
}

/// Time in which a gateway may repeat a message.
const REPEAT_TIME: Duration = Duration::from_secs(60);
/// Released messages that are remembered.
const RELEASED_KEPT: usize = 16;
/// Unreleased messages that are remembered: more than any gateway sends at a time.
const UNRELEASED_KEPT: usize = 256;

impl Received {
    /// True for a new message.
    fn take(&mut self, message: Copied, dup: bool, now: Instant) -> bool {
        let kept = if dup { REPEAT_TIME } else { COPY_TIME };
        let is_copy = |(released, at): &(Copied, Instant)| *released == message && now < *at + kept;
        if self.unreleased.contains(&message) || self.released.iter().any(is_copy) {
            return false;
        }
        // Its sender has forgotten the other message with this id.
        self.unreleased.retain(|other| other.id != message.id);
        if self.unreleased.len() == UNRELEASED_KEPT {
            self.unreleased.remove(0);
        }
        self.unreleased.push(message);
        true
    }

    fn release(&mut self, id: MessageId, now: Instant) {
        if let Some(at) = self.unreleased.iter().position(|unreleased| unreleased.id == id) {
            self.released.push_back((self.unreleased.remove(at), now));
            if self.released.len() > RELEASED_KEPT {
                self.released.pop_front();
            }
        }
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
        let is_new = match (qos, message_id) {
            (QoS::ExactlyOnce, Some(id)) => {
                out.push(&Message::PubRec(id));
                let copied = Copied { id, fingerprint: fingerprint((&topic, publish.data)) };
                self.received.take(copied, publish.dup, now)
            }
            (QoS::AtLeastOnce, _) => {
                out.push(&Message::PubAck(PubAck { topic_id, message_id, code: ReturnCode::Accepted }));
                true
            }
            _ => true,
        };
        if is_new {
            let payload = Bytes::copy_from_slice(publish.data);
            self.events.push_back(ClientEvent::Message { topic, payload, qos, retain: publish.retain });
        }
    }

    fn handle_pubrel(&mut self, id: MessageId, now: Instant, out: &mut Datagrams) {
        self.received.release(id, now);
        out.push(&Message::PubComp(id));
    }
}
