//! Routes a published message to the queues of all its receivers.
//!
//! ```text
//!   Publisher (one per connection)                       Router (one per broker)
//!     RouteCache  topic ──► MatchSet, while the version ──► FilterIndex: snapshots of all subscriptions
//!     Fanout      deliveries grouped by receiver            RetainedStore
//!        └─ flush: one push per receiver and batch ──► Outbox
//! ```

#[cfg(feature = "admin")]
mod administration;
mod choice;
mod dead_letters;
mod decisions;
mod delivered;
mod due_groups;
mod fanout;
mod filter_tree;
mod group_backlog;
mod hash_trie;
mod held_key;
mod index;
mod inline_text;
mod key_hasher;
mod matches;
mod message;
mod ordering_key;
mod published;
mod publisher;
mod redelivery;
mod retained;
mod retained_pages;
mod route_cache;
mod share_group;
mod share_report;
mod subscribers;
mod versions;
mod work_queue;
mod work_stealing;

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use tenbin_balancer::{MemberLoad, Rng};
use tenbin_codec::{RetainHandling, SharedFilter, SubscriptionOptions, TopicFilter, TopicName};
use tenbin_session::{Extras, Publication};

pub(crate) use crate::values::Naming;
pub(crate) use dead_letters::{DeadLetters, Doomed, Fate};
pub(crate) use decisions::DecisionBudget;
pub(crate) use due_groups::DueGroups;
pub(crate) use fanout::Collector;
pub(crate) use group_backlog::HoldingGroup;
pub(crate) use held_key::HeldKey;
pub(crate) use index::is_in_tree;
pub(crate) use key_hasher::KeyHasher;
pub(crate) use matches::MatchSet;
pub(crate) use published::{Flushed, Published};
pub(crate) use publisher::Publisher;
pub(crate) use redelivery::Detached;
pub(crate) use retained::RetainedLimits;
pub(crate) use retained_pages::{Paged, RetainedPages};
pub(crate) use share_group::{GroupQueues, SharedGroup};
pub(crate) use share_report::ShareReport;
pub(crate) use work_queue::{Cause, Failed};
#[cfg(feature = "admin")]
pub(crate) use {
    dead_letters::{LetterProperties, original},
    group_backlog::waiting::WaitingAt,
    share_group::load::{GroupLoad, MemberFigures},
};

use crate::auth::{Access, Rights};
use crate::durable::{CommitPoint, Durable, QueueId, StoredQueue};
use crate::hooks::{self, Events, HookSet};
use crate::metrics::Metrics;
use crate::outbox::{Concerns, Look, Outbox};
use crate::values::{Clock, Grant, ShareRules};
use index::FilterIndex;
use matches::Terms;
use retained::{NoRoom, RetainedStore, is_own};
use share_group::GroupMember;
use subscribers::Subscriber;

/// Routes messages to subscribers, and holds the retained messages.
#[derive(Debug)]
pub(crate) struct Router {
    index: FilterIndex,
    retained: RetainedStore,
    /// Persistent storage, if configured.
    durable: Option<Arc<Durable>>,
    clock: Clock,
    metrics: Arc<Metrics>,
    hooks: Arc<HookSet>,
    concerns: Arc<Concerns>,
    /// Next number of a withdrawn message ([`tenbin_session::Delivery::message`]). Relaxed: only distinct numbers matter.
    withdrawn: AtomicU32,
}

/// A session in its role as receiver.
#[derive(Debug, Clone)]
pub(crate) struct Receiver {
    /// Session number. Numbers rise and are never reused.
    pub(crate) number: u64,
    /// Its outbox.
    pub(crate) outbox: Arc<Outbox>,
    /// Load of its client, for share groups.
    pub(crate) load: Arc<MemberLoad>,
    /// Topics that it may receive.
    pub(crate) rights: Arc<Rights>,
}

impl Grant {
    /// Terms of a session that has only this subscription.
    fn terms(self) -> Terms {
        Terms {
            qos: self.options.qos,
            retain_as_published: self.options.retain_as_published,
            identifiers: self.identifier.and_then(|identifier| Extras::identifiers([identifier])),
        }
    }
}

