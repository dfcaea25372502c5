use std::hash::RandomState;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use imbl::HashMap;
use tenbin_balancer::Nanos;
use tenbin_codec::{SharedFilter, Text, TopicFilter, TopicName};

use super::Receiver;
use super::by_name::ByName;
use super::matches::{MatchSet, MatchSetBuilder};
use super::share_rules::ShareRules;
use super::shared::{GroupMember, GroupQueues, SharedGroup};
use super::subscribers::{Subscriber, SubscriberList};

/// All subscriptions of all sessions.
///
/// Readers load one snapshot and take no lock. A writer copies the path to what it changes, publishes the new
/// snapshot and then raises the version; writers take turns on a mutex that readers never see.
#[derive(Debug)]
pub(super) struct FilterIndex {
    snapshot: ArcSwap<Snapshot>,
    /// Written after the snapshot (release), read before it (acquire): who has seen a version and loads then
    /// sees at least that version's snapshot, so that a cached match is never newer in name than in content.
    version: AtomicU64,
    writers: Mutex<()>,
    /// Written under `writers`, which every group is founded under.
    rules: ArcSwap<ShareRules>,
    queues: Arc<GroupQueues>,
    /// Live groups by number, for messages that come back from a member.
    groups: DashMap<NonZeroU64, Arc<SharedGroup>>,
    /// The number that the next group gets; only writers of the index touch it.
    next_group: AtomicU64,
}

/// Filters without wildcards are found by their whole text; the others, and a few more, in a tree, level by level.
#[derive(Debug, Clone, Default)]
struct Snapshot {
    exact: HashMap<Text, Arc<Entry>>,
    wildcards: Node,
}

/// Who subscribed to one filter.
#[derive(Debug, Clone, Default)]
struct Entry {
    subscribers: SubscriberList,
    /// By share name.
    groups: ByName<SharedGroup>,
}

/// One level of the tree of filters with wildcards.
#[derive(Debug, Clone, Default)]
struct Node {
    children: ByName<Node>,
    plus: Option<Arc<Node>>,
    /// The filter that ends here.
    here: Option<Arc<Entry>>,
    /// The filter that goes on with `#` here.
    hash: Option<Arc<Entry>>,
}

impl FilterIndex {
    pub(super) fn new(rules: ShareRules, queues: Arc<GroupQueues>) -> Self {
        Self {
            snapshot: ArcSwap::default(),
            version: AtomicU64::new(0),
            writers: Mutex::default(),
            rules: ArcSwap::from_pointee(rules),
            queues,
            groups: DashMap::new(),
            next_group: AtomicU64::new(0),
        }
    }

    /// The group of a share name and a filter.
    pub(super) fn group(&self, shared: &SharedFilter) -> Option<Arc<SharedGroup>> {
        let snapshot = self.snapshot.load();
        let entry = snapshot.entry(&shared.filter)?;
        entry.groups.get(shared.share_name.text().as_bytes()).cloned()
    }

    pub(super) fn group_by_number(&self, number: NonZeroU64) -> Option<Arc<SharedGroup>> {
        self.groups.get(&number).map(|group| Arc::clone(&group))
    }

    /// What new groups choose by, and those that are there: from now on, or from when their publishers have noticed.
    pub(super) fn set_rules(&self, rules: ShareRules) {
        let _writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.groups.iter().filter(|group| group.set_rules(rules.of(group.name()))).count();
        self.rules.store(Arc::new(rules));
        self.invalidate(); // routes know keys
        tracing::info!(groups = self.groups.len(), changed, "rules of share groups");
    }

    /// Of keys and names that groups choose by.
    pub(super) fn hasher(&self) -> &RandomState {
        &self.queues.hasher
    }

