use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxBuildHasher;
use tenbin_codec::TopicName;

use crate::gateway::Gateway;
use crate::names::Names;
use crate::outbox::Outbox;
use crate::settings::Settings;

/// Topic ids of one client, given one after the other `[SN-TOPICID-1]`. After 65,534 comes 1.
///
/// A topic of a full table makes room for a new one, and its id stays unused: a client that still has the id for the
/// old topic misreads no message, and gets all of its messages `[SN-TOPICID-6]`.
#[derive(Debug)]
pub(crate) struct TopicIds {
    entries: HashMap<u16, TopicEntry, FxBuildHasher>,
    ids: HashMap<Arc<TopicName>, u16, FxBuildHasher>,
    /// The next id.
    next: u16,
    /// Topics that made room for others so far.
    freed: u32,
    /// Changes so far that are worth storing.
    version: u32,
    bytes: usize,
    /// The latest [`TopicEntry::used`].
    last_use: Option<Instant>,
}

#[derive(Debug)]
struct TopicEntry {
    name: Arc<TopicName>,
    /// Last message to the client for a topic of the gateway, last use by the client for others. Later for each use.
    used: Option<Instant>,
    knowledge: Knowledge,
    owner: TopicOwner,
    /// It came in place of another topic, and is not stored: such a table may change with each message.
    is_successor: bool,
}

/// A topic id of a client, for its stored state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicId<'a> {
    /// 1 to 65,534.
    pub id: u16,
    /// The topic.
    pub name: &'a TopicName,
    /// Whether the client knows the id.
    pub is_known: bool,
    /// Why there is an id.
    pub owner: TopicOwner,
}

/// Origin of a topic id. It decides which topics make room for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicOwner {
    /// A message for the client: the topic makes room for any other.
    Gateway,
    /// A REGISTER or PUBLISH of the client: the topic makes room once the client has not used it for an hour.
    Client,
    /// A SUBSCRIBE of the client to this name: the topic stays.
    Subscription,
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

/// Surroundings of a topic that needs an id.
pub(crate) struct Room<'a> {
    pub(crate) names: &'a Names,
    pub(crate) settings: &'a Settings,
    /// Its messages keep their topics.
    pub(crate) outbox: &'a Outbox,
    pub(crate) now: Instant,
}

/// Time after its last use from which on a client's own topic makes room for others.
const IDLE_TIME: Duration = Duration::from_secs(3600);
/// Ids that are left out after the next one of a stored state: ids that were given between its storing and a crash.
const IDS_SKIPPED: u16 = 1024;
/// 0xFFFF is reserved `[SN-TOPICID-2]`.
const LAST_ID: u16 = u16::MAX - 1;

impl Gateway {
    /// Topic ids of a client without a stored state.
    pub(crate) fn new_topic_ids(&self, is_clean: bool) -> TopicIds {
        // Clean Session forgets ids on both sides.
        if is_clean { TopicIds::default() } else { TopicIds::from_first(self.first_topic_id) }
    }
}

impl Default for TopicIds {
    fn default() -> Self {
        Self::from_first(1)
    }
}

impl TopicIds {
    /// No topics yet, and the id of the first one.
    pub(crate) fn from_first(id: u16) -> Self {
        Self {
            entries: HashMap::default(),
            ids: HashMap::default(),
            next: id.clamp(1, LAST_ID),
            freed: 0,
            version: 0,
            bytes: 0,
            last_use: None,
        }
    }

    /// No topics yet, after a state whose next id was this one.
    pub(crate) fn after_restart(next: u16) -> Self {
        Self::from_first(nth_after(next, IDS_SKIPPED))
    }

    /// Takes a stored topic over. False if there is no room for it.
    pub(crate) fn restore(&mut self, topic: TopicId<'_>, names: &Names, settings: &Settings) -> bool {
        let TopicId { id, name, is_known, owner } = topic;
        if !(1..=LAST_ID).contains(&id) || self.entries.contains_key(&id) || self.ids.contains_key(name) {
            return true; // It is none of a gateway.
        }
        let bytes = self.bytes + name.as_bytes().len();
        if self.entries.len() >= settings.topics_maximum.into() || bytes > settings.topic_bytes_maximum {
            return false;
        }
        let Some(name) = names.intern(name) else { return false };
        let knowledge = if is_known { Knowledge::Known } else { Knowledge::Unknown };
        self.insert(id, TopicEntry { name, used: None, knowledge, owner, is_successor: false });
        true
    }