impl Router {
    pub(crate) fn new(
        rules: ShareRules,
        retained: RetainedLimits,
        groups: GroupQueues,
        access: Arc<Access>,
        durable: Option<Arc<Durable>>,
        clock: Clock,
        concerns: Arc<Concerns>,
    ) -> Self {
        let (metrics, hooks) = (Arc::clone(&groups.metrics), Arc::clone(&groups.hooks));
        let index = FilterIndex::new(rules, Arc::new(groups), access);
        let retained = RetainedStore::new(retained, durable.clone(), Arc::clone(&hooks));
        Self { index, retained, durable, clock, metrics, hooks, concerns, withdrawn: AtomicU32::default() }
    }

    #[cfg(test)]
    fn for_tests() -> Self {
        let rules = ShareRules::new(tenbin_balancer::Policy::RoundRobin, Vec::new());
        let retained = RetainedLimits { messages: 10, bytes: 10_000 };
        let groups = GroupQueues::for_tests(10, 10_000, None);
        Self::new(rules, retained, groups, Arc::new(Access::unlimited()), None, Clock::new(), Arc::default())
    }

    pub(crate) fn durable(&self) -> Option<&Durable> {
        self.durable.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn waiting_with_groups(&self) -> usize {
        self.index.groups().map(|group| group.waiting()).sum()
    }

    /// Creates the standing share groups. Call it once, before messages are published. `stood`: groups of the last run
    /// that have lost their rule, once those with one are known.
    pub(crate) fn stand(&self, stood: impl FnOnce() -> Vec<SharedFilter>) {
        self.index.stand(stood);
    }

    /// Logs the share groups without rule and members with which messages wait.
    pub(crate) fn tell_dormant(&self) {
        self.index.tell_dormant();
    }

    /// Number of share groups without rule and members with which messages wait, and of these messages.
    pub(crate) fn dormant(&self) -> (usize, usize) {
        let dormant = self.index.dormant();
        (dormant.len(), dormant.iter().map(|(_, messages)| messages).sum())
    }

    /// Share groups whose backlog is full or holds acknowledgements. A list, so that the caller holds no lock.
    pub(crate) fn congested_groups(&self) -> Vec<Arc<SharedGroup>> {
        self.index.groups().filter(|group| group.is_congested()).map(|group| Arc::clone(&group)).collect()
    }

    /// Offers the backlogs of all groups to members whose acknowledgements are overdue. Call it every second or so, and go on
    /// with the iterator.
    pub(crate) fn offer_backlogs(&self, now: Instant) -> impl Iterator<Item = ()> + use<> {
        let (now, mut rng) = (self.clock.moment(now), Rng::new(0));
        let groups = self
            .index
            .groups()
            .filter(|group| group.backlog.has_backlog() && group.has_ready_member())
            .map(|group| Arc::clone(&group));
        groups.collect::<Vec<_>>().into_iter().map(move |group| group.dispatch_waiting(now, &mut rng))
    }

    /// Drops messages that have waited too long with standing share groups. Call it every second or so, and go on with
    /// the iterator, whose steps are short.
    pub(crate) fn drop_overdue(&self, now: Instant) -> impl Iterator<Item = ()> + use<> {
        self.index.drop_overdue(now)
    }

    /// Restores the backlogs of share groups from the last run, and returns their queues.
    pub(crate) fn restore_waiting(&self, durable: &Durable) -> HashSet<QueueId> {
        self.index.groups().filter_map(|group| group.restore_waiting(durable)).collect()
    }

    /// Returns the stored queue of a share group; `None` if there is none, or the group has ended.
    pub(crate) fn queue_of_group(&self, number: NonZeroU64) -> Option<Arc<StoredQueue>> {
        self.index.group_by_number(number)?.stored()
    }

    /// Groups that are to be looked at later.
    pub(crate) fn due_groups(&self) -> &DueGroups {
        self.index.due_groups()
    }

    /// Applies `rules` to all share groups, existing ones included. Members and messages stay.
    pub(crate) fn set_share_rules(&self, rules: ShareRules) {
        self.index.set_rules(rules);
    }

    /// Hashes a key or a name, as share groups use it.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.index.keys().hash(name)
    }

    /// Number of share groups whose members all lack the right and with which messages wait, and of these messages.
    pub(crate) fn suspended(&self) -> (usize, usize) {
        let suspended = self.index.suspended();
        (suspended.len(), suspended.iter().map(|(_, messages)| messages).sum())
    }

