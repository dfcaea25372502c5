use std::collections::HashMap;
use std::hash::RandomState;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tenbin_balancer::Nanos;
use tenbin_codec::{SharedFilter, TopicFilter, TopicName};

use super::dead_letters::DeadLetters;
use super::due_groups::DueGroups;
use super::filter_tree::{Children, FilterNode};
use super::hash_trie::{HashTrie, Key};
use super::key_hasher::KeyHasher;
use super::matches::{MatchSet, MatchSetBuilder};
use super::share_group::{GroupMember, GroupQueues, SharedGroup};
use super::subscribers::{FilterEntry, Subscriber};
use super::versions::{Part, Parts, Versions};
use super::{Naming, Receiver};
use crate::auth::Access;
use crate::hooks::Events;
use crate::outbox::Outbox;
use crate::values::ShareRules;

/// All subscriptions of all sessions.
///
/// Readers load one snapshot and take no lock. A writer copies the path to its change, publishes the new snapshot and
/// then raises versions. A mutex that readers never take serializes writers.
#[derive(Debug)]
pub(super) struct FilterIndex {
    snapshot: ArcSwap<Snapshot>,
    versions: Versions,
    writers: Mutex<()>,
    /// Written under `writers`, under which all groups are created.
    rules: ArcSwap<ShareRules>,
    queues: Arc<GroupQueues>,
    access: Arc<Access>,
    /// Hashes filters, their levels and share names.
    hasher: RandomState,
    /// Live groups by number, for messages that come back from a member.
    groups: DashMap<NonZeroU64, Arc<SharedGroup>>,
    /// Number of the next group; only writers of the index use it.
    next_group: AtomicU64,
    /// Written under `writers`.
    standing: ArcSwap<Vec<Arc<SharedGroup>>>,
    /// Groups with suspended members, by number. Changed under `writers`.
    without_right: Mutex<HashMap<NonZeroU64, Arc<SharedGroup>>>,
}

/// Filters without wildcards are found by their whole text. A tree holds the others level by level, and those of
/// [`is_in_tree`].
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) exact: HashTrie<FilterEntry, 62>,
    pub(super) wildcards: FilterNode,
}

