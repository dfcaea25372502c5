use tenbin_codec::Will;

use crate::gateway::Gateway;
use crate::topic_ids::{TopicId, TopicIds, nth_after};

/// State of a client without Clean Session that outlives its connection: its topic ids and its Will.
///
/// Subscriptions and messages are the broker's.
#[derive(Debug, Default)]
pub struct ClientState {
    pub(crate) topics: TopicIds,
    pub(crate) will: Option<Box<Will>>,
}

impl ClientState {
    /// Restores a stored state. `next_id` is that of [`ClientState::next_topic_id`].
    ///
    /// Topics beyond the gateway's bounds are left out, with all that follow: their ids are unknown from then on.
    pub fn restore<'a>(
        next_id: u16,
        topics: impl IntoIterator<Item = TopicId<'a>>,
        will: Option<Will>,
        gateway: &Gateway,
    ) -> Self {
        let mut state = Self { topics: TopicIds::after_restart(next_id), will: will.map(Box::new) };
        let _rest = topics.into_iter().find(|topic| !state.topics.restore(*topic, &gateway.names, &gateway.settings));
        state
    }

    /// The id of the topic at `position` in a table that begins at `first`, as earlier versions stored it.
    pub fn topic_id_at(first: u16, position: u16) -> u16 {
        nth_after(first.max(1), position)
    }

    /// Whether the client may know this topic id, now or later.
    pub fn may_know_topic(&self, id: u16) -> bool {
        self.topics.may_assign(id)
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.topics().next().is_none() && self.will.is_none()
    }

    /// Id of the next topic.
    pub fn next_topic_id(&self) -> u16 {
        self.topics.next_id()
    }

    /// Topics in any order.
    pub fn topics(&self) -> impl Iterator<Item = TopicId<'_>> {
        self.topics.iter()
    }

    /// The Will.
    pub fn will(&self) -> Option<&Will> {
        self.will.as_deref()
    }
}