    /// Begins changes of subscriptions that become visible together when the [`Edit`] is dropped. Other writers wait
    /// until then.
    pub(crate) fn edit(&self) -> Edit<'_> {
        Edit { index: self.index.edit(), clock: self.clock }
    }

    /// Returns whether an edit is in progress.
    #[cfg(test)]
    pub(crate) fn is_being_edited(&self) -> bool {
        self.index.is_being_edited()
    }

    /// Changes one subscription: see [`Edit::subscribe`].
    pub(crate) fn subscribe(&self, filter: &TopicFilter, receiver: &Receiver, grant: Grant, now: Instant) {
        self.edit().subscribe(filter, receiver, grant, now);
    }

    /// Returns share groups that a subscription below `$SYS/share/` may cover: up to `most`, numbered above `after`,
    /// ordered by number. With `far`, a subscription to all of `$SYS` also counts.
    pub(crate) fn watched_groups(&self, after: u64, most: usize, far: bool) -> Vec<Arc<SharedGroup>> {
        self.index.watched_groups(after, most, far)
    }

    /// Returns the groups that rules name by share name and filter. Clients cannot displace them in reports.
    pub(crate) fn named_groups(&self) -> Vec<Arc<SharedGroup>> {
        self.index.named_groups()
    }

    /// Dispatches the backlogs of the groups that `filters` name, after a member has connected.
    pub(crate) fn connected<'a>(&self, filters: impl Iterator<Item = &'a TopicFilter>, now: Instant, rng: &mut Rng) {
        self.groups_of(filters).for_each(|group| group.dispatch_waiting(self.clock.moment(now), rng));
    }

    /// Dispatches the backlogs of the groups of a member that can take messages, has fewer outstanding, or has connected.
    ///
    /// `begins`: all of them from now on. The call looks at a few, and the member's task at the others in its next laps
    /// ([`Outbox::take_room_again`]).
    pub(crate) fn serve(&self, outbox: &Outbox, begins: bool, now: Instant, rng: &mut Rng) {
        fence(Ordering::SeqCst); // see `SharedGroup::announce`
        let (now, mut begins, mut is_needed) = (self.clock.moment(now), begins, false);
        for _ in 0..LOOKED_AT_ONCE {
            let Some(Look { group: number, is_last, are_many }) = outbox.next_backlog(std::mem::take(&mut begins))
            else {
                return;
            };
            let group = self.index.group_by_number(number);
            if group.is_some_and(|group| group.serve_member(outbox, are_many, now, rng)) {
                outbox.look_again(number);
                is_needed = true;
                break;
            }
            if is_last {
                return;
            }
        }
        outbox.look_later(is_needed);
    }

    fn groups_of<'a>(&self, filters: impl Iterator<Item = &'a TopicFilter>) -> impl Iterator<Item = Arc<SharedGroup>> {
        filters.filter_map(TopicFilter::shared).filter_map(|shared| self.index.group(&shared))
    }

    /// Changes one subscription: see [`Edit::unsubscribe`].
    pub(crate) fn unsubscribe(&self, filter: &TopicFilter, number: u64) {
        self.edit().unsubscribe(filter, number);
    }

    /// Suspends a member of the share groups of `filters` together: they give it no message until it subscribes again.
    pub(crate) fn suspend_all<'a>(&self, filters: impl Iterator<Item = &'a TopicFilter>, receiver: &Receiver) {
        let mut edit = self.index.edit();
        filters.filter_map(TopicFilter::shared).for_each(|shared| edit.suspend(&shared, receiver));
    }

    /// Removes subscriptions together.
    pub(crate) fn unsubscribe_all<'a>(&self, filters: impl Iterator<Item = &'a TopicFilter>, number: u64) {
        let mut edit = self.edit();
        filters.for_each(|filter| edit.unsubscribe(filter, number));
    }

    /// Returns whether a SUBSCRIBE brings retained messages. A shared subscription brings none (MQTT 5.0 §4.8.2).
    pub(crate) fn brings_retained(filter: &TopicFilter, options: SubscriptionOptions, is_new: bool) -> bool {
        let wanted = match options.retain_handling {
            RetainHandling::Always => true,  // [MQTT-3.3.1-9]
            RetainHandling::IfNew => is_new, // [MQTT-3.3.1-10]
            RetainHandling::Never => false,  // [MQTT-3.3.1-11]
        };
        wanted && !filter.is_shared()
    }

    /// Returns the number of retained messages and their bytes, without the broker's own.
    pub(crate) fn retained_totals(&self) -> (usize, usize) {
        self.retained.totals()
    }

    /// Frees some expired retained messages; returns whether there may be more.
    pub(crate) fn sweep_retained(&self, now: Instant) -> bool {
        self.retained.sweep(SWEEP_VISITS, now)
    }

    /// Returns the receivers of messages to `topic`.
    pub(crate) fn matches(&self, topic: &TopicName) -> MatchSet {
        self.index.matches(topic)
    }

    /// Invalidates all cached routes, after receivers' rights have changed.
    pub(crate) fn invalidate(&self) {
        self.index.invalidate();
    }

    /// Retains a message. `is_will`: the broker accepted it with a CONNECT, so a congested disk does not refuse it.
    fn retain(&self, publication: &Publication, is_will: bool, now: Instant) -> Result<CommitPoint, NotRetained> {
        if !is_will && self.retained.is_disk_behind(publication) {
            return Err(NotRetained::DiskBehind);
        }
        let retained = self.retained.set(publication, now);
        if retained.is_ok() && self.hooks.has(Events::RETAINED) && !is_own(publication.topic.as_bytes()) {
            let message = hooks::Publication::of(publication);
            self.hooks.tell(Events::RETAINED, |hooks| hooks.retained(&message));
        }
        retained.map_err(|NoRoom { bound, commit_point }| {
            self.metrics.refused_over_quota.add(1);
            match bound {
                Some(bound) => {
                    self.metrics.bounds.hit(bound, 1, now);
                    self.concerns.not_retained(&publication.topic, bound);
                }
                None => tracing::warn!(
                    topic = ?publication.topic,
                    "message is not retained: it is too large for MQTT 5.0, in whose form it would be stored"
                ),
            }
            NotRetained::AtLimit(commit_point)
        })
    }

    /// Restores a retained message of the last run.
    pub(crate) fn restore_retained(&self, publication: &Publication, now: Instant) {
        self.retained.restore(publication, now);
    }
}

