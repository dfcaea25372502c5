//! Topic Aliases (MQTT 5.0 §3.3.2.3.4): numbers for topics, one set for each direction of one connection, gone
//! with it `[MQTT-3.3.2-7]`.

use std::collections::HashMap;
use std::num::NonZeroU16;

use tenbin_codec::TopicName;

use crate::Violation;

/// Aliases that the peer introduces.
#[derive(Debug, Default)]
pub(crate) struct InboundAliases {
    /// Index = alias − 1; grows as far as the peer uses it, at most to the maximum.
    topics: Vec<Option<TopicName>>,
    maximum: u16,
    /// Of all topics; at most 16.8 million.
    bytes: u32,
}

impl InboundAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self { topics: Vec::new(), maximum, bytes: 0 }
    }

    /// The topic that a PUBLISH means; remembers one that comes with an alias.
    pub(crate) fn resolve(&mut self, topic: TopicName, alias: NonZeroU16) -> Result<TopicName, Violation> {
        if alias.get() > self.maximum {
            return Err(Violation::TopicAliasTooHigh(alias.get())); // [MQTT-3.3.2-9]
        }
        let index = usize::from(alias.get() - 1);
        if topic.is_empty() {
            return self.topics.get(index).cloned().flatten().ok_or(Violation::TopicAliasUnknown(alias.get()));
        }
        if self.topics.len() <= index {
            self.topics.resize(index + 1, None);
        }
        let place = &mut self.topics[index];
        let bytes =
            self.bytes as usize - place.as_ref().map_or(0, |before| before.as_bytes().len()) + topic.as_bytes().len();
        let bytes_maximum = BYTES_MAX + usize::from(self.maximum) * TOPIC_BYTES_MAX;
        if bytes > bytes_maximum {
            return Err(Violation::TopicAliasBytes(bytes_maximum));
        }
        self.bytes = bytes as u32;
        *place = Some(topic.detach());
        Ok(topic)
    }
}

/// Aliases that we introduce: the first topics that come get one, until all are given.
#[derive(Debug)]
pub(crate) struct OutboundAliases {
    aliases: HashMap<Box<[u8]>, NonZeroU16>,
    maximum: NonZeroU16,
}

impl OutboundAliases {
    pub(crate) fn new(maximum: NonZeroU16) -> Self {
        Self { aliases: HashMap::new(), maximum }
    }

    /// Alias for `topic`, and whether the peer knows it already; `None` when none is to be used, as for a long topic. One that the
    /// peer does not know is given by [`OutboundAliases::introduce`].
    pub(crate) fn find(&self, topic: &[u8]) -> Option<(NonZeroU16, bool)> {
        if topic.len() > TOPIC_BYTES_MAX {
            return None;
        }
        if let Some(&alias) = self.aliases.get(topic) {
            return Some((alias, true));
        }
        let next = u16::try_from(self.aliases.len() + 1).ok().filter(|next| *next <= self.maximum.get())?; // [MQTT-3.1.2-26]
        Some((NonZeroU16::new(next)?, false))
    }

    /// A PUBLISH with `topic` and this alias, the one that [`OutboundAliases::find`] gave, is being sent.
    pub(crate) fn introduce(&mut self, topic: &[u8], alias: NonZeroU16) {
        self.aliases.insert(topic.into(), alias);
    }
}

/// Longest topic that we give an alias, and bytes of topic that each alias gives the peer.
const TOPIC_BYTES_MAX: usize = 256;
/// Bytes of topics that the peer may introduce beside those.
const BYTES_MAX: usize = 16 * 1024;
