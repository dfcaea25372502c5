mod sweep;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use bytes::BytesMut;
use tenbin_codec::{PublishTemplate, QoS, TopicFilter};
use tenbin_session::{Delivery, Extras, Publication};

use crate::durable::{CommitPoint, Durable, EncodedRetained};
use crate::hooks::{Events, HookSet};
use crate::values::{self, Grant};
use sweep::earlier;

/// The last retained message of each topic (MQTT 5.0 §3.3.1.3), in a tree of levels.
#[derive(Debug)]
pub(super) struct RetainedStore {
    pub(super) tree: RwLock<Tree>,
    limits: RetainedLimits,
    /// Storage of clients' messages. Called under the tree's lock, so that tree and storage have the same order.
    durable: Option<Arc<Durable>>,
    hooks: Arc<HookSet>,
}

/// A message was not retained for lack of room.
#[derive(Debug)]
pub(super) struct NoRoom {
    /// `None`: the message is larger than any packet of MQTT 5.0, in whose form the disk keeps it.
    pub(super) bound: Option<values::Bound>,
    /// Commit point of the removal of the topic's previous message.
    pub(super) commit_point: CommitPoint,
}

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetainedLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// A retained message.
#[derive(Debug)]
pub(crate) struct Retained {
    pub(super) template: PublishTemplate,
    pub(super) qos: QoS,
    pub(super) expires_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    root: RetainedNode,
    messages: usize,
    /// Bytes of messages and of the levels that lead to them.
    bytes: usize,
    /// Lower bound of all expiry times; `None` = no message expires.
    first_expiry: Option<Instant>,
    /// Value of `first_expiry` after the sweep in progress.
    next_first_expiry: Option<Instant>,
    /// Position of the sweep in progress.
    sweep_at: Option<Cursor>,
}

#[derive(Debug, Default)]
struct RetainedNode {
    /// Ordered by name, so that a page can continue where the last one ended.
    children: BTreeMap<Box<[u8]>, RetainedNode>,
    message: Option<Box<Retained>>,
}

impl RetainedStore {
    pub(super) fn new(limits: RetainedLimits, durable: Option<Arc<Durable>>, hooks: Arc<HookSet>) -> Self {
        Self { tree: RwLock::default(), limits, durable, hooks }
    }