/// Changes of subscriptions that become visible together when this is dropped.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    index: index::Edit<'a>,
    clock: Clock,
}

impl Edit<'_> {
    /// Adds or replaces a subscription `[MQTT-3.8.4-3]`: messages published after this edit reach the receiver.
    /// Retained messages are separate, see [`RetainedPages`].
    pub(crate) fn subscribe(&mut self, filter: &TopicFilter, receiver: &Receiver, grant: Grant, now: Instant) {
        match filter.shared() {
            Some(shared) => {
                let member = GroupMember::new(receiver, grant);
                self.index.join(&shared, receiver, member, self.clock.nanos(now));
            }
            None => {
                let (outbox, rights) = (Arc::clone(&receiver.outbox), Arc::clone(&receiver.rights));
                self.index.insert(filter, Subscriber { number: receiver.number, outbox, rights, grant });
            }
        }
    }

    /// Whether the owner of `outbox` has room for the share group that a subscription to `filter` may create.
    pub(crate) fn may_subscribe(&self, filter: &TopicFilter, outbox: &Outbox) -> bool {
        filter.shared().is_none_or(|shared| self.index.may_join(&shared, outbox))
    }

    /// Removes a subscription: messages published after this edit do not reach the receiver `[MQTT-3.10.4-2]`.
    pub(crate) fn unsubscribe(&mut self, filter: &TopicFilter, number: u64) {
        match filter.shared() {
            Some(shared) => self.index.leave(&shared, number),
            None => self.index.remove(filter, number),
        }
    }
}

/// Reason why a message is not retained.
#[derive(Debug, Clone, Copy)]
enum NotRetained {
    /// The store has no room. Carries the commit point of the removal of the topic's previous message.
    AtLimit(CommitPoint),
    /// The disk is congested, so optional writes are refused for now.
    DiskBehind,
}

/// Groups of one member whose backlogs one event looks at.
const LOOKED_AT_ONCE: usize = 16;

/// Topic levels visited per sweep, which bounds the time that the retained tree is locked.
const SWEEP_VISITS: usize = 1000;
