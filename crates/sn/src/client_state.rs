use tenbin_codec::{TopicName, Will};

use crate::gateway::Gateway;
use crate::topic_ids::{Knowledge, TopicIds};

/// State of a client without Clean Session that outlives its connection: its topic ids and its Will.
///
/// Subscriptions and messages are the broker's.
#[derive(Debug, Default)]
pub struct ClientState {
    pub(crate) topics: TopicIds,
    pub(crate) will: Option<Box<Will>>,
}

impl ClientState {
    /// Restores a stored state: names in the order of their ids, from `first_id` up, and whether the client knows the id.
    ///
    /// Names beyond the gateway's bounds are left out, with all that follow: their ids are unknown from then on.
    pub fn restore<'a>(
        first_id: u16,
        topics: impl IntoIterator<Item = (&'a TopicName, bool)>,
        will: Option<Will>,
        gateway: &Gateway,
    ) -> Self {
        let mut state = Self { topics: TopicIds::from_first(first_id), will: will.map(Box::new) };
        for (name, is_known) in topics {
            let Ok(id) = state.topics.assign(name, &gateway.names, &gateway.settings) else { break };
            if is_known {
                state.topics.set_knowledge(id, Knowledge::Known);
            }
        }
        state
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.topics().next().is_none() && self.will.is_none()
    }

    /// Id of the first topic.
    pub fn first_topic_id(&self) -> u16 {
        self.topics.first_id()
    }

    /// Topic names in the order of their ids, and whether the client knows the id.
    pub fn topics(&self) -> impl Iterator<Item = (&TopicName, bool)> {
        self.topics.iter()
    }

    /// The Will.
    pub fn will(&self) -> Option<&Will> {
        self.will.as_deref()
    }
}
