//! Redelivery of messages that were taken from a member of share groups.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustc_hash::FxHashMap;
use tenbin_balancer::{FreedKeys, MemberId, Nanos, Rng};
use tenbin_codec::TopicFilter;
use tenbin_session::{Delivery, Session};

use super::group_backlog::Refused;
use super::held_key::{HeldKey, ordering_key};
use super::{Router, SharedGroup};
use crate::outbox::Outbox;

/// A redelivery in progress. While it exists, new messages to the member's groups wait, so that they cannot overtake
/// the redelivered ones.
#[derive(Debug)]
#[must_use = "what is published waits for its end"]
pub(crate) struct Redelivery<'a> {
    router: &'a Router,
    /// Number of the session whose messages are taken.
    from: u64,
    groups: Vec<Arc<SharedGroup>>,
}

/// A member that was disconnected.
#[must_use = "the messages go to other members"]
pub(crate) struct Detached<'a> {
    pub(crate) redelivery: Redelivery<'a>,
    /// Messages from its queue.
    pub(crate) taken: Vec<Delivery>,
    /// Further groups with a backlog, which may wait for the member: see [`Router::dispatch`]. They may be many.
    pub(crate) waiting: Vec<NonZeroU64>,
}

/// Messages that may be taken from a member's queue, by group and key.
#[derive(Debug)]
pub(crate) struct Freed(FxHashMap<NonZeroU64, FreedKeys>);

impl Router {
    /// Begins a redelivery of messages in the queue of the member of this number. Call it before messages are taken.
    pub(crate) fn begin_redelivery(&self, from: u64, outbox: &Outbox) -> Redelivery<'_> {
        let numbers = outbox.waiting_by_group().into_iter().map(|(number, _)| number);
        let groups = numbers.filter_map(|number| self.index.group_by_number(number));
        let groups: Vec<_> = groups.inspect(|group| group.begin_redelivery()).collect();
        Redelivery { router: self, from, groups }
    }

    /// As [`Router::begin_redelivery`], for the groups of `filters`, which the member leaves.
    pub(crate) fn begin_leaving<'f>(
        &self,
        from: u64,
        filters: impl Iterator<Item = &'f TopicFilter>,
    ) -> Redelivery<'_> {
        Redelivery { router: self, from, groups: Vec::new() }.and_leaving(filters)
    }

    /// Dispatches the backlog of a group, if it has one.
    pub(crate) fn dispatch(&self, group: NonZeroU64, now: Instant, rng: &mut Rng) {
        if let Some(group) = self.index.group_by_number(group) {
            group.may_begin(self.clock.moment(now), rng);
        }
    }

    /// Disconnects a member of share groups, and takes the messages from its queue.
    ///
    /// `under_way`: groups of further messages that the caller takes. Only groups with messages or with an order wait,
    /// since a session may be a member of thousands.
    pub(crate) fn detach(
        &self,
        from: u64,
        outbox: &Outbox,
        under_way: impl Iterator<Item = NonZeroU64>,
    ) -> Detached<'_> {
        // Messages that were chosen for the member, and are not in its queue yet, come back. A later message of their
        // key must not reach another member first.
        let ordered = if self.index.has_order() { outbox.groups() } else { Vec::new() }
            .into_iter()
            .filter(|&number| self.index.group_by_number(number).is_some_and(|group| group.members.rules().is_ordered));
        let mut redelivery = Redelivery { router: self, from, groups: Vec::new() };
        let (mut known, mut begun) = (HashSet::new(), under_way.chain(ordered).collect::<HashSet<_>>());
        loop {
            for group in begun.iter().filter_map(|&number| self.index.group_by_number(number)) {
                group.begin_redelivery();
                redelivery.groups.push(group);
            }
            known.extend(begun);
            match outbox.detach(|group| known.contains(&group)) {
                Ok(taken) => {
                    let mut waiting = outbox.known_backlogs();
                    waiting.retain(|group| !known.contains(group));
                    return Detached { redelivery, taken, waiting };
                }
                Err(unknown) => begun = unknown, // their messages came in between
            }
        }
    }

    /// Takes the QoS 1 messages of share groups in flight from the session of this number, which has no connection.
    pub(crate) fn withdraw(&self, session: &mut Session, number: u64) -> Vec<Delivery> {
        let numbers = |count| self.withdrawn.fetch_add(count, Ordering::Relaxed);
        let withdrawn = session.withdraw(|delivery| delivery.share.is_some(), numbers).into_iter();
        let count_lost = |delivery: Delivery| match delivery.share.and_then(|share| self.index.group_by_number(share)) {
            Some(group) => group.count_lost(delivery, number),
            None => delivery,
        };
        withdrawn.map(count_lost).collect()
    }

    /// Redelivers messages taken from a member of share groups, each group's in order. Messages that no member takes go
    /// to the group backlog. Messages of a group that has ended are dropped and counted.
    pub(crate) fn redispatch(&self, deliveries: Vec<Delivery>, now: Instant, rng: &mut Rng) {
        let now = self.clock.moment(now);
        self.for_each_group(deliveries, |group, deliveries| group.give_to_others(deliveries, now, rng));
    }

    /// Redelivers new messages that the chosen members returned. `returned` has the number of that member with each.
    ///
    /// Unlike with [`Router::redispatch`], they go behind the backlog. A message without room goes to `refused`.
    pub(super) fn choose_again(
        &self,
        returned: Vec<(u64, Delivery)>,
        now: Instant,
        refused: &mut Refused,
        rng: &mut Rng,
    ) {
        let key_done = |(number, delivery): &(u64, Delivery)| {
            let left = HeldKey::of(delivery).and_then(|held| self.key_done(held, *number))?;
            Some((left, *number))
        };
        let left: Vec<_> = returned.iter().filter_map(key_done).collect();
        let deliveries = returned.into_iter().map(|(_, delivery)| delivery).collect();
        let now = self.clock.moment(now);
        self.for_each_group(deliveries, |group, deliveries| group.wait(deliveries, now, refused, rng));
        left.iter().for_each(|(group, number)| self.key_released(group, *number));
    }

    fn for_each_group(
        &self,
        mut deliveries: Vec<Delivery>,
        mut give: impl FnMut(&Arc<SharedGroup>, &mut dyn Iterator<Item = Delivery>),
    ) {
        deliveries.sort_by_key(|delivery| delivery.share); // stable
        let mut deliveries = deliveries.into_iter().peekable();
        while let Some(share) = deliveries.peek().map(|delivery| delivery.share) {
            let mut of_group = std::iter::from_fn(|| deliveries.next_if(|delivery| delivery.share == share));
            match share.and_then(|number| self.index.group_by_number(number)) {
                Some(group) => give(&group, &mut of_group),
                None => self.index.count_dropped(of_group.count() as u64),
            }
        }
    }
}

