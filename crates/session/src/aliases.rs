//! Topic Aliases (MQTT 5.0 §3.3.2.3.4): numbers for topics, separate for each direction of a connection.
//!
//! They end with the connection `[MQTT-3.3.2-7]`.

use std::collections::HashMap;
use std::num::NonZeroU16;

use tenbin_codec::TopicName;

use crate::Violation;

/// Aliases that the peer introduces.
#[derive(Debug, Default)]
pub(crate) struct InboundAliases {
    /// Indexed by alias − 1. Grows to the highest used alias, at most to `maximum`.
    topics: Vec<Option<TopicName>>,
    maximum: u16,
    /// Bytes of all topics; at most 16.8 million.
    bytes: u32,
}

impl InboundAliases {
    pub(crate) fn new(maximum: u16) -> Self {
        Self { topics: Vec::new(), maximum, bytes: 0 }
    }

    /// The topic for which an alias stands.
    pub(crate) fn topic(&self, alias: NonZeroU16) -> Option<&TopicName> {
        self.topics.get(usize::from(alias.get() - 1))?.as_ref()
    }

    /// Returns the topic of a PUBLISH, and stores a topic that comes with an alias.
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

/// Aliases that this side introduces. The first topics get one, until none is left.
#[derive(Debug)]
pub(crate) struct OutboundAliases {
    aliases: HashMap<Box<[u8]>, NonZeroU16>,
    maximum: NonZeroU16,
}

impl OutboundAliases {
    pub(crate) fn new(maximum: NonZeroU16) -> Self {
        Self { aliases: HashMap::new(), maximum }
    }

    /// Returns the alias for `topic`, and whether the peer knows it; `None` if there is no alias, as for a long topic.
    ///
    /// [`OutboundAliases::introduce`] assigns an alias that the peer does not know yet.
    pub(crate) fn find(&self, topic: &[u8]) -> Option<(NonZeroU16, bool)> {
        if topic.len() > TOPIC_BYTES_MAX {
            return None;
        }
        if let Some(&alias) = self.aliases.get(topic) {
            return Some((alias, true));
        }
        // At most the peer's Topic Alias Maximum [MQTT-3.1.2-26].
        let next = u16::try_from(self.aliases.len() + 1).ok().filter(|next| *next <= self.maximum.get())?;
        Some((NonZeroU16::new(next)?, false))
    }

    /// The topic for which an alias stands. It searches all of them.
    pub(crate) fn topic(&self, alias: NonZeroU16) -> Option<&[u8]> {
        self.aliases.iter().find(|(_, known)| **known == alias).map(|(topic, _)| &**topic)
    }

    /// Records that a PUBLISH introduces the alias from [`OutboundAliases::find`].
    pub(crate) fn introduce(&mut self, topic: &[u8], alias: NonZeroU16) {
        self.aliases.insert(topic.into(), alias);
    }
}

/// Longest topic that gets an alias; also the bytes of topics that each granted alias allows the peer.
const TOPIC_BYTES_MAX: usize = 256;
/// Additional bytes of topics that the peer may introduce.
const BYTES_MAX: usize = 16 * 1024;