    /// Groups that a subscription to what the broker tells of them may be about; see [`Router::watched_groups`].
    ///
    /// [`Router::watched_groups`]: super::Router::watched_groups
    pub(super) fn watched_groups(&self, after: u64, most: usize, far: bool) -> Vec<Arc<SharedGroup>> {
        let snapshot = self.snapshot.load();
        let Some(watch) = snapshot.watch(far) else { return Vec::new() };
        let is_watched = |group: &SharedGroup| watch.is_about(group.name().share_name.text().as_bytes());
        let watched = self.groups.iter().filter(|group| group.number().get() > after && is_watched(group));
        let mut watched: Vec<_> = watched.map(|group| Arc::clone(&group)).collect();
        watched.sort_unstable_by_key(|group| group.number());
        watched.truncate(most);
        watched
    }

    /// Messages whose group ended before anybody got them.
    pub(super) fn count_dropped(&self, count: u64) {
        self.queues.metrics.dropped_offline.add(count);
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What was matched before does not hold any more.
    pub(super) fn invalidate(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn insert(&self, filter: &TopicFilter, subscriber: Subscriber) {
        self.change(filter, |entry| entry.subscribers.insert(subscriber));
    }

    pub(super) fn remove(&self, filter: &TopicFilter, number: u64) {
        self.change(filter, |entry| {
            entry.subscribers.remove(number);
        });
    }

    /// Adds a member to the group of a share name and a filter, which the first member founds.
    pub(super) fn join(&self, shared: &SharedFilter, receiver: &Receiver, member: GroupMember, now: Nanos) {
        self.change(&shared.filter, |entry| {
            let name = shared.share_name.text().as_bytes();
            match entry.groups.get(name) {
                Some(group) => group.join(receiver, member, now),
                None => {
                    let number = NonZeroU64::MIN.saturating_add(self.next_group.fetch_add(1, Ordering::Relaxed));
                    let queues = Arc::clone(&self.queues);
                    let rules = self.rules.load().of(shared);
                    let group = Arc::new(SharedGroup::new(shared.detach(), rules, number, queues));
                    group.join(receiver, member, now);
                    self.groups.insert(number, Arc::clone(&group));
                    entry.groups.insert(name, group);
                }
            }
        });
    }

    /// Takes a member out of its group, which goes with the last one.
    pub(super) fn leave(&self, shared: &SharedFilter, number: u64) {
        self.change(&shared.filter, |entry| {
            let name = shared.share_name.text().as_bytes();
            if let Some(group) = entry.groups.get(name) {
                group.leave(number);
                if group.members.is_empty() {
                    self.groups.remove(&group.number());
                    entry.groups.remove(name);
                }
            }
        });
    }

    pub(super) fn matches(&self, topic: &TopicName) -> MatchSet {
        let snapshot = self.snapshot.load();
        let mut builder = MatchSetBuilder::new(topic, self.hasher());
        if let Some(entry) = snapshot.exact.get(topic.as_bytes()) {
            entry.collect(&mut builder);
        }
        if !snapshot.wildcards.is_empty() {
            // [MQTT-4.7.2-1]: a leading wildcard does not match a leading $
            let wildcards_apply = !topic.starts_with_dollar();
            snapshot.wildcards.collect(Some(topic.as_bytes()), wildcards_apply, &mut builder);
        }
        builder.build()
    }

    fn change(&self, filter: &TopicFilter, change: impl FnOnce(&mut Entry)) {
        let _writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.snapshot.load());
        if is_in_tree(filter.as_bytes(), filter.has_wildcard()) {
            next.wildcards = next.wildcards.changed(Some(filter.as_bytes()), change);
        } else {
            let entry = changed(next.exact.get(filter.as_bytes()), change);
            match entry {
                Some(entry) => next.exact.insert(filter.text().detach(), entry),
                None => next.exact.remove(filter.as_bytes()),
            };
        }
        self.snapshot.store(Arc::new(next));
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Snapshot {
    fn entry(&self, filter: &TopicFilter) -> Option<&Arc<Entry>> {
        if !is_in_tree(filter.as_bytes(), filter.has_wildcard()) {
            return self.exact.get(filter.as_bytes());
        }
        let mut node = &self.wildcards;
        for level in filter.levels() {
            node = match level {
                b"#" => return node.hash.as_ref(),
                b"+" => node.plus.as_ref()?,
                level => node.children.get(level)?,
            };
        }
        node.here.as_ref()
    }

    /// Who is subscribed to what the broker tells of share groups, if anybody is; with `far`, also by a filter that is
    /// about all of `$SYS`.
    fn watch(&self, far: bool) -> Option<Watch<'_>> {
        let sys = self.wildcards.children.get(b"$SYS")?;
        if far && (sys.hash.is_some() || sys.plus.is_some()) {
            return Some(Watch::All);
        }
        let share = sys.children.get(b"share")?;
        Some(if share.hash.is_some() || share.plus.is_some() { Watch::All } else { Watch::Some(&share.children) })
    }
}

/// Of which share groups somebody may want to hear.
enum Watch<'a> {
    All,
    /// Those whose names are here.
    Some(&'a ByName<Node>),
}

impl Watch<'_> {
    fn is_about(&self, share_name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.get(share_name).is_some(),
        }
    }
}