impl FilterIndex {
    /// Creates an empty index. `access`: the access control to which all receivers' rights refer.
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
            standing: ArcSwap::default(),
            without_right: Mutex::default(),
        }
    }

    /// Returns the group of a share name and a filter.
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

    /// Numbers of all groups, in no order.
    pub(super) fn group_numbers(&self) -> impl Iterator<Item = NonZeroU64> {
        self.groups.iter().map(|group| *group.key())
    }

    pub(super) fn groups_total(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces the rules of new and existing groups. Publishers apply a new key once they see the raised version.
    pub(super) fn set_rules(&self, rules: ShareRules) {
        let mut edit = self.edit();
        let changed = self.groups.iter().filter(|group| group.set_rules(rules.of(group.name()))).count();
        self.rules.store(Arc::new(rules));
        self.groups.iter().for_each(|group| group.begin_to_look());
        edit.stand();
        drop(edit);
        self.invalidate(); // cached routes contain ordering keys
        tracing::info!(groups = self.groups.len(), changed, "rules of share groups");
        self.tell_dormant();
    }

    /// See [`ShareRules::groups_of_letters`].
    pub(super) fn groups_of_letters(&self, share_name: &str) -> Option<Vec<SharedFilter>> {
        self.rules.load().groups_of_letters(share_name)
    }

    /// See [`ShareRules::senders_of_letters`].
    pub(super) fn senders_of_letters(&self, to: &SharedFilter) -> Vec<String> {
        self.rules.load().senders_of_letters(to).into_iter().map(ToString::to_string).collect()
    }

    /// Whether a rule gives messages of groups an ordering key.
    pub(super) fn has_order(&self) -> bool {
        self.rules.load().has_order()
    }

    /// Creates a group without members. Only writers of the index may call it.
    fn new_group(&self, name: &SharedFilter) -> Arc<SharedGroup> {
        let number = NonZeroU64::MIN.saturating_add(self.next_group.fetch_add(1, Ordering::Relaxed));
        let rules = self.rules.load().of(name);
        Arc::new(SharedGroup::new(name.detach(), rules, number, Arc::clone(&self.queues)))
    }

    /// Hasher of the keys and names by which groups choose.
    pub(super) fn keys(&self) -> &KeyHasher {
        &self.queues.keys
    }

    pub(super) fn due_groups(&self) -> &DueGroups {
        &self.queues.due
    }

    pub(super) fn dead_letters(&self) -> &DeadLetters {
        &self.queues.dead_letters
    }

    pub(super) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    /// Returns groups that a subscription to the broker's share reports may cover; see [`Router::watched_groups`].
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

    /// Returns the groups that rules name by share name and filter.
    pub(super) fn named_groups(&self) -> Vec<Arc<SharedGroup>> {
        self.rules.load().named_groups().filter_map(|name| self.group(&name)).collect()
    }

    /// Returns how the rules name a group.
    pub(super) fn naming(&self, group: &SharedGroup) -> Naming {
        self.rules.load().naming(group.name())
    }

    /// Counts messages whose group ended before a member got them.
    pub(super) fn count_dropped(&self, count: u64) {
        self.queues.metrics.dropped_offline.add(count);
    }

    pub(super) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the part of the index that a topic's matches belong to.
    pub(super) fn part_of(&self, topic: &TopicName) -> Part {
        let first = topic.as_bytes().split(|&byte| byte == b'/').next();
        Part::of(first.unwrap_or_default(), self.hasher())
    }

    /// Invalidates all matches made before.
    pub(super) fn invalidate(&self) {
        self.versions.raise(Parts::ALL);
    }

    #[cfg(test)]
    pub(super) fn is_being_edited(&self) -> bool {
        self.writers.try_lock().is_err()
    }

    /// Begins changes that readers see together when the [`Edit`] is dropped. Other writers wait until then.
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
        let hooks = &self.queues.hooks;
        if hooks.has(Events::SELECT) { builder.build_selected(hooks) } else { builder.build() }
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

    /// Whether the owner of `outbox` has room for the group of a share name and a filter, or needs none.
    pub(super) fn may_join(&self, shared: &SharedFilter, outbox: &Outbox) -> bool {
        let (index, maximum) = (self.index, self.index.queues.groups_per_topic);
        let Some(owner) = outbox.account().filter(|_| maximum > 0) else { return true };
        if owner.may_add_group(&shared.filter, maximum) {
            return true;
        }
        let name = Key::new(shared.share_name.text().as_bytes(), index.hasher());
        let entry = self.next.entry(&shared.filter, index.hasher());
        let group = entry.and_then(|entry| entry.groups.get(&name));
        group.is_some_and(|group| group.stands() || group.has_member_of(&owner))
    }

    /// Adds a member to the group of a share name and a filter; the first member creates it.
    pub(super) fn join(&mut self, shared: &SharedFilter, receiver: &Receiver, member: GroupMember, now: Nanos) {
        let index = self.index;
        self.change(&shared.filter, |entry| {
            let name = Key::new(shared.share_name.text().as_bytes(), index.hasher());
            match entry.groups.get(&name) {
                Some(group) => {
                    group.join(receiver, member, now);
                    group.begin_to_look();
                    index.forget_suspended(group, receiver.number);
                }
                None => {
                    let group = index.new_group(shared);
                    group.join(receiver, member, now);
                    group.begin_to_look();
                    index.groups.insert(group.number(), Arc::clone(&group));
                    entry.groups.set(&name, Some(group));
                }
            }
        });
    }

    /// Suspends a member of a group until it joins again or leaves. The group keeps the messages that wait for it.
    pub(super) fn suspend(&mut self, shared: &SharedFilter, receiver: &Receiver) {
        let group = self.found(shared);
        group.suspend(receiver);
        self.index.without_right().insert(group.number(), group);
    }

    /// Removes a member from its group, which ends with its last member unless it stands or has stood.
    pub(super) fn leave(&mut self, shared: &SharedFilter, number: u64) {
        let index = self.index;
        self.change(&shared.filter, |entry| {
            let name = Key::new(shared.share_name.text().as_bytes(), index.hasher());
            if let Some(group) = entry.groups.get(&name).cloned() {
                group.leave(number);
                index.forget_suspended(&group, number);
                if group.is_over() {
                    index.groups.remove(&group.number());
                    entry.groups.set(&name, None);
                    group.end(); // under the writers' lock, like the creation of a successor's stored queue
                }
            }
        });
    }

    fn change(&mut self, filter: &TopicFilter, change: impl FnOnce(&mut FilterEntry)) {
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
    fn entry(&self, filter: &TopicFilter, hasher: &RandomState) -> Option<&FilterEntry> {
        if is_in_tree(filter) {
            self.wildcards.entry(filter, hasher)
        } else {
            self.exact.get(&Key::new(filter.as_bytes(), hasher))
        }
    }

    /// Returns the subscriptions to share reports, if there are any. With `far`, filters that cover all of `$SYS` also
    /// count.
    fn watch(&self, far: bool, hasher: &RandomState) -> Option<Watch<'_>> {
        let sys = self.wildcards.child(b"$SYS", hasher)?;
        if far && sys.has_wildcard() {
            return Some(Watch::All);
        }
        let share = sys.child(b"share", hasher)?;
        Some(if share.has_wildcard() { Watch::All } else { Watch::Some(share.children()) })
    }
}

/// Share groups whose reports a subscription may cover.
enum Watch<'a> {
    All,
    /// Groups with these share names.
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

/// Returns whether the tree holds a filter. It also holds those below `$SYS/share/`, so that a look-up can tell if
/// there are any.
pub(crate) fn is_in_tree(filter: &TopicFilter) -> bool {
    filter.has_wildcard() || filter.as_bytes().starts_with(b"$SYS/share/")
}

mod standing;

#[cfg(test)]
mod tests;
