use tenbin_codec::{PacketId, Publish, TopicName};

use crate::status::Side;

/// The oldest message without an answer when its destination ended the connection for a packet, as DISCONNECT says.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    from: Side,
    id: PacketId,
    /// At the destination.
    topic: TopicName,
    /// Connections in a row that ended so, with this message.
    losses: u32,
}

/// Losses after which a message is the reason.
const LOSSES: u32 = 3;

impl Suspect {
    /// The suspect after one more loss.
    pub(crate) fn after(before: Option<&Self>, from: Side, id: PacketId, topic: &TopicName) -> Self {
        let same = before.filter(|before| (before.from, before.id, &before.topic) == (from, id, topic));
        Self { from, id, topic: topic.clone(), losses: same.map_or(0, |same| same.losses) + 1 }
    }

    pub(crate) fn is_from(&self, side: Side) -> bool {
        self.from == side
    }

    /// Whether this is the message, and its destination can never be given it.
    pub(crate) fn is_hopeless(&self, from: Side, publish: &Publish) -> bool {
        let is_same = self.from == from && publish.packet_id == Some(self.id) && publish.topic == self.topic;
        self.losses >= LOSSES && is_same && publish.dup
    }
}