/// Whether a filter is found in the tree. So are those below `$SYS/share/`: whether there are any is asked there.
fn is_in_tree(filter: &[u8], has_wildcard: bool) -> bool {
    has_wildcard || filter.starts_with(b"$SYS/share/")
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.groups.is_empty()
    }

    fn collect(&self, builder: &mut MatchSetBuilder<'_>) {
        self.subscribers.iter().for_each(|subscriber| builder.add(subscriber));
        self.groups.values().for_each(|group| builder.add_group(group));
    }
}

impl Node {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.plus.is_none() && self.here.is_none() && self.hash.is_none()
    }

    /// A copy of this node in which the entry of the filter that `rest` spells below it is changed; what
    /// becomes empty is left out. The recursion is as deep as filters may have levels.
    fn changed(&self, rest: Option<&[u8]>, change: impl FnOnce(&mut Entry)) -> Self {
        let mut node = self.clone();
        let Some(rest) = rest else {
            node.here = changed(self.here.as_ref(), change);
            return node;
        };
        let (level, rest) = split_level(rest);
        if level == b"#" {
            node.hash = changed(self.hash.as_ref(), change);
            return node;
        }
        let child = if level == b"+" { self.plus.as_ref() } else { self.children.get(level) };
        let child = match child {
            Some(child) => child.changed(rest, change),
            None => Self::default().changed(rest, change),
        };
        let child = (!child.is_empty()).then(|| Arc::new(child));
        match (level, child) {
            (b"+", child) => node.plus = child,
            (level, Some(child)) => node.children.insert(level, child),
            (level, None) => node.children.remove(level),
        }
        node
    }

    /// Adds who subscribed to filters that match the levels in `rest`.
    fn collect(&self, rest: Option<&[u8]>, wildcards_apply: bool, builder: &mut MatchSetBuilder<'_>) {
        if wildcards_apply && let Some(entry) = &self.hash {
            entry.collect(builder); // "a/#" matches "a" too
        }
        let Some(rest) = rest else {
            if let Some(entry) = &self.here {
                entry.collect(builder);
            }
            return;
        };
        let (level, rest) = split_level(rest);
        if let Some(child) = self.children.get(level) {
            child.collect(rest, true, builder);
        }
        if wildcards_apply && let Some(child) = &self.plus {
            child.collect(rest, true, builder);
        }
    }
}

/// The entry after a change; `None` when nobody is left in it.
fn changed(entry: Option<&Arc<Entry>>, change: impl FnOnce(&mut Entry)) -> Option<Arc<Entry>> {
    let mut entry = entry.map(|entry| Entry::clone(entry)).unwrap_or_default();
    change(&mut entry);
    (!entry.is_empty()).then(|| Arc::new(entry))
}

/// The first level, and what follows its slash.
fn split_level(levels: &[u8]) -> (&[u8], Option<&[u8]>) {
    match levels.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&levels[..slash], Some(&levels[slash + 1..])),
        None => (levels, None),
    }
}

#[cfg(test)]
mod tests;