    /// Replaces the topic's message `[MQTT-3.3.1-5]`. An empty payload removes it and is not kept itself
    /// `[MQTT-3.3.1-6]`, `[MQTT-3.3.1-7]`.
    ///
    /// The previous message goes even if there is no room for the new one, since it is outdated. A message that is not
    /// larger always fits in place of the old one.
    ///
    /// Returns the commit point of the change.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn set(&self, publication: &Publication, now: Instant) -> Result<CommitPoint, NoRoom> {
        let mut expired = Vec::new();
        let set = self.put(publication, now, &mut expired);
        self.tell_expired(&expired);
        set
    }

    /// As [`set`](Self::set); `expired` gets the topics of messages that expired before.
    fn put(
        &self,
        publication: &Publication,
        now: Instant,
        expired: &mut Vec<Box<[u8]>>,
    ) -> Result<CommitPoint, NoRoom> {
        let topic = publication.topic.as_bytes();
        let is_own = is_own(topic);
        let durable = self.durable.as_ref().filter(|_| !is_own);
        let retained = Retained::new(publication);
        if publication.payload.is_empty() || publication.expires_at.is_some_and(|at| at <= now) {
            return Ok(self.take_out(topic));
        }
        let encode = |durable| {
            let encoded = EncodedRetained::new(&retained.template, retained.qos, retained.expires_at);
            encoded
                .map(|encoded| (durable, encoded))
                .ok_or_else(|| NoRoom { bound: None, commit_point: self.take_out(topic) })
        };
        let encoded = durable.map(encode).transpose()?;
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        if !is_own {
            let mut totals = tree.totals_with(topic, &retained);
            if !self.has_room(totals) && tree.may_have_expired(now) {
                *expired = tree.purge(now);
                self.unretain(expired);
                totals = tree.totals_with(topic, &retained);
            }
            let is_smaller = totals.0 <= tree.messages && totals.1 <= tree.bytes;
            if !self.has_room(totals) && !is_smaller {
                let is_bytes = totals.1 > self.limits.bytes;
                let bound = if is_bytes { values::Bound::RetainedBytes } else { values::Bound::RetainedMessages };
                return Err(NoRoom { bound: Some(bound), commit_point: self.take_out_of(&mut tree, topic) });
            }
            tree.count(totals, &retained);
        }
        tree.put(topic, retained);
        Ok(encoded.map_or(CommitPoint::NOW, |(durable, encoded)| durable.retained(topic, encoded)))
    }

    /// Returns whether the disk is too congested for this message.
    pub(super) fn is_disk_behind(&self, publication: &Publication) -> bool {
        let is_behind = self.durable.as_ref().is_some_and(|durable| durable.is_congested());
        is_behind && !is_own(publication.topic.as_bytes())
    }

    /// Restores a message of the last run, even above the present limits.
    pub(super) fn restore(&self, publication: &Publication, now: Instant) {
        let retained = Retained::new(publication);
        if retained.expires_at.is_some_and(|at| at <= now) {
            return;
        }
        let topic = publication.topic.as_bytes();
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let totals = tree.totals_with(topic, &retained);
        tree.count(totals, &retained);
        tree.put(topic, retained);
    }

    fn take_out(&self, topic: &[u8]) -> CommitPoint {
        self.take_out_of(&mut self.tree.write().unwrap_or_else(PoisonError::into_inner), topic)
    }

    pub(super) fn take_out_of(&self, tree: &mut Tree, topic: &[u8]) -> CommitPoint {
        let is_own = is_own(topic);
        let mut levels_gone = 0;
        let old = remove(&mut tree.root, Some(topic), &mut levels_gone).filter(|_| !is_own);
        tree.subtract(old.as_deref(), levels_gone);
        match (self.durable.as_ref().filter(|_| !is_own), old) {
            (Some(durable), Some(_)) => durable.unretained([topic]),
            (Some(durable), None) => durable.all(), // the caller that removed it may still wait for that commit
            (None, _) => CommitPoint::NOW,
        }
    }

    /// Tells hooks of expired messages. Not under the tree's lock, since a hook may publish.
    fn tell_expired(&self, topics: &[Box<[u8]>]) {
        if self.hooks.has(Events::RETAINED_EXPIRED) {
            for topic in topics.iter().filter_map(|topic| std::str::from_utf8(topic).ok()) {
                self.hooks.tell(Events::RETAINED_EXPIRED, |hooks| hooks.retained_expired(topic));
            }
        }
    }

    /// Removes topics from the storage. The caller holds the tree's lock.
    fn unretain(&self, topics: &[Box<[u8]>]) {
        if let Some(durable) = &self.durable {
            durable.unretained(topics.iter().map(|topic| &**topic));
        }
    }

    /// Visits the next unexpired messages whose topics match `filter`, ordered by topic.
    ///
    /// `cursor` is the end of the last page on entry, and of this page on return: `None` before the first page and
    /// after the last.
    pub(super) fn page(
        &self,
        filter: &TopicFilter,
        cursor: &mut Option<Cursor>,
        room: PageRoom,
        now: Instant,
        found: impl FnMut(&Retained),
    ) -> PageRoom {
        let levels = filter.levels().collect::<Vec<_>>();
        let from = cursor.take();
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let mut walk = Walk { path: Vec::new(), room, now, found };
        let from = from.as_ref().map(|from| &from.0[..]);
        if walk.visit(&tree.root, &levels, from).is_break() {
            *cursor = Some(Cursor(walk.path.iter().map(|&level| level.into()).collect()));
        }
        walk.room
    }

    fn has_room(&self, (messages, bytes): (usize, usize)) -> bool {
        messages <= self.limits.messages && bytes <= self.limits.bytes
    }

    /// Returns the number of messages and their bytes, without the broker's own.
    pub(super) fn totals(&self) -> (usize, usize) {
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        (tree.messages, tree.bytes)
    }
}

impl Tree {
    fn put(&mut self, topic: &[u8], retained: Retained) {
        let node = topic
            .split(|&byte| byte == b'/')
            .fold(&mut self.root, |node, level| node.children.entry(level.into()).or_default());
        node.message = Some(Box::new(retained));
    }

    /// Sets the totals for the addition of `retained`.
    fn count(&mut self, totals: (usize, usize), retained: &Retained) {
        (self.messages, self.bytes) = totals;
        self.first_expiry = earlier(self.first_expiry, retained.expires_at);
        self.next_first_expiry = earlier(self.next_first_expiry, retained.expires_at);
    }

    /// Updates the totals for the removal of `old` and of `levels_gone` levels.
    fn subtract(&mut self, old: Option<&Retained>, levels_gone: usize) {
        if let Some(old) = old {
            self.messages -= 1;
            self.bytes -= old.bytes() + levels_gone * LEVEL_BYTES;
        }
    }

    /// Returns the totals of messages and bytes with `retained` in its place.
    fn totals_with(&self, topic: &[u8], retained: &Retained) -> (usize, usize) {
        let mut node = Some(&self.root);
        let mut new_levels = 0;
        for level in topic.split(|&byte| byte == b'/') {
            node = node.and_then(|node| node.children.get(level));
            new_levels += usize::from(node.is_none());
        }
        let (messages, bytes) = match node.and_then(|node| node.message.as_deref()) {
            Some(old) => (self.messages, self.bytes - old.bytes()),
            None => (self.messages + 1, self.bytes),
        };
        (messages, bytes + retained.bytes() + new_levels * LEVEL_BYTES)
    }
}

/// Levels of the topic at which a page ended.
///
/// Messages may change between two pages. Each topic is visited at most once; a topic added in between may be missed.
#[derive(Debug, Clone)]
pub(super) struct Cursor(pub(super) Vec<Box<[u8]>>);

/// Limits of a page; it ends when one of them is used up.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRoom {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Tree nodes to visit, which bounds the time under the lock.
    pub(super) visits: usize,
}