impl Redelivery<'_> {
    /// Adds the groups of `filters`, which the member leaves.
    pub(crate) fn and_leaving<'f>(mut self, filters: impl Iterator<Item = &'f TopicFilter>) -> Self {
        let begun: HashSet<_> = self.groups.iter().map(|group| group.number()).collect();
        for group in filters.filter_map(TopicFilter::shared).filter_map(|shared| self.router.index.group(&shared)) {
            if !begun.contains(&group.number()) {
                group.begin_redelivery();
                self.groups.push(group);
            }
        }
        self
    }

    /// Frees the ordering keys of a connected member, except those of messages in flight. No message may enter or leave
    /// its queue between this call and the removal of the messages that [`Freed::contains`] names.
    pub(crate) fn free<'q>(&self, queue: impl Iterator<Item = &'q Delivery>, now: Nanos) -> Freed {
        let mut keys_of: FxHashMap<NonZeroU64, Vec<(u64, bool)>> = FxHashMap::default();
        for delivery in queue {
            if let Some((group, key)) = delivery.share.zip(ordering_key(delivery.share_key)) {
                keys_of.entry(group).or_default().push((key, delivery.published_qos.is_acknowledged()));
            }
        }
        let free_keys = |group: &Arc<SharedGroup>| {
            let queued = keys_of.remove(&group.number()).unwrap_or_default();
            (group.number(), group.members.members().free_keys(MemberId(self.from), queued, now))
        };
        Freed(self.groups.iter().map(free_keys).collect())
    }

    /// Returns the groups that the member has left in between and that go on.
    pub(crate) fn left(&self) -> HashSet<NonZeroU64> {
        let is_left = |group: &&Arc<SharedGroup>| {
            let members = group.members.members();
            !group.is_over() && members.iter().all(|member| member.id() != MemberId(self.from))
        };
        self.groups.iter().filter(is_left).map(|group| group.number()).collect()
    }

    /// Redelivers the taken messages, then gives new messages of these groups to members.
    pub(crate) fn finish(mut self, deliveries: Vec<Delivery>, now: Instant, rng: &mut Rng) {
        self.router.redispatch(deliveries, now, rng);
        self.end(now, rng);
    }

    fn end(&mut self, now: Instant, rng: &mut Rng) {
        let now = self.router.clock.moment(now);
        for group in self.groups.drain(..) {
            group.end_redelivery(now, rng);
        }
    }
}

impl Freed {
    pub(crate) fn contains(&self, delivery: &Delivery) -> bool {
        let Some(group) = delivery.share else { return false };
        let Some(key) = ordering_key(delivery.share_key) else { return true };
        // A message of a group that is not listed here came since.
        self.0.get(&group).is_some_and(|keys| keys.contains(key))
    }
}

impl Drop for Redelivery<'_> {
    fn drop(&mut self) {
        // After `finish` there is nothing left to do.
        if !self.groups.is_empty() {
            self.end(Instant::now(), &mut Rng::new(self.from));
        }
    }
}