    /// The next id.
    pub(crate) fn next_id(&self) -> u16 {
        self.next
    }

    /// Whether a topic has this id, or may get it soon.
    pub(crate) fn may_assign(&self, id: u16) -> bool {
        let distance = (u32::from(id) + u32::from(LAST_ID) - u32::from(self.next)) % u32::from(LAST_ID);
        self.entries.contains_key(&id) || distance < IDS_SKIPPED.into()
    }

    /// Name of an id on which the client publishes. It is the client's own from now on.
    #[inline]
    pub(crate) fn published_name(&mut self, id: u16, settings: &Settings, now: Instant) -> Option<&TopicName> {
        let has_room = self.has_room(0, 0, settings);
        let at = self.next_use(now);
        let entry = self.entries.get_mut(&id).filter(|entry| entry.knowledge == Knowledge::Known)?;
        entry.used = Some(at);
        if entry.owner == TopicOwner::Gateway && has_room {
            (entry.owner, entry.is_successor) = (TopicOwner::Client, false);
            self.version = self.version.wrapping_add(1);
        }
        Some(&entry.name)
    }

    /// Id of a name that has one, for a message to the client.
    #[inline]
    pub(crate) fn id_for_delivery(&mut self, name: &TopicName, now: Instant) -> Option<u16> {
        let id = *self.ids.get(name)?;
        let at = self.next_use(now);
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.owner == TopicOwner::Gateway) {
            entry.used = Some(at);
        }
        Some(id)
    }

    /// Name of an assigned id.
    pub(crate) fn name(&self, id: u16) -> Option<&Arc<TopicName>> {
        self.entries.get(&id).map(|entry| &entry.name)
    }

    pub(crate) fn knowledge(&self, id: u16) -> Knowledge {
        self.entries.get(&id).map_or(Knowledge::Unknown, |entry| entry.knowledge)
    }

    pub(crate) fn set_knowledge(&mut self, id: u16, knowledge: Knowledge) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.knowledge != knowledge
        {
            entry.knowledge = knowledge;
            self.version = self.version.wrapping_add(u32::from(!entry.is_successor));
        }
    }

    /// Id of a name, if it has one.
    pub(crate) fn id(&self, name: &TopicName) -> Option<u16> {
        self.ids.get(name).copied()
    }

    /// Id of a name, a new one if necessary. The topic that was not used for the longest time makes room.
    ///
    /// # Errors
    /// The client uses too many topics, or all clients together too many names. A message for the client finds room unless
    /// names are too many or too long: topics of waiting messages may exceed the bounds.
    pub(crate) fn assign(&mut self, name: &TopicName, owner: TopicOwner, room: &Room<'_>) -> Result<u16, TableFull> {
        let known = self.id(name); // [SN-REGISTER-2]
        let freed = self.freed;
        match known {
            Some(_) if owner == TopicOwner::Gateway => {}
            // From now on it is one of the client's topics, to which the bounds apply.
            Some(id) => self.make_room(0, 0, Some(id), owner, room)?,
            None => self.make_room(1, name.as_bytes().len(), None, owner, room)?,
        }
        let used = (owner != TopicOwner::Subscription).then(|| self.next_use(room.now));
        if let Some(id) = known {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.used = used.or(entry.used);
                if entry.owner != TopicOwner::Subscription && owner != TopicOwner::Gateway && entry.owner != owner {
                    (entry.owner, entry.is_successor) = (owner, false);
                    self.version = self.version.wrapping_add(1);
                }
            }
            return Ok(id);
        }
        let name = room.names.intern(name).ok_or(TableFull)?;
        let id = self.take_next()?;
        let is_successor = owner == TopicOwner::Gateway && self.freed != freed;
        self.insert(id, TopicEntry { name, used, knowledge: Knowledge::Unknown, owner, is_successor });
        // Ids that are not stored must be fewer than those which a restart leaves out.
        if !is_successor || id.is_multiple_of(IDS_SKIPPED / 2) {
            self.version = self.version.wrapping_add(1);
        }
        Ok(id)
    }

    /// The client has the id of its subscription.
    pub(crate) fn note_subscribed(&mut self, id: u16) {
        self.set_knowledge(id, Knowledge::Known);
        self.set_owner(id, TopicOwner::Subscription);
    }

    /// The client's subscription to this name has ended, or was refused.
    pub(crate) fn note_unsubscribed(&mut self, id: u16) {
        if self.entries.get(&id).is_some_and(|entry| entry.owner == TopicOwner::Subscription) {
            self.set_owner(id, TopicOwner::Client);
        }
    }

    /// Topics that made room for others since the last call.
    pub(crate) fn take_freed(&mut self) -> u32 {
        std::mem::take(&mut self.freed)
    }

    /// Number of changes so far that are worth storing.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Topics that are worth storing, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TopicId<'_>> {
        self.entries.iter().filter(|(_, entry)| !entry.is_successor).map(|(&id, entry)| {
            let is_known = entry.knowledge == Knowledge::Known;
            TopicId { id, name: &entry.name, is_known, owner: entry.owner }
        })
    }

    fn set_owner(&mut self, id: u16, owner: TopicOwner) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.owner != owner
        {
            (entry.owner, entry.is_successor) = (owner, false);
            self.version = self.version.wrapping_add(1);
        }
    }

    /// A time of use after all others.
    fn next_use(&mut self, now: Instant) -> Instant {
        let at = self.last_use.map_or(now, |last| now.max(last + Duration::from_nanos(1)));
        self.last_use = Some(at);
        at
    }

    fn has_room(&self, topics: usize, bytes: usize, settings: &Settings) -> bool {
        self.entries.len() + topics <= settings.topics_maximum.min(LAST_ID).into()
            && self.bytes + bytes <= settings.topic_bytes_maximum
    }

    /// Lets topics go until there is room for one with these bytes. The topic `kept` stays `[SN-BOUND-1]`.
    fn make_room(
        &mut self,
        topics: usize,
        bytes: usize,
        kept: Option<u16>,
        owner: TopicOwner,
        room: &Room<'_>,
    ) -> Result<(), TableFull> {
        if bytes > room.settings.topic_bytes_maximum {
            return Err(TableFull);
        }
        while !self.has_room(topics, bytes, room.settings) {
            match self.least_recently_used(kept, room) {
                Some(id) => self.free(id),
                // Messages in the outbox, which has bounds too, use the others.
                None if owner == TopicOwner::Gateway => break,
                None => return Err(TableFull),
            }
        }
        Ok(())
    }

    /// The topic that makes room: one of the gateway before one of the client, and none of a message in the outbox.
    fn least_recently_used(&mut self, kept: Option<u16>, room: &Room<'_>) -> Option<u16> {
        let find = |is_free: &dyn Fn(u16) -> bool| {
            let may_go =
                |(id, entry): &(&u16, &TopicEntry)| Some(**id) != kept && entry.may_go(room.now) && is_free(**id);
            let age = |(_, entry): &(&u16, &TopicEntry)| (entry.owner == TopicOwner::Client, entry.used);
            self.entries.iter().filter(may_go).min_by_key(age).map(|(&id, _)| id)
        };
        let oldest = find(&|_| true)?;
        if !room.outbox.uses(oldest) {
            return Some(oldest);
        }
        let unused = find(&|id| !room.outbox.uses(id));
        // So that the next search begins elsewhere.
        let at = self.next_use(room.now);
        if let Some(entry) = self.entries.get_mut(&oldest).filter(|entry| entry.owner == TopicOwner::Gateway) {
            entry.used = Some(at);
        }
        unused
    }

    fn free(&mut self, id: u16) {
        if let Some(entry) = self.entries.remove(&id) {
            self.ids.remove(&entry.name);
            self.bytes -= entry.name.as_bytes().len();
            self.freed = self.freed.wrapping_add(1);
        }
    }

    fn insert(&mut self, id: u16, entry: TopicEntry) {
        self.bytes += entry.name.as_bytes().len();
        self.ids.insert(Arc::clone(&entry.name), id);
        self.entries.insert(id, entry);
    }

    fn take_next(&mut self) -> Result<u16, TableFull> {
        if self.entries.len() >= LAST_ID.into() {
            return Err(TableFull);
        }
        loop {
            let id = self.next;
            self.next = nth_after(id, 1);
            if !self.entries.contains_key(&id) {
                return Ok(id);
            }
        }
    }
}

impl TopicEntry {
    /// Whether the topic may make room for another one.
    fn may_go(&self, now: Instant) -> bool {
        match self.owner {
            TopicOwner::Gateway => true,
            TopicOwner::Client => self.used.is_none_or(|used| used + IDLE_TIME <= now),
            TopicOwner::Subscription => false,
        }
    }
}

/// The id that comes `n` after `id`.
pub(crate) fn nth_after(id: u16, n: u16) -> u16 {
    ((u32::from(id) - 1 + u32::from(n)) % u32::from(LAST_ID)) as u16 + 1
}
