use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;
use tenbin_codec::TopicName;

use crate::names::Names;
use crate::settings::Settings;

/// Topic ids of one client: positions in a table, from its first id up `[SN-TOPICID-1]`. After 65,534 comes 1.
#[derive(Debug, Default)]
pub(crate) struct TopicIds {
    /// The first id less 1.
    offset: u16,
    /// In the order of their ids.
    entries: Vec<Entry>,
    ids: HashMap<Arc<TopicName>, u16, FxBuildHasher>,
    bytes: usize,
    /// Changes so far.
    version: u32,
}

#[derive(Debug)]
struct Entry {
    name: Arc<TopicName>,
    knowledge: Knowledge,
}

/// Whether the client knows a topic id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// Assigned, and not told to the client, or rejected by it as unknown.
    Unknown,
    /// The client may use it, and the gateway too.
    Known,
    /// The client refused a REGISTER: its messages are dropped.
    Refused,
}

/// No room for a further topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFull;

impl TopicIds {
    /// No topics yet, and the id of the first one.
    pub(crate) fn from_first(id: u16) -> Self {
        Self { offset: id.clamp(1, LAST_ID) - 1, ..Self::default() }
    }

    /// Id of the first topic.
    pub(crate) fn first_id(&self) -> u16 {
        self.offset + 1
    }

    /// Whether a topic may have this id, now or later.
    pub(crate) fn may_assign(&self, id: u16, settings: &Settings) -> bool {
        self.position(id).is_some_and(|position| position < settings.topics_maximum.into())
    }

    /// Name of an id that the client knows.
    #[inline]
    pub(crate) fn known_name(&self, id: u16) -> Option<&TopicName> {
        let entry = self.entry(id)?;
        (entry.knowledge == Knowledge::Known).then_some(&*entry.name)
    }

    /// Name of an assigned id.
    pub(crate) fn name(&self, id: u16) -> Option<&Arc<TopicName>> {
        self.entry(id).map(|entry| &entry.name)
    }

    pub(crate) fn knowledge(&self, id: u16) -> Knowledge {
        self.entry(id).map_or(Knowledge::Unknown, |entry| entry.knowledge)
    }

    pub(crate) fn set_knowledge(&mut self, id: u16, knowledge: Knowledge) {
        if let Some(entry) = self.position(id).and_then(|at| self.entries.get_mut(at))
            && entry.knowledge != knowledge
        {
            entry.knowledge = knowledge;
            self.version = self.version.wrapping_add(1);
        }
    }

    /// Id of a name, if it has one.
    pub(crate) fn id(&self, name: &TopicName) -> Option<u16> {
        self.ids.get(name).copied()
    }

    /// Id of a name, a new one if necessary.
    ///
    /// # Errors
    /// The client has too many topics, or all clients together too many names.
    pub(crate) fn assign(&mut self, name: &TopicName, names: &Names, settings: &Settings) -> Result<u16, TableFull> {
        if let Some(id) = self.id(name) {
            return Ok(id); // [SN-REGISTER-2]
        }
        let bytes = self.bytes + name.as_bytes().len();
        let is_full = self.entries.len() >= settings.topics_maximum.min(LAST_ID).into();
        if is_full || bytes > settings.topic_bytes_maximum {
            return Err(TableFull); // [SN-BOUND-1]
        }
        let name = names.intern(name).ok_or(TableFull)?;
        let position = u32::from(self.offset) + self.entries.len() as u32;
        let id = (position % u32::from(LAST_ID)) as u16 + 1;
        self.entries.push(Entry { name: Arc::clone(&name), knowledge: Knowledge::Unknown });
        self.ids.insert(name, id);
        self.bytes = bytes;
        self.version = self.version.wrapping_add(1);
        Ok(id)
    }

    /// Number of changes so far.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Names in the order of their ids, and whether the client knows the id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TopicName, bool)> {
        self.entries.iter().map(|entry| (&*entry.name, entry.knowledge == Knowledge::Known))
    }

    fn entry(&self, id: u16) -> Option<&Entry> {
        self.entries.get(self.position(id)?)
    }

    fn position(&self, id: u16) -> Option<usize> {
        let number = id.checked_sub(1).filter(|&number| number < LAST_ID)?;
        let position = number.checked_sub(self.offset).unwrap_or_else(|| number + (LAST_ID - self.offset));
        Some(position.into())
    }
}

/// 0xFFFF is reserved `[SN-TOPICID-2]`.
const LAST_ID: u16 = u16::MAX - 1;
