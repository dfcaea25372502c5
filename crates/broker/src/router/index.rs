use std::hash::RandomState;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tenbin_balancer::Nanos;
use tenbin_codec::{SharedFilter, TopicFilter, TopicName};

use super::Receiver;
use super::by_text::{ByText, Key};
use super::filter_tree::{Children, Node};
use super::key_hasher::KeyHasher;
use super::matches::{MatchSet, MatchSetBuilder};
use super::share_rules::ShareRules;
use super::shared::{GroupMember, GroupQueues, SharedGroup};
use super::subscribers::{Entry, Subscriber};
use super::unread::UnreadGroups;
use super::versions::{Part, Parts, Versions};
use crate::auth::Access;

/// All subscriptions of all sessions.
///
/// Readers load one snapshot and take no lock. A writer copies the path to what it changes, publishes the new
/// snapshot and then raises versions; writers take turns on a mutex that readers never see.
#[derive(Debug)]
pub(super) struct FilterIndex {
    snapshot: ArcSwap<Snapshot>,
    versions: Versions,
    writers: Mutex<()>,
    /// Written under `writers`, which every group is founded under.
    rules: ArcSwap<ShareRules>,
    queues: Arc<GroupQueues>,
    access: Arc<Access>,
    /// Of filters, their levels and share names.
    hasher: RandomState,
    /// Live groups by number, for messages that come back from a member.
    groups: DashMap<NonZeroU64, Arc<SharedGroup>>,
    /// The number that the next group gets; only writers of the index touch it.
    next_group: AtomicU64,
}

/// Filters without wildcards are found by their whole text; the others, and a few more, in a tree, level by level.
#[derive(Debug, Clone, Default)]
struct Snapshot {
    exact: ByText<Entry, 62>,
    wildcards: Node,
}

impl FilterIndex {
    /// `access` is what the rights of all receivers are rights to.
    pub(super) fn new(rules: ShareRules, queues: Arc<GroupQueues>, access: Arc<Access>) -> Self {
        Self {
            snapshot: ArcSwap::default(),
            versions: Versions::default(),
            writers: Mutex::default(),
            rules: ArcSwap::from_pointee(rules),
            queues,
            access,
            hasher: RandomState::new(),
            groups: DashMap::new(),
            next_group: AtomicU64::new(0),
        }
    }

    /// The group of a share name and a filter.
    pub(super) fn group(&self, shared: &SharedFilter) -> Option<Arc<SharedGroup>> {
        let snapshot = self.snapshot.load();
        let entry = snapshot.entry(&shared.filter, self.hasher())?;
        entry.groups.get(&Key::new(shared.share_name.text().as_bytes(), self.hasher())).cloned()
    }

    pub(super) fn group_by_number(&self, number: NonZeroU64) -> Option<Arc<SharedGroup>> {
        self.groups.get(&number).map(|group| Arc::clone(&group))
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = Arc<SharedGroup>> {
        self.groups.iter().map(|group| Arc::clone(&group))
    }

    /// What new groups choose by, and those that are there: from now on, or from when their publishers have noticed.
    pub(super) fn set_rules(&self, rules: ShareRules) {
        let _writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.groups.iter().filter(|group| group.set_rules(rules.of(group.name()))).count();
        self.rules.store(Arc::new(rules));
        self.invalidate(); // routes know keys
        tracing::info!(groups = self.groups.len(), changed, "rules of share groups");
    }

    /// Of the keys and names that groups choose by.
    pub(super) fn keys(&self) -> &KeyHasher {
        &self.queues.keys
    }

    pub(super) fn unread_groups(&self) -> &UnreadGroups {
        &self.queues.unread
    }

    fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    /// Groups that a subscription to what the broker tells of them may be about; see [`Router::watched_groups`].
    ///
    /// [`Router::watched_groups`]: super::Router::watched_groups
    pub(super) fn watched_groups(&self, after: u64, most: usize, far: bool) -> Vec<Arc<SharedGroup>> {
        let snapshot = self.snapshot.load();
        let Some(watch) = snapshot.watch(far, self.hasher()) else { return Vec::new() };
        let is_watched = |group: &SharedGroup| watch.is_about(group.name().share_name.text().as_bytes(), self.hasher());
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

    pub(super) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The part that a topic's matches belong to.
    pub(super) fn part_of(&self, topic: &TopicName) -> Part {
        let first = topic.as_bytes().split(|&byte| byte == b'/').next();
        Part::of(first.unwrap_or_default(), self.hasher())
    }

    /// What was matched before does not hold any more.
    pub(super) fn invalidate(&self) {
        self.versions.raise(Parts::ALL);
    }

    #[cfg(test)]
    pub(super) fn is_being_edited(&self) -> bool {
        self.writers.try_lock().is_err()
    }

    /// Begins changes that readers see together, at its end. Other writers wait until then.
    pub(super) fn edit(&self) -> Edit<'_> {
        let writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Snapshot::clone(&self.snapshot.load());
        Edit { index: self, next, changed: Parts::default(), _writer: writer }
    }

    pub(super) fn matches(&self, topic: &TopicName) -> MatchSet {
        let snapshot = self.snapshot.load();
        let mut builder = MatchSetBuilder::new(topic, self.keys(), &self.access);
        if let Some(entry) = snapshot.exact.get(&Key::new(topic.as_bytes(), self.hasher())) {
            builder.add(entry);
        }
        snapshot.wildcards.collect(topic, self.hasher(), &mut builder);
        builder.build()
    }
}

/// Changes of subscriptions, which readers see when this is dropped.
#[derive(Debug)]
pub(super) struct Edit<'a> {
    index: &'a FilterIndex,
    next: Snapshot,
    changed: Parts,
    _writer: MutexGuard<'a, ()>,
}