impl PageRoom {
    pub(super) fn is_used_up(&self) -> bool {
        self.messages == 0 || self.bytes == 0 || self.visits == 0
    }
}

/// A walk through the tree: a node before its children, children by name.
struct Walk<'a, F> {
    /// Levels from the root to the current node.
    path: Vec<&'a [u8]>,
    room: PageRoom,
    now: Instant,
    found: F,
}

impl<'a, F: FnMut(&Retained)> Walk<'a, F> {
    /// Visits `node` and the nodes below it. Breaks when the room is used up, with the end position in `path`.
    ///
    /// `from`: levels below this node at which to continue; the node itself was visited before. The recursion is as
    /// deep as filters, or retained topics below a `#`, may have levels.
    fn visit(&mut self, node: &'a RetainedNode, filter: &[&[u8]], from: Option<&[Box<[u8]>]>) -> ControlFlow<()> {
        let level = filter.split_first();
        if from.is_none() {
            let is_match = level.is_none_or(|(&level, _)| level == b"#");
            if let Some(message) = node.message.as_ref().filter(|_| is_match) {
                self.offer(message);
            }
            self.room.visits = self.room.visits.saturating_sub(1);
            if self.room.is_used_up() && !self.path.is_empty() {
                return ControlFlow::Break(());
            }
        }
        let Some((&level, below)) = level else { return ControlFlow::Continue(()) };
        let from = from.and_then(<[_]>::split_first);
        match level {
            b"#" => self.visit_children(node, filter, from),
            b"+" => self.visit_children(node, below, from),
            level => match node.children.get_key_value(level) {
                Some((name, child)) => self.visit_child(name, child, below, from),
                None => ControlFlow::Continue(()),
            },
        }
    }

    fn visit_children(&mut self, node: &'a RetainedNode, filter: &[&[u8]], from: From<'_>) -> ControlFlow<()> {
        let first = from.map_or(Bound::Unbounded, |(first, _)| Bound::Included(&first[..]));
        // [MQTT-4.7.2-1]: a leading wildcard does not match a leading $
        let is_root = self.path.is_empty();
        let range = node.children.range::<[u8], _>((first, Bound::Unbounded));
        for (name, child) in range.filter(|(name, _)| !is_root || name.first() != Some(&b'$')) {
            self.visit_child(name, child, filter, from)?;
        }
        ControlFlow::Continue(())
    }

    fn visit_child(
        &mut self,
        name: &'a [u8],
        child: &'a RetainedNode,
        filter: &[&[u8]],
        from: From<'_>,
    ) -> ControlFlow<()> {
        let from = from.filter(|(first, _)| &first[..] == name).map(|(_, below)| below);
        self.path.push(name);
        self.visit(child, filter, from)?;
        self.path.pop();
        ControlFlow::Continue(())
    }

    fn offer(&mut self, message: &Retained) {
        if message.expires_at.is_some_and(|at| at <= self.now) {
            return; // [MQTT-3.3.2-5]
        }
        self.room.messages = self.room.messages.saturating_sub(1);
        self.room.bytes = self.room.bytes.saturating_sub(message.bytes());
        (self.found)(message);
    }
}

/// First level of a cursor, and the levels below it.
type From<'a> = Option<(&'a Box<[u8]>, &'a [Box<[u8]>])>;

impl Retained {
    fn new(publication: &Publication) -> Self {
        Self {
            template: publication.template(&mut BytesMut::new()).detach(),
            qos: publication.qos,
            expires_at: publication.expires_at,
        }
    }

    /// Creates the delivery for a SUBSCRIBE: RETAIN set, with the subscription's identifier.
    pub(crate) fn delivery(&self, grant: Grant) -> Delivery {
        Delivery {
            extras: grant.identifier.and_then(|identifier| Extras::identifiers([identifier])),
            expires_at: self.expires_at,
            ..Delivery::new(self.template.clone(), self.qos.min(grant.options.qos), true)
        }
    }

    fn bytes(&self) -> usize {
        self.template.len() + size_of::<Self>()
    }
}

/// Removes a topic's message and the levels left empty, which it counts in `levels_gone`.
fn remove(node: &mut RetainedNode, topic: Option<&[u8]>, levels_gone: &mut usize) -> Option<Box<Retained>> {
    let Some(topic) = topic else { return node.message.take() };
    let (level, rest) = match topic.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&topic[..slash], Some(&topic[slash + 1..])),
        None => (topic, None),
    };
    let child = node.children.get_mut(level)?;
    let removed = remove(child, rest, levels_gone);
    if child.message.is_none() && child.children.is_empty() {
        node.children.remove(level);
        *levels_gone += 1;
    }
    removed
}

/// Memory cost in bytes of a level with one child, the common case along a long topic.
const LEVEL_BYTES: usize = 640;

/// Returns whether a topic is one of the broker's own, whose messages do not count against the limits.
pub(super) fn is_own(topic: &[u8]) -> bool {
    topic.starts_with(b"$SYS/")
}

#[cfg(test)]
mod tests;