impl Edit<'_> {
    pub(super) fn insert(&mut self, filter: &TopicFilter, subscriber: Subscriber) {
        self.change(filter, |entry| entry.subscribers.insert(subscriber));
    }

    pub(super) fn remove(&mut self, filter: &TopicFilter, number: u64) {
        self.change(filter, |entry| entry.subscribers.remove(number));
    }

    /// Adds a member to the group of a share name and a filter, which the first member founds.
    pub(super) fn join(&mut self, shared: &SharedFilter, receiver: &Receiver, member: GroupMember, now: Nanos) {
        let index = self.index;
        self.change(&shared.filter, |entry| {
            let name = Key::new(shared.share_name.text().as_bytes(), index.hasher());
            match entry.groups.get(&name) {
                Some(group) => group.join(receiver, member, now),
                None => {
                    let number = NonZeroU64::MIN.saturating_add(index.next_group.fetch_add(1, Ordering::Relaxed));
                    let queues = Arc::clone(&index.queues);
                    let rules = index.rules.load().of(shared);
                    let group = Arc::new(SharedGroup::new(shared.detach(), rules, number, queues));
                    group.join(receiver, member, now);
                    index.groups.insert(number, Arc::clone(&group));
                    entry.groups.set(&name, Some(group));
                }
            }
        });
    }

    /// Takes a member out of its group, which goes with the last one.
    pub(super) fn leave(&mut self, shared: &SharedFilter, number: u64) {
        let index = self.index;
        self.change(&shared.filter, |entry| {
            let name = Key::new(shared.share_name.text().as_bytes(), index.hasher());
            if let Some(group) = entry.groups.get(&name).cloned() {
                group.leave(number);
                if group.members.is_empty() {
                    index.groups.remove(&group.number());
                    entry.groups.set(&name, None);
                    group.end(); // under our lock, as what is kept of its successor
                }
            }
        });
    }

    fn change(&mut self, filter: &TopicFilter, change: impl FnOnce(&mut Entry)) {
        let hasher = self.index.hasher();
        self.changed.add(filter, hasher);
        if is_in_tree(filter) {
            self.next.wildcards.change(filter, hasher, change);
        } else {
            let key = Key::new(filter.as_bytes(), hasher);
            let mut entry = self.next.exact.get(&key).cloned().unwrap_or_default();
            change(&mut entry);
            self.next.exact.set(&key, (!entry.is_empty()).then_some(entry));
        }
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        if self.changed != Parts::default() {
            self.index.snapshot.store(Arc::new(std::mem::take(&mut self.next)));
            self.index.versions.raise(self.changed);
        }
    }
}

impl Snapshot {
    fn entry(&self, filter: &TopicFilter, hasher: &RandomState) -> Option<&Entry> {
        if is_in_tree(filter) {
            self.wildcards.entry(filter, hasher)
        } else {
            self.exact.get(&Key::new(filter.as_bytes(), hasher))
        }
    }

    /// Who is subscribed to what the broker tells of share groups, if anybody is; with `far`, also by a filter that is
    /// about all of `$SYS`.
    fn watch(&self, far: bool, hasher: &RandomState) -> Option<Watch<'_>> {
        let sys = self.wildcards.child(b"$SYS", hasher)?;
        if far && sys.has_wildcard() {
            return Some(Watch::All);
        }
        let share = sys.child(b"share", hasher)?;
        Some(if share.has_wildcard() { Watch::All } else { Watch::Some(share.children()) })
    }
}

/// Of which share groups somebody may want to hear.
enum Watch<'a> {
    All,
    /// Those whose names are here.
    Some(&'a Children),
}

impl Watch<'_> {
    fn is_about(&self, share_name: &[u8], hasher: &RandomState) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.get(&Key::new(share_name, hasher)).is_some(),
        }
    }
}

/// Whether a filter is found in the tree. So are those below `$SYS/share/`: whether there are any is asked there.
pub(crate) fn is_in_tree(filter: &TopicFilter) -> bool {
    filter.has_wildcard() || filter.as_bytes().starts_with(b"$SYS/share/")
}

#[cfg(test)]
mod tests;
